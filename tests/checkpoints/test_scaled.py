"""8-bit floats with scales, against transformers' own unpacking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import headscope
import pytest
import torch
from headscope.checkpoints import open_checkpoint
from headscope.errors import CheckpointError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config


def pack(source: Path, target: Path, block: tuple[int, int], **packing: Any) -> dict[str, Tensor]:
    """Write a checkpoint with its projections packed in blocks; return the stored tensors."""
    stored: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, weight in load_file(source / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            stored[name] = weight
            continue
        grid = [-(-size // width) for size, width in zip(weight.shape, block, strict=True)]
        scales = 0.002 + 0.01 * torch.rand(*grid, generator=generator)
        stored[name] = (weight / spread(scales, weight, block)).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
    target.mkdir()
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    given = {"quant_method": "fp8", "weight_block_size": list(block), "activation_scheme": "dynamic", "fmt": "e4m3"}
    config["quantization_config"] = given | packing
    (target / "config.json").write_text(json.dumps(config))
    return stored


def spread(scales: Tensor, weight: Tensor, block: tuple[int, int]) -> Tensor:
    """Every entry's scale, by index."""
    rows, columns = (torch.arange(size) // width for size, width in zip(weight.shape, block, strict=True))
    return scales[rows[:, None], columns]


def test_logits_are_those_of_transformers_unpacking(saved, tmp_path, tokens, error):
    pack(saved("llama-gqa-wide_head"), tmp_path / "packed", (4, 4))
    whole = FineGrainedFP8Config(dequantize=True, weight_block_size=(4, 4))
    expected = AutoModelForCausalLM.from_pretrained(
        tmp_path / "packed", quantization_config=whole, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        assert error(headscope.load(tmp_path / "packed")(tokens), expected(tokens).logits) <= 1e-5
    described = open_checkpoint(tmp_path / "packed").describe()
    assert described["stored_dtypes"] == ["F8_E4M3", "float32"]


def test_blocks_at_the_edge_may_be_cut_short(saved, tmp_path, error):
    """24 columns in blocks of 7, as 576 rows stand in blocks of 128."""
    stored = pack(saved("llama-gqa-wide_head"), tmp_path / "packed", (9, 7))
    name = "model.layers.1.self_attn.k_proj.weight"
    attention = open_checkpoint(tmp_path / "packed").attention(1)
    by_hand = stored[name].float() * spread(stored[f"{name}_scale_inv"], stored[name], (9, 7))
    assert torch.equal(attention.k.weight, by_hand)


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (
            {"weight_block_size": [4, 5]},
            r"model.safetensors: tensor '.*' of shape .* has scales of shape .*blocks of 4",
        ),
        (
            {"weight_block_size": 4},
            r"config.json: 'weight_block_size' should be the rows and columns of a block but is 4",
        ),
        ({"weight_block_size": [0, 4]}, r"config.json: 'weight_block_size' should be an integer > 0 but is 0"),
        ({"quant_method": "mxfp4"}, r"config.json: quantization_config says that the weights are packed \(mxfp4\)"),
    ],
)
def test_scales_that_do_not_fit(packing, message, saved, tmp_path):
    pack(saved("llama-gqa-wide_head"), tmp_path / "packed", (4, 4), **packing)
    with pytest.raises(CheckpointError, match=message) as caught:
        headscope.load(tmp_path / "packed")
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("stored", "method"),
    [
        ("q_proj.qweight", "GPTQ or AWQ"),
        ("q_proj.weight_packed", "compressed-tensors"),
        ("q_proj.weight.quant_state.bitsandbytes__nf4", "bitsandbytes, 4 bits"),
        ("q_proj.SCB", "bitsandbytes, 8 bits"),
        ("q_proj.weight_scale_inv", "8-bit floats with scales"),
    ],
)
def test_packed_weights_that_no_configuration_tells_of_are_refused_by_name(stored, method, saved, tmp_path):
    source = saved("llama-gqa-wide_head")
    tensors = load_file(source / "model.safetensors") | {f"model.layers.0.self_attn.{stored}": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=rf"tensor '.*{stored}' says that the weights are packed \({method}\)"):
        open_checkpoint(tmp_path)
