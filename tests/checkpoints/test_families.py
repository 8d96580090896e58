"""Every family against Hugging Face's own forward pass, on weights that hide nothing.

Measured on the matrix (19 positions): float32 up to 2.4e-6 of the largest logit; float64 up to 3e-15 once Hugging
Face's own float32 islands (RMS norms, softmax, DeepSeek-V2's rotation) are lifted, 8e-7 with them.
"""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import headscope
import pytest
import torch
from headscope.checkpoints import open_checkpoint
from headscope.errors import CheckpointError
from headscope.models import GroupedConfig, MLAConfig
from headscope.models.rope import LinearScaling, Llama3Scaling, YarnScaling
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2Model, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from transformers.models.deepseek_v2 import modeling_deepseek_v2


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    return model(tokens).logits


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    return model.transformer.h if model.config.model_type == "gpt2" else model.model.layers


def attention_of(model: PreTrainedModel, layer: int) -> nn.Module:
    block = blocks_of(model)[layer]
    return block.attn if model.config.model_type == "gpt2" else block.self_attn


def without_float32_islands(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> PreTrainedModel:
    """Make a float64 Hugging Face model compute in float64 throughout, but for its float32 rotary tables."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()

    def table(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:  # torch.polar's float32 cosine is not torch.cos's
        angle = position_ids[..., None].float() * self.inv_freq.float()
        return torch.complex(angle.cos(), angle.sin()) * self.attention_scaling

    def turn(x: Tensor, turns: Tensor) -> Tensor:
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)

    def rotate(q: Tensor, k: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        turns = freqs_cis[:, None].to(torch.complex128)
        return turn(q, turns), turn(k, turns)

    monkeypatch.setattr(modeling_deepseek_v2, "apply_rotary_emb", rotate)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(norm, module)
        if type(module).__name__ == "DeepseekV2RotaryEmbedding":
            module.forward = types.MethodType(table, module)
    model.set_attn_implementation("sdpa")  # eager softmax is float32
    return model


# -- forward ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["5GB", "6KB"], ids=["whole", "sharded"])
def test_logits_are_hugging_faces(name, shard, saved, theirs, tokens, error):
    directory = saved(name, shard=shard)
    assert (len(list(directory.glob("*.safetensors"))) > 3) == (shard == "6KB")
    ours = headscope.load(directory)
    with torch.no_grad():
        assert error(ours(tokens), logits_of(theirs(name), tokens)) <= 1e-5


def test_logits_in_float64(name, saved, theirs, tokens, error, monkeypatch):
    ours = headscope.load(saved(name, torch.float64))
    expected = logits_of(without_float32_islands(theirs(name, torch.float64), monkeypatch), tokens)
    with torch.no_grad():
        assert error(ours(tokens), expected) <= 1e-10


def test_attention_of_every_layer(name, saved, theirs, tokens, error):
    model = theirs(name)
    seen: list[tuple[Tensor, Tensor]] = []
    for layer in range(2):
        attention_of(model, layer).register_forward_hook(lambda module, given, made: seen.append(made[:2]))
    logits_of(model, tokens)
    with torch.no_grad():
        _, cache = headscope.load(saved(name)).run_with_cache(tokens)
    assert len(seen) == 2
    for layer, (out, pattern) in enumerate(seen):
        assert error(cache[f"blocks.{layer}.hook_attn_out"], out) <= 1e-5
        assert error(cache[f"blocks.{layer}.attn.hook_pattern"], pattern) <= 1e-5


@pytest.mark.parametrize("kind", ["llama-biases", "gpt2"])
def test_what_heads_add_sums_to_hugging_faces_attention(kind, saved, theirs, tokens, error):
    """Less the bias, and whichever way round the output projection is stored (GPT-2's is transposed)."""
    model, seen = theirs(kind), []
    attention_of(model, 1).register_forward_hook(lambda module, given, made: seen.append(made[0]))
    logits_of(model, tokens)
    ours = headscope.load(saved(kind))
    with torch.no_grad():
        _, cache = ours.run_with_cache(tokens, names_filter="blocks.1.attn.hook_result")
    assert bool(ours.b_O[1].any())
    assert error(cache["result", 1].sum(2), seen[0] - ours.b_O[1].detach()) <= 1e-5


@pytest.mark.parametrize(
    "option",
    ["llama-theta", "llama-linear", "llama-llama3", "llama-yarn", "llama-yarn_factor", "llama-gelu"]
    + ["gpt2-unscaled", "v2-yarn", "v3-half_split", "v3-yarn"],
)
def test_every_option_of_the_matrix_shows(option, theirs, tokens, error):
    """An option that left Hugging Face's logits alone would test nothing."""
    plain = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "rope_interleave": True,
        "scale_attn_weights": True,
        "hidden_act": "silu",
    }
    with_it, without = theirs(option), theirs(option, **plain)
    assert error(logits_of(with_it, tokens), logits_of(without, tokens)) > 1e-2


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    d_head=st.sampled_from([2, 4, 6, 10]),
    width=st.sampled_from([3, 5, 8]),
    layers=st.integers(1, 3),
    bias=st.booleans(),
    tied=st.booleans(),
)
def test_llama_of_any_shape(
    groups, per_group, d_head, width, layers, bias, tied, weighted, tmp_path_factory, tokens, error
):
    config = LlamaConfig(
        hidden_size=width * groups * per_group,  # Hugging Face refuses others
        num_attention_heads=groups * per_group,
        num_key_value_heads=groups,
        head_dim=d_head,
        num_hidden_layers=layers,
        attention_bias=bias,
        tie_word_embeddings=tied,
        intermediate_size=7,
        vocab_size=37,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model = weighted(LlamaForCausalLM(config))
    directory = tmp_path_factory.mktemp("any")
    model.save_pretrained(directory)
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(model, tokens)) <= 1e-5


def test_half_precision_is_its_upcast(family, saved, tokens, error):
    """On a CPU, bfloat16 weights are computed with in float32."""
    directory = saved(family, torch.bfloat16)
    ours = headscope.load(directory)
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    expected = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        assert error(ours(tokens), logits_of(expected, tokens)) <= 1e-5
    assert {p.dtype for p in headscope.load(directory, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in headscope.load(directory, dtype=torch.float64).parameters()} == {torch.float64}


# -- what a configuration means ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variant", "groups"),
    [("llama-mha", "mha", 4), ("llama-gqa-wide_head", "gqa", 2), ("llama-mqa", "mqa", 1), ("gpt2", "mha", 4)]
    + [("v2", "mla", 4), ("v3", "mla", 4)],
)
def test_variant(name, variant, groups, saved):
    attention = open_checkpoint(saved(name)).config.attention
    assert (attention.variant, attention.n_groups) == (variant, groups)


@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("llama-mha", None),
        ("llama-linear", LinearScaling(2.5)),
        ("llama-llama3", Llama3Scaling(8.0, 16, 1.0, 4.0)),
        ("llama-yarn", YarnScaling(4.0, 8, beta_fast=2.0, beta_slow=0.5)),
    ],
)
def test_rope_scaling(name, scaling, saved):
    assert open_checkpoint(saved(name)).config.rotary.scaling == scaling


@pytest.mark.parametrize("tied", ["llama-tied", "gpt2", "v2-tied"])
def test_tied_embeddings_stay_one_tensor(tied, saved):
    model = headscope.load(saved(tied))
    assert model.unembed.weight is model.embed.weight


def edit(source: Path, target: Path, **changes: Any) -> Path:
    """Copy a checkpoint and change its config.json; a value of None takes the field away."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    return target


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": None, "rope_theta": 400.0},
        {"rope_parameters": None, "rope_theta": 400.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {"rope_parameters": None, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 400.0},
        {"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 16},
        {"num_key_value_heads": 2, "head_dim": None},
        {"tie_word_embeddings": False},
    ],
    ids=["theta", "scaling_type", "scaling_rope_type", "theta_outside", "yarn_context", "no_head_dim", "untied"],
)
def test_older_spellings_mean_what_hugging_face_reads(changes, saved, tmp_path, tokens, error):
    directory = edit(saved("llama-theta"), tmp_path / "edited", **changes)
    expected = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(expected, tokens)) <= 1e-5


def test_version_2_has_no_half_split_pairs(saved, theirs, tmp_path, tokens, error):
    """Hugging Face's version 2 does not read ``rope_interleave``."""
    directory = edit(saved("v2"), tmp_path / "edited", rope_interleave=False)
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(theirs("v2"), tokens)) <= 1e-5


def test_base_model_without_a_head(theirs, tmp_path):
    model = theirs("llama-mha")
    assert isinstance(model.model, LlamaModel)
    model.model.save_pretrained(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"base: tensor 'lm_head.weight' is missing"):
        headscope.load(tmp_path / "base")
    assert open_checkpoint(tmp_path / "base").factors(0).n_heads == 4


@pytest.mark.parametrize("tied", ["llama-tied", "gpt2", "v2-tied"])
def test_tied_base_model_needs_no_head(tied, theirs, tmp_path, tokens, error):
    model = theirs(tied)
    base = model.transformer if isinstance(model.base_model, GPT2Model) else model.model
    base.save_pretrained(tmp_path)
    with torch.no_grad():
        assert error(headscope.load(tmp_path)(tokens), logits_of(model, tokens)) <= 1e-5


# -- factors ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def projections(model: PreTrainedModel, layer: int, x: Tensor) -> dict[str, Tensor]:
    """Queries, keys and values ``[pos, head, width]`` that Hugging Face's modules make of `x`, without biases."""
    attention, outputs = attention_of(model, layer), {}

    def split(y: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        return (y if bias is None else y - bias).unflatten(-1, (heads, -1))

    if model.config.model_type == "gpt2":
        fused = attention.c_attn(x) - attention.c_attn.bias
        return {side: part.unflatten(-1, (4, -1)) for side, part in zip("qkv", fused.chunk(3, -1), strict=True)}
    for side in "qkv":
        module = getattr(attention, f"{side}_proj")
        heads = model.config.num_attention_heads if side == "q" else model.config.num_key_value_heads
        outputs[side] = split(module(x), module.bias, heads)
    return outputs


@torch.no_grad()
def result_of(model: PreTrainedModel, layer: int, head: int, z: Tensor) -> Tensor:
    """What Hugging Face's output projection makes of one head's ``z`` alone, without its bias."""
    attention = attention_of(model, layer)
    module = attention.c_proj if model.config.model_type == "gpt2" else attention.o_proj
    heads = z.new_zeros(len(z), model.config.num_attention_heads, z.shape[-1])
    heads[:, head] = z
    out = module(heads.flatten(1))
    return out if module.bias is None else out - module.bias


def normed(model: PreTrainedModel, layer: int, x: Tensor) -> Tensor:
    """What the input norm's linear part makes of `x`: the gain, after the mean is gone in a layer norm; no divisor."""
    block = blocks_of(model)[layer]
    if model.config.model_type == "gpt2":
        return (x - x.mean(-1, keepdim=True)) * block.ln_1.weight
    return x * block.input_layernorm.weight


GROUPED = [f"llama-{kind}" for kind in ("mha", "gqa-wide_head", "mqa", "biases")] + ["mistral", "gpt2"]


@pytest.mark.parametrize("fold", [False, True], ids=["bare", "folded"])
@pytest.mark.parametrize("grouped", GROUPED)
@torch.no_grad()
def test_grouped_factors_are_the_projections(grouped, fold, saved, theirs, error):
    model, checkpoint = theirs(grouped, torch.float64), open_checkpoint(saved(grouped))
    assert isinstance(checkpoint.config.attention, GroupedConfig)
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for layer in range(2):
        made = projections(model, layer, normed(model, layer, x) if fold else x)
        factors = checkpoint.factors(layer, fold_norm=fold)
        assert (factors.layer, factors.folded) == (layer, fold)
        (qk,), (ov,) = factors.circuits["qk"]["all"], factors.circuits["ov"]["all"]
        group_size = factors.n_heads // made["k"].shape[1]
        for head in range(factors.n_heads):
            group = head // group_size
            assert error(x @ qk.left.dense(head), made["q"][:, head]) <= 1e-12
            assert error(x @ qk.right.dense(head), made["k"][:, group]) <= 1e-12
            assert error(x @ ov.left.dense(head), made["v"][:, group]) <= 1e-12
            z = made["v"][:, group]
            assert error(z @ ov.right.dense(head).T, result_of(model, layer, head, z)) <= 1e-12


@pytest.mark.parametrize("fold", [False, True], ids=["bare", "folded"])
@pytest.mark.parametrize("mla", ["v2", "v2-biases", "v3", "v3-query_latent", "v3-yarn"])
@torch.no_grad()
def test_mla_factors_are_the_projections(mla, fold, saved, theirs, error):
    model, checkpoint = theirs(mla, torch.float64), open_checkpoint(saved(mla))
    config = checkpoint.config.attention
    assert isinstance(config, MLAConfig)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 24, dtype=torch.float64, generator=generator)
    latent = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    for layer in range(2):
        attention, factors = attention_of(model, layer), checkpoint.factors(layer, fold_norm=fold)
        qk, (ov,) = factors.circuits["qk"], factors.circuits["ov"]["all"]
        assert set(qk) == {"content", "position", "joint", "content_d_model"}
        (content,), (position,), (outer,) = qk["content"], qk["position"], qk["content_d_model"]
        inside = normed(model, layer, x) if fold else x
        c = latent * attention.kv_a_layernorm.weight if fold else latent
        if config.d_q_latent is None:
            q_in, q = x, attention.q_proj(inside)
        else:
            q_in = torch.randn(5, 7, dtype=torch.float64, generator=generator)
            q = attention.q_b_proj(q_in * attention.q_a_layernorm.weight if fold else q_in)
        down = attention.kv_a_proj_with_mqa(inside)
        if attention.kv_a_proj_with_mqa.bias is not None:
            down = down - attention.kv_a_proj_with_mqa.bias
        assert down.shape[-1] == config.d_latent + config.d_rope
        k_rot = down[:, config.d_latent :]
        q = q.unflatten(-1, (4, -1))
        kv = attention.kv_b_proj(c).unflatten(-1, (4, -1))
        k_through = down[:, : config.d_latent] * (attention.kv_a_layernorm.weight if fold else 1)
        k_through = attention.kv_b_proj(k_through).unflatten(-1, (4, -1))
        for head in range(4):
            assert error(q_in @ content.left.dense(head), q[:, head, :6]) <= 1e-12
            assert error(q_in @ position.left.dense(head), q[:, head, 6:]) <= 1e-12
            assert error(latent @ content.right.dense(head), kv[:, head, :6]) <= 1e-12
            assert error(x @ position.right.dense(head), k_rot) <= 1e-12
            assert error(latent @ ov.left.dense(head), kv[:, head, 6:]) <= 1e-12
            assert error(x @ outer.right.dense(head), k_through[:, head, :6]) <= 1e-12
            z = kv[:, head, 6:]
            assert error(z @ ov.right.dense(head).T, result_of(model, layer, head, z)) <= 1e-12
        if config.d_q_latent is not None:
            q_through = attention.q_a_proj(inside)
            if attention.q_a_proj.bias is not None:
                q_through = q_through - attention.q_a_proj.bias
            q = attention.q_b_proj(q_through * (attention.q_a_layernorm.weight if fold else 1)).unflatten(-1, (4, -1))
        for head in range(4):
            assert error(x @ outer.left.dense(head), q[:, head, :6]) <= 1e-12


def test_factors_from_disk_are_the_loaded_models(name, saved):
    checkpoint, model = open_checkpoint(saved(name)), headscope.load(saved(name))
    for fold in (False, True):
        lazily, loaded = checkpoint.factors(1, fold_norm=fold), model.factors(1, fold_norm=fold)
        assert lazily.notes == loaded.notes
        for circuit, parts in loaded.circuits.items():
            assert list(parts) == list(lazily.circuits[circuit])
            for part, forms in parts.items():
                for ours, expected in zip(lazily.circuits[circuit][part], forms, strict=True):
                    for head in range(loaded.n_heads):
                        assert torch.equal(ours.left.dense(head), expected.left.dense(head))
                        assert torch.equal(ours.right.dense(head), expected.right.dense(head))


def test_a_layers_factors_read_its_attention_only(family, saved, monkeypatch):
    checkpoint = open_checkpoint(saved(family, shard="6KB"))
    read: list[str] = []
    get = checkpoint.store.get
    monkeypatch.setattr(checkpoint.store, "get", lambda name: read.append(name) or get(name))
    checkpoint.factors(1)
    assert read
    assert all(
        ".1." in stored and ("attn" in stored or "input_layernorm" in stored or "ln_1" in stored) for stored in read
    )


@pytest.mark.parametrize("layer", [-1, 2])
def test_no_such_layer(layer, saved):
    with pytest.raises(IndexError, match=f"layer {layer} does not exist: this checkpoint has layers 0–1"):
        open_checkpoint(saved("llama-mha")).factors(layer)


# -- mixtures of experts ----------------------------------------------------------------------------------------------


def test_widths_come_from_where_the_weights_have_them(theirs, tmp_path):
    """DeepSeek-V2-Lite in small: real head widths, a dense query, experts from layer 1 on, a ``head_dim`` that lies."""
    model = theirs(
        "v2-experts",
        num_hidden_layers=3,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )
    model.save_pretrained(tmp_path / "saved")
    checkpoint = open_checkpoint(edit(tmp_path / "saved", tmp_path / "edited", head_dim=60))
    for layer in range(3):
        factors = checkpoint.factors(layer)
        (joint_content, joint_position) = factors.circuits["qk"]["joint"]
        assert joint_content.left.width + joint_position.left.width == 192
        assert (joint_content.right.width, joint_position.right.width) == (128, 64)
        assert (joint_content.right.d_in, joint_position.right.d_in) == (8, 24)
        assert factors.circuits["ov"]["all"][0].left.width == 128
        assert joint_position.planes is not None
        assert len(joint_position.planes.theta) == 32


def test_layers_that_predict_further_tokens_are_no_part_of_the_model(saved, tmp_path, tokens):
    """Released DeepSeek-V3 stores such a layer behind the last one."""
    directory = edit(saved("v3-experts"), tmp_path / "edited", num_nextn_predict_layers=1)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.2.enorm.weight"] = torch.ones(24)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        assert torch.equal(headscope.load(directory)(tokens), headscope.load(saved("v3-experts"))(tokens))


def test_a_tiny_latent_splits_where_it_should(theirs, tmp_path):
    """Latent 8, content 4, rotary 2 -> the fused down-projection splits 8 + 2."""
    theirs("v2", qk_nope_head_dim=4, qk_rope_head_dim=2).save_pretrained(tmp_path)
    model = headscope.load(tmp_path)
    assert model.layers[0].attn.kv_down.weight.shape == (8, 24)
    assert model.layers[0].attn.k_rot.weight.shape == (2, 24)
