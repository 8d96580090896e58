"""Every family's reader against what Hugging Face's own modules compute, and the logits of those that run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headscope
import pytest
import torch
import torch.nn.functional as F
from headscope.checkpoints import open_checkpoint
from headscope.checkpoints.checkpoint import Checkpoint
from headscope.checkpoints.families import FAMILIES
from headscope.checkpoints.families.shared_keys import VALUE_NORM
from headscope.errors import CheckpointError
from headscope.models.factors import BilinearForm, HeadStack
from headscope.models.variant import QKNorm
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

OUTPUTS = ("o_proj", "c_proj", "dense", "out_proj")


@torch.no_grad()
def logits_of(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    return model(input_ids=tokens).logits


def test_logits_are_hugging_faces(other, saved, theirs, tokens, error):
    """Measured: up to 4.5e-6 of the largest logit."""
    with torch.no_grad():
        assert error(headscope.load(saved(other))(tokens), logits_of(theirs(other), tokens)) <= 1e-5


@pytest.mark.parametrize("name", ["v3-experts", "phi3", "neox"])
def test_logits_of_sharded_ones(name, saved, theirs, tokens, error):
    directory = saved(name, shard="6KB")
    assert len(list(directory.glob("*.safetensors"))) > 3
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(theirs(name), tokens)) <= 1e-5


@pytest.mark.parametrize("name", ["gemma2", "v3-experts", "falcon-40b"])
def test_half_precision_is_its_upcast(name, saved, tokens, error):
    """A gain that is stored as its difference from 1 must not be rounded once more."""
    directory = saved(name, torch.bfloat16)
    expected = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(expected, tokens)) <= 1e-5


@pytest.mark.parametrize("name", ["mistral-window", "gemma3", "bloom", "neox", "olmo2", "v3-experts"])
@torch.no_grad()
def test_a_native_checkpoint_of_it_is_the_same_model(name, saved, tmp_path, tokens):
    model = headscope.load(saved(name))
    again = headscope.load(headscope.save(model, tmp_path / "native"))
    assert again.config == model.config
    assert torch.equal(again(tokens), model(tokens))


@pytest.mark.parametrize("name", ["mistral-window", "gemma2", "opt", "neox", "falcon-7b", "bloom", "mpt"])
@torch.no_grad()
def test_pads_before_a_row_change_none_of_its_logits(name, saved, theirs, tokens, error):
    """Windows, caps and slopes beside a mask. (Families whose positions Hugging Face takes from the mask, or turns.)"""
    mask = torch.ones_like(tokens)
    mask[0, :6] = 0
    expected = theirs(name)(input_ids=tokens, attention_mask=mask).logits
    made = headscope.load(saved(name))(tokens, attention_mask=mask)
    assert error(made[mask.bool()], expected[mask.bool()]) <= 1e-5


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("mistral-window", {"sliding_window": None}),
        ("gpt2-scale_by_layer", {"scale_attn_by_inverse_layer_idx": False}),
        ("qwen2-window", {"use_sliding_window": False, "layer_types": None}),
        ("phi3-partial", {"partial_rotary_factor": 1.0}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"sliding_window": 30}),
        ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}}),
        ("neox", {"use_parallel_residual": False}),
        ("v2-expert_groups", {"topk_method": "greedy"}),
        ("v3-experts", {"norm_topk_prob": False}),
        ("v3-experts", {"topk_group": 3}),
    ],
)
def test_every_option_shows(name, option, theirs, tokens, error):
    """An option that left Hugging Face's logits alone would test nothing."""
    assert error(logits_of(theirs(name), tokens), logits_of(theirs(name, **option), tokens)) > 1e-3


# -- forms against Hugging Face's queries, keys, values and outputs ------------------------------------------------------


class Seen:
    """What one attention module got and made, ``[head, pos, width]`` where there are heads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.x = self.q = self.k = self.v = self.z = self.out = torch.empty(0)

    def heads(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        self.q, self.k, self.v = q[0] * scale, k[0], v[0]


def attentions_of(model: PreTrainedModel) -> list[Seen]:
    """Watch every attention module of the text model."""
    found = []
    for name, module in model.named_modules():
        children = {child for child, _ in module.named_children()}
        kind = type(module).__name__
        if not kind.endswith(("Attention", "Attention2")) or "vision" in name or not children & set(OUTPUTS):
            continue
        found.append(watch(Seen(name), module, next(child for child in OUTPUTS if child in children)))
    return found


def watch(seen: Seen, module: nn.Module, output: str) -> Seen:
    """Have `seen` filled by the next pass: the module's input, its heads as they are scored, and its output's input."""

    def on_input(module: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen.x = (given[0] if given else options["hidden_states"])[0].detach()

    def on_output(module: nn.Module, given: tuple[Any, ...], made: Tensor) -> None:
        seen.z, seen.out = given[0][0], made[0]

    module.register_forward_pre_hook(on_input, with_kwargs=True)
    getattr(module, output).register_forward_hook(on_output)
    kind = type(module).__name__
    if kind == "GPTJAttention":
        attend = module._attn
        module._attn = lambda q, k, v, *rest: (seen.heads(q, k, v, 1 / module.scale_attn), attend(q, k, v, *rest))[1]
    elif kind == "BloomAttention":
        split = module._reshape

        def reshape(fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            made = split(fused)
            seen.heads(*made, module.inv_norm_factor)
            return made

        module._reshape = reshape
    elif kind == "MptAttention":
        heads = (module.n_heads, module.head_dim)
        module.Wqkv.register_forward_hook(
            lambda _, given, made: seen.heads(
                *(part.unflatten(-1, heads).transpose(1, 2) for part in made.chunk(3, dim=2)), module.softmax_scale
            )
        )
    else:
        module.seen = seen  # filled by the attention function
    return seen


def eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float, **options: Any) -> Any:
    """Attention function for Hugging Face's models: look at the heads, then attend to everything before."""
    module.seen.heads(q, k, v, scaling)
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling).transpose(1, 2), None


AttentionInterface.register("look", eager)


@pytest.fixture
def unbiased(theirs, tmp_path) -> Callable[[str], tuple[PreTrainedModel, Path]]:
    """A float64 model without biases, which no form holds, and the directory it was saved to."""

    def make(name: str) -> tuple[PreTrainedModel, Path]:
        model = theirs(name, torch.float64)
        with torch.no_grad():
            for parameter, values in model.named_parameters():
                if parameter.endswith("bias"):
                    values.zero_()
        model.save_pretrained(tmp_path / name)
        model.config._experts_implementation = "eager"  # the others know no float64
        return model, tmp_path / name

    return make


def look(model: PreTrainedModel, tokens: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Run the model and return what its attentions saw, layer by layer."""
    watched = attentions_of(model)
    kind = model.config.model_type
    if kind == "falcon":
        model.config._attn_implementation = "sdpa"  # its class can, yet refuses to be told so
        sdpa, turn = F.scaled_dot_product_attention, iter(watched)

        def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            next(turn).heads(q, k, v, q.shape[-1] ** -0.5)
            return sdpa(q, k, v, **options)

        monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    elif kind not in ("gptj", "bloom", "mpt"):
        model.set_attn_implementation("look")
    logits_of(model, tokens)
    return watched


def placed(form: BilinearForm, side: str, head: int, x: Tensor) -> Tensor:
    """Return a head's queries or keys of `x`, turned by their positions, one plane after the other."""
    y = x @ getattr(form, side).dense(head)
    if form.planes is None:
        return y
    out, (first, second) = y.clone(), form.planes.pairs
    # Hugging Face takes the cosine of float32 angles.
    angle = torch.arange(len(x), dtype=torch.float32)[:, None] * form.planes.theta.float()
    cos, sin = angle.cos().double(), angle.sin().double()
    a, b = y[:, first], y[:, second]
    out[:, first], out[:, second] = a * cos - b * sin, b * cos + a * sin
    return torch.cat(
        (out[:, : form.planes.start], out[:, form.planes.start : form.planes.stop] * form.planes.amplitude)
        + (out[:, form.planes.stop :],),
        dim=1,
    )


def test_forms_are_what_hugging_face_computes(grouped, unbiased, tokens, error, monkeypatch):
    """Scores before mask and cap, values, and what the output projection makes of the heads; input gains folded in."""
    model, directory = unbiased(grouped)
    checkpoint = open_checkpoint(directory)
    seen = look(model, tokens[:1], monkeypatch)
    assert len(seen) == checkpoint.config.n_layers
    for layer, saw in enumerate(seen):
        attention, other = checkpoint.attention(layer), checkpoint.config.keys_of(layer)
        x, x_keys = (before_gain(checkpoint, seen, place) for place in (layer, other))
        factors, bare = checkpoint.factors(layer), checkpoint.factors(layer, fold_norm=False)
        (qk,), (ov,), (raw,) = factors.circuits["qk"]["all"], factors.circuits["ov"]["all"], bare.circuits["qk"]["all"]
        divisors = [divisor(raw.left, saw.x, attention.qk_norm), divisor(raw.right, seen[other].x, attention.qk_norm)]
        of_values = divisor(ov.left, x_keys, attention.qk_norm if VALUE_NORM in factors.notes else None)
        total = torch.zeros_like(saw.out)
        for head in range(factors.n_heads):
            shared = head // (factors.n_heads // len(saw.k))
            q = placed(qk, "left", head, x) / divisors[0][:, head, None]
            k = placed(qk, "right", head, x_keys) / divisors[1][:, head, None]
            assert error((q @ k.T) * attention.scale, (saw.q[head] @ saw.k[shared].T).double()) <= 2e-6
            assert error(x_keys @ ov.left.dense(head) / of_values[:, head, None], saw.v[shared]) <= 2e-6
            z = saw.z.unflatten(-1, (factors.n_heads, -1))[:, head]
            total = total + z @ ov.right.dense(head).T
        assert error(total, saw.out) <= 2e-6


def before_gain(checkpoint: Checkpoint, seen: list[Seen], layer: int) -> Tensor:
    """Return what a layer's attention got, less the gain of the norm before it."""
    norm = checkpoint._block(layer).ln1
    return seen[layer].x if norm is None else seen[layer].x / norm.gain


def divisor(stack: HeadStack, x: Tensor, norm: QKNorm | None) -> Tensor:
    """Return what an RMS norm divides each token's head by, ``[pos, head]``; ones without such a norm."""
    y = torch.stack([x @ stack.dense(head) for head in range(stack.n_heads)], dim=1)
    if norm is None:
        return torch.ones(y.shape[:2], dtype=y.dtype)
    squares = y.square().mean(-1)
    if norm.span == "all":
        squares = squares.mean(1, keepdim=True).expand_as(squares)
    return (squares + norm.eps).sqrt()


# -- what can only be reported on, and what is refused by name ------------------------------------------------------------

REASONS = {
    "phi3-longrope": r"frequencies change with the length of the input \(longrope\)",
    "opt-norms_behind": r"do_layer_norm_before is false",
    "opt-projected": r"word_embed_proj_dim",
    "falcon-alibi": r"with ALiBi, Hugging Face's two ways to attend",
    "bloom-normed_stream": r"apply_residual_connection_post_layernorm",
    "mpt-clipped": r"clipped \(attn_config.clip_qkv\)",
    "gemma3n": "AltUp",
    "gemma3n-own_keys": "AltUp",
    "gemma4": "values go through a norm",
    "gemma4-keys_as_values": "values go through a norm",
}


def test_longrope_by_its_older_name(changed, saved):
    usual = open_checkpoint(saved("phi3-longrope"))
    factors = {name: usual.layout.raw["rope_parameters"][name] for name in ("short_factor", "long_factor")}
    older = changed(
        "phi3-longrope",
        rope_parameters=None,
        rope_scaling={"type": "su", **factors},
        rope_theta=1000.0,
        original_max_position_embeddings=24,
    )
    assert open_checkpoint(older).config == usual.config
    assert usual.config.rotary.scaling.factors == tuple(factors["short_factor"])
    assert usual.config.rotary.amplitude > 1.01


def test_what_cannot_run_says_why(reported, saved):
    with pytest.raises(CheckpointError, match=f"can be reported on but not run: .*{REASONS[reported]}") as caught:
        headscope.load(saved(reported))
    assert str(caught.value).count("\n") == 0
    assert len(headscope.report(saved(reported), null=2).table) == 2 * open_checkpoint(saved(reported)).config.n_layers


@pytest.fixture
def changed(saved, tmp_path) -> Callable[..., Path]:
    """A copy of a checkpoint with another config.json; a value of None takes a field away."""

    def make(name: str, **changes: Any) -> Path:
        directory = Path(shutil.copytree(saved(name), tmp_path / "changed"))
        config = json.loads((directory / "config.json").read_text()) | changes
        config = {key: value for key, value in config.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    return make


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen3", {"layer_types": ["full_attention", "linear_attention"]}, r"layer 1 is of kind 'linear_attention'"),
        (
            "llama-mha",
            {"layer_types": ["chunked_attention", "full_attention"]},
            r"layer 0 is of kind 'chunked_attention'",
        ),
        ("gemma2", {"layer_types": ["full_attention"]}, r"'layer_types' should be a list of 2 kinds"),
        ("gemma2", {"use_bidirectional_attention": True}, r"use_bidirectional_attention: its layers look ahead"),
        ("gemma3", {"attn_logit_softcapping": 5.0}, r"attn_logit_softcapping: Gemma 3 caps no scores"),
        ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, r"attn_type 'multiquery_attention'"),
        ("mpt", {"attn_config": {"qk_ln": True}}, r"attn_config.qk_ln is set"),
        ("opt", {"layer_norm_elementwise_affine": False}, r"layer_norm_elementwise_affine is false"),
        (
            "llama-mha",
            {"model_type": "gemma4_assistant"},
            r"model_type 'gemma4_assistant' is not read: .*another model",
        ),
        ("llama-mha", {"model_type": "mistral_large4"}, r"model_type 'mistral_large4' is not read: .*learned index"),
        (
            "llama-mha",
            {"num_kv_shared_layers": 1},
            r"num_kv_shared_layers is 1: layers share the keys.*not known which",
        ),
        ("gemma3n", {"num_kv_shared_layers": 5}, r"num_kv_shared_layers leaves none of 5 layers with keys"),
        (
            "gemma3n",
            {"num_kv_shared_layers": 4},
            r"layer 1 shares keys, but no layer of its kind below layer 1 has any",
        ),
        ("gemma3n", {"num_kv_shared_layers": -1}, r"'num_kv_shared_layers' should be an integer > 0 but is -1"),
        ("gemma3n", {"intermediate_size": [20]}, r"'intermediate_size' should be a number or 5 of them"),
        ("gemma4", {"per_layer_config": {"6": {"head_dim": 12}}}, r"per_layer_config names layer '6', but there are"),
        ("gemma4", {"use_bidirectional_attention": "all"}, r"use_bidirectional_attention: its layers look ahead"),
        ("llama-mha", {"is_encoder_decoder": True}, r"is_encoder_decoder"),
    ],
)
def test_what_is_no_softmax_attention_over_keys_of_its_own_is_refused_by_name(name, changes, message, changed):
    with pytest.raises(CheckpointError, match=f"changed/config.json: .*{message}") as caught:
        open_checkpoint(changed(name, **changes))
    assert str(caught.value).count("\n") == 0


def test_an_unknown_family_is_told_the_known_ones_and_how_to_add_it(changed):
    with pytest.raises(CheckpointError, match=r"model_type 'bert' is none of the known ones") as caught:
        open_checkpoint(changed("llama-mha", model_type="bert"))
    assert all(kind in str(caught.value) for kind in FAMILIES)
    assert "a family is added by one file in checkpoints/families" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("neox", {"rope_parameters": None, "rotary_pct": 0.67, "rotary_emb_base": 500}),
        ("gemma3", {"rope_parameters": None, "rope_theta": 700.0, "rope_local_base_freq": 30.0, "layer_types": None}),
        ("gemma3", {"rope_parameters": None, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        ("phi3", {"rope_parameters": None, "rope_theta": 50.0, "partial_rotary_factor": 0.67}),
        ("qwen2-window", {"layer_types": None, "max_window_layers": 1}),
        ("gemma2", {"layer_types": None}),
        ("mixtral", {"rope_parameters": None}),
    ],
)
def test_older_spellings_mean_what_hugging_face_reads(name, changes, changed, tokens, error):
    directory = changed(name, pad_token_id=0, **changes)
    expected = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        assert error(headscope.load(directory)(tokens), logits_of(expected, tokens)) <= 1e-5


# -- layers that take their keys from others ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("gemma3n", [0, 1, 2, 1, 2]),
        ("gemma3n-own_keys", [0, 1, 2, 3, 4]),
        ("gemma4", [0, 1, 2, 3, 2, 3]),
        ("gemma4-keys_as_values", [0, 1, 2, 3, 2, 3]),
    ],
)
def test_a_report_says_whose_keys_a_layer_attends_to(name, sources, saved, tmp_path):
    result = headscope.report(saved(name), null=0, out=tmp_path / "report")
    table = json.loads((tmp_path / "report" / "report.json").read_text())["rows"]
    assert [row["keys_of"] for row in table] == [source for source in sources for _ in ("qk", "ov")]
    (shown,), lines = result.terminal()
    cells = list(shown.columns[0].cells)[::2]
    assert cells == [
        f"{layer}" if layer == source else f"{layer} (keys of {source})" for layer, source in enumerate(sources)
    ]
    shares = sources != list(range(len(sources)))
    assert any("attend to that layer's keys and values" in line for line in lines) == shares
    assert any("value norm" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "kind"), [("gemma3n", "gemma3n"), ("gemma4", "gemma4"), ("gemma4-keys_as_values", "gemma4_unified")]
)
def test_the_text_model_of_one_that_sees_is_read_and_unused_keys_are_not(name, kind, saved, tmp_path):
    """Released files hold projections of layers that never use them; they may hold anything."""
    directory, bare = tmp_path / "sees", saved(name)
    directory.mkdir()
    tensors = {
        f"model.language_model.{stored.removeprefix('model.')}": tensor
        for stored, tensor in load_file(bare / "model.safetensors").items()
    }
    own = open_checkpoint(bare)
    last = own.config.n_layers - 1
    unused = f"model.language_model.layers.{last}.self_attn.k_proj.weight"
    assert unused not in tensors
    tensors |= {unused: torch.full((3, 3), torch.nan), "model.vision_tower.embed.weight": torch.zeros(2)}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    text = json.loads((bare / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({"model_type": kind, "text_config": text}))
    seeing = open_checkpoint(directory)
    assert seeing.config == own.config
    for circuit, parts in own.factors(last).circuits.items():
        (form,), (again,) = parts["all"], seeing.factors(last).circuits[circuit]["all"]
        assert torch.equal(form.left.dense(1), again.left.dense(1))
        assert torch.equal(form.right.dense(1), again.right.dense(1))


def test_gemma_4_by_its_released_spelling(changed, saved):
    """Released configurations give the wide heads by fields of their own, not layer by layer."""
    usual = open_checkpoint(saved("gemma4-keys_as_values")).config
    wide = {"global_head_dim": 12, "num_global_key_value_heads": 1}
    released = changed("gemma4-keys_as_values", per_layer_config=None, rope_parameters=None, **wide)
    assert open_checkpoint(released).config == usual
    assert [usual.at(layer).attention.d_head for layer in range(6)] == [10, 12] * 3
    assert [usual.at(layer).attention.n_groups for layer in range(6)] == [2, 1] * 3
