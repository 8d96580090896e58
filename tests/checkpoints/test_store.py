"""Named tensors on disk: what can be known without reading them, and what is refused, by file and tensor."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from headscope.checkpoints.store import INDEX, SafetensorsStore, read_json
from headscope.errors import CheckpointError
from safetensors.torch import save_file

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.full((4,), 0.1, dtype=torch.float64),
    "c": torch.full((2, 1, 2), 1 / 3, dtype=torch.bfloat16),
    "d": torch.tensor(2.5, dtype=torch.float16),
}


@pytest.fixture
def single(tmp_path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path) -> Path:
    """Two shards: one with a and b, one with c and d."""
    save_file({name: TENSORS[name] for name in "ab"}, tmp_path / "model-1.safetensors")
    save_file({name: TENSORS[name] for name in "cd"}, tmp_path / "model-2.safetensors")
    shards = {"a": "model-1", "b": "model-1", "c": "model-2", "d": "model-2"}
    write_index(tmp_path, {"weight_map": {name: f"{shard}.safetensors" for name, shard in shards.items()}})
    return tmp_path


def write_index(directory: Path, content: object) -> None:
    (directory / INDEX).write_text(json.dumps(content))


@pytest.fixture(params=["single", "sharded"])
def directory(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def test_everything_but_the_values_without_reading_them(directory, monkeypatch):
    store = SafetensorsStore(directory)
    monkeypatch.setattr(SafetensorsStore, "get", None)
    assert sorted(store.names()) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert store.shape(name) == tuple(tensor.shape)
        assert store.dtype(name) == str(tensor.dtype).removeprefix("torch.")
        store.check_dtype(name)


def test_values_come_in_their_own_type(directory):
    store = SafetensorsStore(directory)
    for name, tensor in TENSORS.items():
        assert store.get(name).dtype == tensor.dtype
        assert torch.equal(store.get(name), tensor)


def test_file_of(sharded):
    store = SafetensorsStore(sharded)
    assert [store.file_of(name).name for name in "abcd"] == ["model-1.safetensors"] * 2 + ["model-2.safetensors"] * 2
    assert [path.name for path in store.files] == ["model-1.safetensors", "model-2.safetensors"]


def test_sha256_is_of_the_files_in_order(sharded):
    joined = b"".join((sharded / f"model-{i}.safetensors").read_bytes() for i in (1, 2))
    assert SafetensorsStore(sharded).sha256() == hashlib.sha256(joined).hexdigest()


def test_sha256_tells_one_bit_apart(single, tmp_path_factory):
    before = SafetensorsStore(single).sha256()
    other = tmp_path_factory.mktemp("other")
    changed = TENSORS["a"].clone()
    changed[1, 2] = torch.nextafter(changed[1, 2], torch.tensor(9.0))
    save_file(TENSORS | {"a": changed}, other / "model.safetensors")
    assert SafetensorsStore(other).sha256() != before


def test_a_single_file_of_any_name(single):
    (single / "model.safetensors").rename(single / "weights.safetensors")
    assert sorted(SafetensorsStore(single).names()) == list(TENSORS)


# -- refused ----------------------------------------------------------------------------------------------------------


def test_several_files_without_an_index(sharded):
    (sharded / INDEX).unlink()
    with pytest.raises(CheckpointError, match=rf"holds 2 safetensors files but no {INDEX}"):
        SafetensorsStore(sharded)


def test_no_weights(tmp_path):
    with pytest.raises(CheckpointError, match=rf"holds no weights: expected model.safetensors or {INDEX}"):
        SafetensorsStore(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "last.ckpt"])
def test_pickles_are_never_opened(name, tmp_path, monkeypatch):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / name).write_bytes(pickle.dumps({"a": Bomb()}))
    opened = []
    read_bytes, open_file = Path.read_bytes, Path.open
    monkeypatch.setattr(Path, "read_bytes", lambda self: opened.append(self) or read_bytes(self))
    monkeypatch.setattr(Path, "open", lambda self, *args, **kw: opened.append(self) or open_file(self, *args, **kw))
    with pytest.raises(CheckpointError, match=rf"holds only pickles \({name}\): headscope never loads a pickle"):
        SafetensorsStore(tmp_path)
    assert not opened
    assert not (tmp_path / "exploded").exists()


def test_a_pickle_beside_safetensors_is_left_alone(single):
    (single / "pytorch_model.bin").write_bytes(b"\x80\x04}q\x00.")
    assert sorted(SafetensorsStore(single).names()) == list(TENSORS)


def test_missing_shard(sharded):
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=rf"model-2.safetensors is missing: {INDEX} names it"):
        SafetensorsStore(sharded)


def test_shard_without_a_tensor_of_the_index(sharded):
    save_file({"c": TENSORS["c"]}, sharded / "model-2.safetensors")
    with pytest.raises(CheckpointError, match=rf"model-2.safetensors lacks tensor 'd' that {INDEX} names"):
        SafetensorsStore(sharded)


@pytest.mark.parametrize("which", ["model.safetensors", "model-2.safetensors"])
def test_cut_short_anywhere(which, tmp_path, request):
    directory = request.getfixturevalue("single" if which == "model.safetensors" else "sharded")
    whole = (directory / which).read_bytes()
    for length in range(0, len(whole), 7):
        (directory / which).write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=rf"{which} cannot be read as safetensors \(cut short\?\): "):
            SafetensorsStore(directory)


def test_a_directory_where_a_file_should_be(sharded):
    (sharded / "model-2.safetensors").unlink()
    (sharded / "model-2.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model-2.safetensors cannot be read as safetensors"):
        SafetensorsStore(sharded)


@pytest.mark.parametrize(
    "content", [{}, {"weight_map": {}}, {"weight_map": ["a"]}, {"weight_map": {"a": 3}}, {"weight_map": {"a": None}}]
)
def test_an_index_that_is_none(content, sharded):
    write_index(sharded, content)
    with pytest.raises(CheckpointError, match=rf"{INDEX} should hold a 'weight_map' of tensor names to files"):
        SafetensorsStore(sharded)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_types_that_are_no_weights(dtype, tmp_path):
    save_file({"good": torch.ones(2), "packed": torch.ones(2).to(dtype)}, tmp_path / "model.safetensors")
    store = SafetensorsStore(tmp_path)
    store.check_dtype("good")
    for read in (store.check_dtype, store.get):
        with pytest.raises(
            CheckpointError, match=r"model.safetensors: tensor 'packed' is of type \w+; expected one of"
        ):
            read("packed")
    assert store.dtype("packed") not in ("float32", "float16", "bfloat16", "float64")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe{}", "cannot be read as JSON"),
        (b"[1, 2]", "should hold a JSON object but holds list"),
        (b'"llama"', "should hold a JSON object but holds str"),
        (b"null", "should hold a JSON object but holds NoneType"),
    ],
)
def test_read_json(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"config.json {message}"):
        read_json(tmp_path / "config.json")


def test_read_json_of_nothing(tmp_path):
    with pytest.raises(CheckpointError, match=r"config.json cannot be read as JSON"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config.json cannot be read as JSON"):
        read_json(tmp_path / "config.json")


def test_numpy_and_torch_read_the_same(single):
    """The values are the file's bytes, by the format's own definition: a header's length, a header, the bytes."""
    raw = (single / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])["a"]["data_offsets"]
    values = np.frombuffer(raw[8 + length + begin : 8 + length + end], dtype="<f4").reshape(2, 3)
    assert np.array_equal(SafetensorsStore(single).get("a").numpy(), values)
