"""The command line as a user meets it: exit status, streams, speed of its help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import headscope as hs
import pytest
import torch
from headscope.cli import app
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner


@pytest.fixture
def checkpoint(tmp_path) -> str:
    torch.manual_seed(0)
    config = hs.ModelConfig(
        d_model=24, n_layers=2, d_vocab=9, n_ctx=8, attention=hs.LRKVConfig(n_heads=4, d_head=6, rank=2)
    )
    model = hs.HookedModel(config)
    for block in model.layers:
        torch.nn.init.uniform_(block.ln1.w, 0.2, 2)
    return str(hs.save(model, tmp_path / "model"))


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_report_prints_table_summary_and_reading(checkpoint):
    result = run("report", checkpoint, "--null", "2")
    assert result.exit_code == 0, result.output
    assert result.output.count(" QK ") == 2
    prose = " ".join(result.output.split())
    assert "LRKV, positions rotary, offsets 0, norm gains folded, definition gram, null of 2 draws" in prose
    assert "% of its cap H-1" in prose
    assert "random ones of the same shape" in prose
    assert max(map(len, result.output.splitlines())) <= 100


def test_json_is_all_there_is_on_standard_output(checkpoint):
    result = run("report", checkpoint, "--null", "1", "--json", "--circuit", "qk", "--offsets", "0:3")
    data = json.loads(result.stdout)
    assert [row["circuit"] for row in data["rows"]] == ["qk", "qk"]
    assert data["record"]["offsets"]["text"] == "0:3"
    assert data == json.loads(hs.report(checkpoint, null=1, circuit="qk", offsets="0:3").to_json())


def test_out_writes_the_files_and_names_them(checkpoint, tmp_path):
    result = run("report", checkpoint, "--null", "1", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    written = [line.removeprefix("wrote ") for line in result.output.splitlines() if line.startswith("wrote ")]
    assert len(written) == 7
    assert all((tmp_path / "out").joinpath(path.rsplit("/", 1)[1]).stat().st_size for path in written)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["{checkpoint}", "--layers", "0:7"], "layers 0–1"),
        (["{checkpoint}", "--offsets", "x"], "offsets should be"),
        (["{checkpoint}", "--layers", "x"], "layers should be"),
        (["{checkpoint}/config.json"], "is no checkpoint"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_2(checkpoint, arguments, words):
    result = run("report", *(a.format(checkpoint=checkpoint) for a in arguments))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def hugging_face(directory: Path) -> Path:
    """Write a small sharded Llama as Hugging Face does."""
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    config = LlamaConfig(num_attention_heads=2, bos_token_id=None, eos_token_id=None, **sizes)
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size="1KB")
    return directory


INDEX = "model.safetensors.index.json"


def shard(directory: Path) -> Path:
    names = json.loads((directory / INDEX).read_text())["weight_map"]
    return directory / names["model.layers.0.self_attn.q_proj.weight"]


def changed(directory: Path, **fields: object) -> None:
    config = json.loads((directory / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))


def emptied(directory: Path, *, but: str = "") -> None:
    for file in directory.iterdir():
        if file.name != but:
            file.unlink()


SPOILT = {
    "truncated": (lambda d: os.truncate(shard(d), 300), "cannot be read as safetensors"),
    "missing_shard": (lambda d: shard(d).unlink(), "is missing: model.safetensors.index.json names it"),
    "wrong_shape": (lambda d: changed(d, head_dim=4), "the shape (16, 16); expected"),
    "no_weights": (lambda d: emptied(d, but="config.json"), "holds no weights"),
    "empty": (emptied, "is empty"),
    "pickles": (
        lambda d: (emptied(d, but="config.json"), (d / "pytorch_model.bin").write_bytes(b"\x80\x04.")),
        "holds only pickles (pytorch_model.bin): headscope never loads a pickle",
    ),
    "loop": (
        lambda d: (emptied(d), d.rmdir(), d.with_name("other").symlink_to(d), d.symlink_to(d.with_name("other"))),
        "cannot be opened",
    ),
    "no_config": (lambda d: (d / "config.json").unlink(), "has no config.json and no GGUF file"),
    "unknown": (lambda d: changed(d, model_type="bert"), "model_type 'bert' is none of the known ones (bloom, "),
    "packed": (lambda d: changed(d, quantization_config={"quant_method": "awq"}), "are packed (awq)"),
    "shared_keys": (lambda d: changed(d, num_kv_shared_layers=1), "num_kv_shared_layers is 1"),
    "linear": (
        lambda d: changed(d, model_type="qwen3", layer_types=["linear_attention"]),
        "layer 0 is of kind 'linear_attention'",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), SPOILT.values(), ids=SPOILT)
def test_a_spoilt_checkpoint_is_one_line_and_exit_status_2(spoil, words, tmp_path):
    spoil(hugging_face(tmp_path / "model"))
    result = run("report", str(tmp_path / "model"), "--null", "1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "x", "--circuit", "kq"], "'kq' is not one of 'qk', 'ov', 'both'"),
        (["report", "x", "--null", "-1"], "--null"),
        (["train"], "PRESET"),
        (["reprot"], "reprot"),
    ],
)
def test_a_mistaken_call_is_one_line_and_exit_status_2(arguments, words):
    done = subprocess.run([sys.executable, "-m", "headscope", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_options_reach_the_report_and_change_it(checkpoint):
    plain = json.loads(run("report", checkpoint, "--null", "2", "--json").stdout)
    for option, key, value in (
        (["--definition", "roy"], "definition", "roy"),
        (["--no-fold"], "norm_gains_folded", False),
        (["--offsets", "0:5"], "offsets", {"text": "0:5", "first": 0, "last": 5, "positions": "rotary"}),
    ):
        other = json.loads(run("report", checkpoint, "--null", "2", "--json", *option).stdout)
        assert other["record"][key] == value
        assert other["rows"] != plain["rows"]


def test_a_place_that_cannot_be_written_to_is_known_before_the_work(checkpoint, tmp_path):
    (tmp_path / "file").write_text("")
    result = run("report", checkpoint, "--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 2
    assert result.stdout == ""


def test_version_is_the_packages(checkpoint):
    assert run("--version").stdout.startswith("headscope 0.")


def test_help_needs_neither_torch_nor_transformer_lens():
    code = (
        "import sys, headscope, headscope.cli; "
        "heavy = {'torch', 'transformer_lens', 'transformers', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_module_and_script_are_the_same_command():
    done = subprocess.run([sys.executable, "-m", "headscope", "--help"], capture_output=True, text=True, check=True)
    assert "report" in done.stdout
    assert "prepare" in done.stdout


def test_prepare_knows_one_model():
    result = run("prepare", "gpt5")
    assert result.exit_code == 2
    assert "should be smollm2" in result.stderr


def test_prepare_finds_what_is_there(smollm2):
    result = run("prepare", "smollm2", "--out", str(smollm2))
    assert result.exit_code == 0
    assert result.stdout.strip().endswith(".gguf")
