"""The command line as a user meets it: exit status, streams, speed of its help."""

from __future__ import annotations

import json
import subprocess
import sys

import headscope as hs
import pytest
import torch
from headscope.cli import app
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
    assert len(written) == 5
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
