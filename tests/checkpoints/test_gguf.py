"""GGUF files written here the way llama.cpp writes them, against the Hugging Face model of the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headscope
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from headscope.checkpoints import open_checkpoint
from headscope.checkpoints.store import GGUFStore
from headscope.errors import CheckpointError
from headscope.models.rope import FrequencyFactors, LinearScaling, YarnScaling
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

D_MODEL, HEADS, GROUPS, D_HEAD, D_MLP, LAYERS, VOCABULARY = 32, 4, 2, 16, 64, 2, 37
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
METADATA: dict[str, Any] = {
    "context_length": 64,
    "embedding_length": D_MODEL,
    "block_count": LAYERS,
    "feed_forward_length": D_MLP,
    "attention.head_count": HEADS,
    "attention.head_count_kv": GROUPS,
    "attention.key_length": D_HEAD,
    "attention.layer_norm_rms_epsilon": 1e-3,
    "rope.dimension_count": D_HEAD,
    "rope.freq_base": 700.0,
}


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's ``LlamaModel.permute`` (convert_hf_to_gguf.py): half-split rotary pairs become neighbours."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def q8_0(values: np.ndarray) -> np.ndarray:
    """Quantise to Q8_0 and read the blocks back by their definition: a half-precision scale and 32 signed bytes."""
    blocks = quantize(values, GGMLQuantizationType.Q8_0).reshape(-1, 34).copy()
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return (scales * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(values.shape)


def is_quantised(name: str) -> bool:
    return "norm" not in name and name.endswith("weight")


class Reference:
    """A Hugging Face Llama and the tensors that llama.cpp would store for it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.tensors: dict[str, np.ndarray] = {}
        for name, tensor in model.state_dict().items():
            values = tensor.float().numpy()
            owner, _, kind = name.rpartition(".")
            if owner in ("model.embed_tokens", "model.norm", "lm_head"):
                stored = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[owner]
                if owner == "lm_head" and model.config.tie_word_embeddings:
                    continue
            else:
                layer, part = owner.removeprefix("model.layers.").split(".", 1)
                stored = f"blk.{layer}.{NAMES[part]}"
                if part.endswith(("q_proj", "k_proj")):
                    values = permute(values, HEADS if "q_proj" in part else GROUPS)
            self.tensors[f"{stored}.{kind}"] = values


@pytest.fixture
def reference(weighted) -> Callable[..., Reference]:
    def build(**options: Any) -> Reference:
        config = LlamaConfig(
            **{
                "hidden_size": D_MODEL,
                "num_attention_heads": HEADS,
                "num_key_value_heads": GROUPS,
                "head_dim": D_HEAD,
                "intermediate_size": D_MLP,
                "num_hidden_layers": LAYERS,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 64,
                "rms_norm_eps": 1e-3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 700.0},
                "bos_token_id": None,
                "eos_token_id": None,
                "attn_implementation": "eager",
            }
            | options
        )
        return Reference(weighted(LlamaForCausalLM(config)))

    return build


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Write tensors and metadata as a GGUF file; a metadata value of None leaves the key out."""

    def to_file(
        tensors: dict[str, np.ndarray],
        quantised: bool = False,
        arch: str | None = "llama",
        name: str = "tiny.gguf",
        **metadata: Any,
    ) -> Path:
        path = tmp_path / name
        writer = GGUFWriter(path, arch or "llama")
        if arch is None:
            del writer.kv_data[0]["general.architecture"]
        for key, value in (METADATA | {k.replace("__", "."): v for k, v in metadata.items()}).items():
            full = f"{arch or 'llama'}.{key}"
            if isinstance(value, str):
                writer.add_string(full, value)
            elif isinstance(value, float):
                writer.add_float32(full, value)
            elif isinstance(value, list):
                writer.add_array(full, value)
            elif value is not None:
                writer.add_uint32(full, value)
        for tensor, values in tensors.items():
            if quantised and is_quantised(tensor):
                packed = quantize(values, GGMLQuantizationType.Q8_0)
                writer.add_tensor(tensor, packed, raw_dtype=GGMLQuantizationType.Q8_0)
            else:
                writer.add_tensor(tensor, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return to_file


@torch.no_grad()
def compare(ours, theirs, tokens, error) -> float:
    return error(ours(tokens), theirs(tokens).logits)


# -- right ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "directory"])
def test_float32(place, reference, write, tokens, error):
    expected = reference()
    path = write(expected.tensors)
    model = headscope.load(path if place == "file" else path.parent)
    assert compare(model, expected.model, tokens, error) <= 1e-5
    assert (model.config.attention.variant, model.config.n_ctx) == ("gqa", 64)


@pytest.mark.parametrize(
    "options",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 700.0}},
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 700.0,
            }
        },
    ],
    ids=["tied", "biases", "linear", "yarn"],
)
def test_options(options, reference, write, tokens, error):
    expected = reference(**options)
    rope = options.get("rope_parameters")
    scaling = {}
    if rope is not None:
        scaling = {"rope__scaling__type": rope["rope_type"], "rope__scaling__factor": rope["factor"]}
        if "original_max_position_embeddings" in rope:
            scaling["rope__scaling__original_context_length"] = rope["original_max_position_embeddings"]
    model = headscope.load(write(expected.tensors, **scaling))
    assert compare(model, expected.model, tokens, error) <= 1e-5
    assert (model.unembed.weight is model.embed.weight) == options.get("tie_word_embeddings", False)
    kind = {"linear": LinearScaling, "yarn": YarnScaling}.get((rope or {}).get("rope_type"), type(None))
    assert isinstance(model.config.rotary.scaling, kind)


def test_frequency_factors_are_llama_3_rule(reference, write, tokens, error):
    """llama.cpp stores Llama 3.1's scaling as one divisor a plane (``generate_extra_tensors`` of its converter)."""
    theta, factor, low, high, context = 700.0, 8.0, 1.0, 4.0, 32
    rope_freqs = []
    for m in range(D_HEAD // 2):
        wavelength = 2 * math.pi * theta ** (2 * m / D_HEAD)
        if wavelength < context / high:
            rope_freqs.append(1.0)
        elif wavelength > context / low:
            rope_freqs.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            rope_freqs.append(1 / ((1 - smooth) / factor + smooth))
    assert {1.0, factor} < set(rope_freqs)
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context,
    }
    expected = reference(rope_parameters=parameters)
    model = headscope.load(write(expected.tensors | {"rope_freqs.weight": np.array(rope_freqs, dtype=np.float32)}))
    assert isinstance(model.config.rotary.scaling, FrequencyFactors)
    assert compare(model, expected.model, tokens, error) <= 1e-5


def test_quantised(reference, write, tokens, error):
    """Q8_0: equal to Hugging Face's model of the dequantised weights, not of the ones before."""
    expected = reference()
    path = write(expected.tensors, quantised=True)
    assert open_checkpoint(path).describe()["stored_dtypes"] == ["F32", "Q8_0"]
    model = headscope.load(path)
    assert compare(model, expected.model, tokens, error) > 1e-4
    with torch.no_grad():
        for name, parameter in expected.model.named_parameters():
            if is_quantised(name):
                parameter.copy_(torch.from_numpy(q8_0(parameter.numpy())))
    assert compare(model, expected.model, tokens, error) <= 1e-5


@torch.no_grad()
def test_factors_are_the_projections(reference, write, error):
    expected = reference()
    checkpoint = open_checkpoint(write(expected.tensors))
    x = torch.randn(5, D_MODEL, dtype=torch.float64)
    for layer in range(LAYERS):
        attention = expected.model.double().model.layers[layer].self_attn
        (form,) = checkpoint.factors(layer, fold_norm=False).circuits["qk"]["all"]
        q, k = attention.q_proj(x).unflatten(-1, (HEADS, -1)), attention.k_proj(x).unflatten(-1, (GROUPS, -1))
        for head in range(HEADS):
            assert error(x @ form.left.dense(head), q[:, head]) <= 1e-12
            assert error(x @ form.right.dense(head), k[:, head // 2]) <= 1e-12


def test_saved_natively_and_loaded_again(reference, write, tmp_path, tokens):
    """A file without a tokenizer gives a model without one, which can be saved."""
    model = headscope.load(write(reference().tensors))
    assert model.tokenizer is None
    headscope.save(model, tmp_path / "native")
    with torch.no_grad():
        assert torch.equal(headscope.load(tmp_path / "native")(tokens), model(tokens))


def test_defaults_of_absent_metadata(reference, write, tokens, error):
    """Without a count of key/value heads there are as many as heads; without a key length it is d_model / heads."""
    options = {"num_key_value_heads": HEADS, "head_dim": D_MODEL // HEADS}
    expected = reference(**options, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    tensors = expected.tensors
    for layer in range(LAYERS):
        key = expected.model.model.layers[layer].self_attn.k_proj.weight.detach().numpy()
        tensors[f"blk.{layer}.attn_k.weight"] = permute(key, HEADS)
    absent = {
        "attention__head_count_kv": None,
        "attention__key_length": None,
        "rope__dimension_count": None,
        "rope__freq_base": None,
    }
    assert compare(headscope.load(write(tensors, **absent)), expected.model, tokens, error) <= 1e-5


# -- wrong ------------------------------------------------------------------------------------------------------------


def test_unknown_architecture(reference, write):
    path = write(reference().tensors, arch="gemma")
    with pytest.raises(CheckpointError, match=r"tiny.gguf: general.architecture is 'gemma'; known: llama"):
        open_checkpoint(path)


def test_no_architecture(reference, write):
    with pytest.raises(CheckpointError, match=r"tiny.gguf: metadata 'general.architecture' is missing"):
        open_checkpoint(write(reference().tensors, arch=None))


@pytest.mark.parametrize(
    "key",
    [
        "embedding_length",
        "block_count",
        "context_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_missing_metadata(key, reference, write):
    path = write(reference().tensors, **{key.replace(".", "__"): None})
    with pytest.raises(CheckpointError, match=rf"tiny.gguf: metadata 'llama.{key}' is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"attention__head_count": 0}, "'llama.attention.head_count' should be an integer > 0 but is 0"),
        ({"attention__head_count": [4, 4]}, r"head_count' should be an integer > 0 but is \[4, 4\]"),
        ({"attention__head_count_kv": 3}, r"n_kv_heads should divide n_heads=4 \(one of \[1, 2, 4\]\) but got 3"),
        ({"attention__layer_norm_rms_epsilon": "small"}, "rms_epsilon' should be a finite number but is 'small'"),
        ({"rope__freq_base": math.inf}, "freq_base' should be a finite number but is inf"),
        ({"rope__dimension_count": 20}, "at most the key width 16 but got 20"),
        ({"rope__scaling__type": "longrope"}, "should be none, linear or yarn but is 'longrope'"),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}, "original_context_length' is missing"),
        ({"expert_count": 8}, "mixture of experts"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_metadata(metadata, message, reference, write):
    with pytest.raises(CheckpointError, match=rf"tiny\.gguf: .*{message}"):
        open_checkpoint(write(reference().tensors, **metadata))


def test_frequency_factors_that_do_not_fit(reference, write):
    tensors = reference().tensors | {"rope_freqs.weight": np.ones(3, dtype=np.float32)}
    with pytest.raises(
        CheckpointError, match=r"tiny.gguf: tensor 'rope_freqs.weight' has shape \(3,\); expected \(8,\)"
    ):
        open_checkpoint(write(tensors))
    tensors["rope_freqs.weight"] = np.ones(8, dtype=np.float32)
    with pytest.raises(CheckpointError, match="both rope_freqs.weight and rope scaling 'linear' are given"):
        open_checkpoint(write(tensors, name="both.gguf", rope__scaling__type="linear", rope__scaling__factor=2.0))


@pytest.mark.parametrize(
    "tensor", ["token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "blk.1.attn_norm.weight"]
)
def test_missing_tensor(tensor, reference, write):
    tensors = reference().tensors
    del tensors[tensor]
    path = write(tensors, vocab_size=VOCABULARY)
    with pytest.raises(CheckpointError, match=rf"tiny.gguf: tensor '{tensor}' is missing"):
        headscope.load(path)


def test_superfluous_tensor(reference, write):
    path = write(reference().tensors | {"blk.0.attn_sinks": np.ones(4, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"tiny.gguf holds tensors .* no place for: 'blk.0.attn_sinks'"):
        headscope.load(path)


def test_wrong_shape(reference, write):
    tensors = reference().tensors
    tensors["blk.1.attn_v.weight"] = tensors["blk.1.attn_v.weight"][:-1].copy()
    with pytest.raises(
        CheckpointError, match=r"tiny.gguf: tensor 'blk.1.attn_v.weight' .*\(31, 32\); expected \(32, 32\)"
    ):
        headscope.load(write(tensors))


def test_integer_tensor(reference, write):
    tensors = reference().tensors
    tensors["blk.1.attn_v.weight"] = tensors["blk.1.attn_v.weight"].astype(np.int32)
    with pytest.raises(CheckpointError, match=r"tiny.gguf: tensor 'blk.1.attn_v.weight' is of type I32"):
        headscope.load(write(tensors))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_not_finite(value, reference, write):
    tensors = reference().tensors
    tensors["blk.1.attn_k.weight"][5, 3] = value
    path = write(tensors)
    with pytest.raises(CheckpointError, match=r"tiny.gguf: tensor 'blk.1.attn_k.weight' holds NaN or Inf"):
        headscope.load(path)
    open_checkpoint(path).factors(0)
    with pytest.raises(ValueError, match="layer 1, group 0, W_K holds 1 values that are NaN or Inf"):
        open_checkpoint(path).factors(1)


def test_cut_short_anywhere(reference, write, tmp_path):
    """No prefix of a file is a file, and each is refused the same way."""
    whole = write(reference().tensors, quantised=True).read_bytes()
    store = GGUFStore(tmp_path / "tiny.gguf")
    header = min(int(tensor.data_offset) for tensor in store._tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, header, 41), *range(header, len(whole), 3001), len(whole) - 40]:
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut.gguf cannot be read as GGUF \(cut short\?\): "):
            open_checkpoint(cut)


@pytest.mark.parametrize("content", [b"", b"no gguf at all, but long enough to look at", b"\x80\x04}q\x00."])
def test_no_gguf_at_all(content, tmp_path):
    (tmp_path / "model.gguf").write_bytes(content)
    for path in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(CheckpointError, match=r"model.gguf cannot be read as GGUF"):
            open_checkpoint(path)


def test_two_files_in_one_directory(reference, write):
    tensors = reference().tensors
    directory = write(tensors, name="a.gguf").parent
    write(tensors, name="b.gguf")
    with pytest.raises(CheckpointError, match=r"holds 2 GGUF files: name one of a.gguf, b.gguf"):
        open_checkpoint(directory)
    assert open_checkpoint(directory / "b.gguf").config.n_layers == LAYERS
