"""From a path to a model: bad input of every kind is one clear line and changes nothing; no network, no pickle."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headscope
import pytest
import torch
from headscope.checkpoints import open_checkpoint, save
from headscope.checkpoints.families import FAMILIES
from headscope.checkpoints.opening import read_config
from headscope.errors import CheckpointError, HeadscopeError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor
from transformers import PreTrainedTokenizerFast

INDEX = "model.safetensors.index.json"
Q1 = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def copy(saved, tmp_path) -> Callable[..., Path]:
    """A tiny checkpoint of one's own to spoil, called ``spoilt``."""

    def make(name: str = "llama-gqa-wide_head", shard: str = "5GB") -> Path:
        return Path(shutil.copytree(saved(name, shard=shard), tmp_path / "spoilt"))

    return make


def change(directory: Path, **fields: Any) -> None:
    """Change config.json; a value of None takes the field away."""
    config = json.loads((directory / "config.json").read_text()) | fields
    config = {key: value for key, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))


def retensor(directory: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of an unsharded checkpoint."""
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def shard_of(directory: Path, tensor: str) -> Path:
    return directory / json.loads((directory / INDEX).read_text())["weight_map"][tensor]


# -- bad input --------------------------------------------------------------------------------------------------------

Spoil = Callable[[Path], object]


def poke(name: str, value: float) -> Spoil:
    return lambda d: retensor(d, lambda t: t[name].view(-1)[3:4].fill_(value))


def replace(name: str, make: Callable[[Tensor], Tensor | None]) -> Spoil:
    def edit(tensors: dict[str, Tensor]) -> None:
        made = make(tensors.pop(name))
        if made is not None:
            tensors[name] = made.contiguous()

    return lambda d: retensor(d, edit)


def cut(file: str, size: int) -> Spoil:
    return lambda d: os.truncate(d / file, size)


WHOLE: dict[str, tuple[Spoil, str]] = {
    "truncated": (cut("model.safetensors", 4000), r"spoilt/model.safetensors cannot be read as safetensors"),
    "empty_file": (cut("model.safetensors", 0), r"spoilt/model.safetensors cannot be read as safetensors"),
    "missing_tensor": (
        replace(Q1, lambda t: None),
        rf"spoilt: tensor '{Q1}' is missing \(for 'blocks.1.attn.q.weight'\)",
    ),
    "missing_norm": (replace("model.norm.weight", lambda t: None), r"tensor 'model.norm.weight' is missing"),
    "missing_layer": (lambda d: change(d, num_hidden_layers=3), r"tensor 'model.layers.2.[a-z_.]+' is missing"),
    "extra_layer": (
        lambda d: change(d, num_hidden_layers=1),
        r"model.safetensors holds tensors that a llama model .* has no place for: 'model.layers.1.* and 6 more",
    ),
    "extra_tensor": (
        lambda d: retensor(d, lambda t: t.update(surprise=torch.ones(2))),
        r"spoilt/model.safetensors holds tensors .* has no place for: 'surprise'$",
    ),
    "extra_bias": (
        lambda d: retensor(d, lambda t: t.update({Q1.replace("weight", "bias"): torch.ones(40)})),
        r"has no place for: 'model.layers.1.self_attn.q_proj.bias'",
    ),
    "wrong_shape": (
        replace(Q1, lambda t: t[:-1]),
        rf"model.safetensors: tensor '{Q1}' gives 'blocks.1.attn.q.weight' the shape \(39, 24\); expected \(40, 24\)",
    ),
    "transposed": (replace(Q1, lambda t: t.T), rf"tensor '{Q1}' gives .* the shape \(24, 40\); expected \(40, 24\)"),
    "one_dimension": (replace(Q1, lambda t: t.flatten()), rf"tensor '{Q1}' gives .* \(960,\); expected \(40, 24\)"),
    "wrong_width": (lambda d: change(d, hidden_size=28), r"the shape \(37, 24\); expected \(37, 28\)"),
    "wrong_heads": (
        lambda d: change(d, head_dim=12),
        r"o_proj.weight' gives .* the shape \(24, 40\); expected \(24, 48\)",
    ),
    "integers": (
        replace(Q1, lambda t: t.to(torch.int8)),
        rf"model.safetensors: tensor '{Q1}' is of type I8; expected one of .*'F32'",
    ),
    "long_integers": (replace(Q1, lambda t: t.long()), rf"tensor '{Q1}' is of type I64"),
    "eight_bit_floats": (replace(Q1, lambda t: t.to(torch.float8_e4m3fn)), rf"tensor '{Q1}' is of type F8_E4M3"),
    "packed_weights": (
        lambda d: retensor(d, lambda t: t.update({Q1.replace("weight", "qweight"): t.pop(Q1).to(torch.int32)})),
        r"tensor 'model.layers.1.self_attn.q_proj.qweight' says that the weights are packed \(GPTQ or AWQ\)",
    ),
    "nan": (poke(Q1, float("nan")), rf"model.safetensors: tensor '{Q1}' holds NaN or Inf; expected finite weights"),
    "inf": (poke("lm_head.weight", float("inf")), r"model.safetensors: tensor 'lm_head.weight' holds NaN or Inf"),
    "minus_inf": (poke("model.norm.weight", float("-inf")), r"tensor 'model.norm.weight' holds NaN or Inf"),
    "quantised": (
        lambda d: change(d, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"config.json: quantization_config says that the weights are packed \(gptq\): dequantise them first",
    ),
    "quantised_oddly": (lambda d: change(d, quantization_config="awq"), r"the weights are packed \(awq\)"),
    "no_config": (lambda d: (d / "config.json").unlink(), r"spoilt has no config.json and no GGUF file"),
    "no_json": (cut("config.json", 30), r"spoilt/config.json cannot be read as JSON"),
    "not_an_object": (
        lambda d: (d / "config.json").write_text("[1, 2]"),
        r"spoilt/config.json should hold a JSON object but holds list",
    ),
    "no_weights": (
        lambda d: (d / "model.safetensors").unlink(),
        r"spoilt holds no weights: expected model.safetensors",
    ),
    "only_pickles": (
        lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        r"spoilt holds only pickles \(pytorch_model.bin\): headscope never loads a pickle",
    ),
    "broken_link": (
        lambda d: ((d / "model.safetensors").unlink(), (d / "model.safetensors").symlink_to("gone")),
        r"spoilt/model.safetensors cannot be read as safetensors",
    ),
    "unknown_type": (
        lambda d: change(d, model_type="bert"),
        r"config.json: model_type 'bert' is none of the known ones \(bloom, deepseek_v2, .*, qwen3\); load\(path, bridge=True\) .* a family is added",
    ),
    "no_type": (lambda d: change(d, model_type=None), r"config.json: model_type None is none of the known ones"),
    "odd_type": (lambda d: change(d, model_type=["llama"]), r"config.json: model_type \['llama'\] is none of"),
    "no_width": (lambda d: change(d, hidden_size=None), r"spoilt/config.json: 'hidden_size' is missing"),
    "no_eps": (lambda d: change(d, rms_norm_eps=None), r"spoilt/config.json: 'rms_norm_eps' is missing"),
    "text_width": (lambda d: change(d, hidden_size="24"), r"'hidden_size' should be an integer > 0 but is '24'"),
    "no_heads": (
        lambda d: change(d, num_attention_heads=0),
        r"'num_attention_heads' should be an integer > 0 but is 0",
    ),
    "half_a_head": (lambda d: change(d, num_key_value_heads=1.5), r"'num_key_value_heads' should be an integer > 0"),
    "bad_groups": (lambda d: change(d, num_key_value_heads=3), r"config.json: .*should divide n_heads=4"),
    "odd_head": (lambda d: change(d, head_dim=7), r"config.json: .*even and at most the key width 7"),
    "text_eps": (lambda d: change(d, rms_norm_eps="tiny"), r"'rms_norm_eps' should be a finite number but is 'tiny'"),
    "unknown_act": (lambda d: change(d, hidden_act="maxout"), r"config.json: the activation should be .* is 'maxout'"),
    "odd_act": (lambda d: change(d, hidden_act=["silu"]), r"config.json: the activation should be .* is \['silu'\]"),
    "unknown_rope": (
        lambda d: change(d, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        r"config.json: rope_type should be default, linear, llama3, yarn, longrope or proportional but is 'dynamic'",
    ),
    "rope_without_factor": (
        lambda d: change(d, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
        r"config.json: 'factor' is missing",
    ),
    "rope_without_band": (
        lambda d: change(d, rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0}),
        r"config.json: 'low_freq_factor' is missing",
    ),
    "rope_of_text": (lambda d: change(d, rope_parameters="linear"), r"should be a JSON object but are 'linear'"),
    "negative_factor": (
        lambda d: change(d, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": -2.0}),
        r"config.json: LinearScaling.factor should be finite and > 0 but got -2.0",
    ),
}
SHARDED: dict[str, tuple[Spoil, str]] = {
    "missing_shard": (
        lambda d: shard_of(d, Q1).unlink(),
        rf"spoilt/model-\d+-of-\d+.safetensors is missing: {INDEX} names",
    ),
    "truncated_shard": (lambda d: os.truncate(shard_of(d, Q1), 100), r"model-\d+-of-\d+.safetensors cannot be read"),
    "index_names_too_much": (
        lambda d: shard_of(d, Q1).write_bytes(shard_of(d, "lm_head.weight").read_bytes()),
        rf"spoilt/model-\d+-of-\d+.safetensors lacks tensor '[\w.]+' that {INDEX} names",
    ),
    "no_index": ((lambda d: (d / INDEX).unlink()), rf"spoilt holds \d+ safetensors files but no {INDEX}"),
    "index_no_json": (cut(INDEX, 40), rf"spoilt/{INDEX} cannot be read as JSON"),
    "index_not_an_object": (lambda d: (d / INDEX).write_text("3"), rf"{INDEX} should hold a JSON object but holds int"),
    "index_without_map": (lambda d: (d / INDEX).write_text("{}"), rf"{INDEX} should hold a 'weight_map'"),
}
SPOILT = [(case, "5GB", *WHOLE[case]) for case in WHOLE] + [(case, "6KB", *SHARDED[case]) for case in SHARDED]


def state_of_the_process() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        sorted(FAMILIES),
        dict(os.environ),
        os.getcwd(),
    )


@pytest.mark.parametrize(("shard", "spoil", "message"), [c[1:] for c in SPOILT], ids=[c[0] for c in SPOILT])
def test_bad_input_is_one_clear_line_and_changes_nothing(shard, spoil, message, copy, saved, tokens, fingerprint):
    good = headscope.load(saved("llama-gqa-wide_head"))
    directory = copy(shard=shard)
    headscope.load(directory)
    spoil(directory)
    files, process = fingerprint(directory), state_of_the_process()
    with torch.no_grad():
        logits = good(tokens)

    with pytest.raises(CheckpointError, match=message) as caught:
        headscope.load(directory)

    text = str(caught.value)
    assert text.count("\n") == 0
    assert "spoilt" in text
    assert fingerprint(directory) == files
    assert state_of_the_process() == process
    with torch.no_grad():
        assert torch.equal(good(tokens), logits)
        assert torch.equal(headscope.load(saved("llama-gqa-wide_head"))(tokens), logits)


def test_an_error_is_of_headscopes_family():
    assert issubclass(CheckpointError, HeadscopeError)


def test_shapes_and_types_are_checked_before_anything_is_read(copy, monkeypatch):
    for spoil in (replace("lm_head.weight", lambda t: t[:-1]), replace("lm_head.weight", lambda t: t.long())):
        directory = copy()
        spoil(directory)
        checkpoint = open_checkpoint(directory)
        monkeypatch.setattr(checkpoint.store, "get", lambda name: pytest.fail(f"{name} was read"))
        with pytest.raises(CheckpointError, match="lm_head"):
            checkpoint.load()
        shutil.rmtree(directory)


@pytest.mark.parametrize("family", ["gpt2", "v2"])
@pytest.mark.parametrize("make", [lambda t: t.flatten(), lambda t: t[:-1], lambda t: t[0, 0], lambda t: t[None]])
def test_fused_matrices_of_a_wrong_shape(family, make, copy):
    name = {"gpt2": "transformer.h.1.{}.weight", "v2": "model.layers.1.self_attn.{}.weight"}[family]
    parts = {"gpt2": ("attn.c_attn", "attn.c_proj"), "v2": ("kv_a_proj_with_mqa", "kv_b_proj")}[family]
    for part in parts:
        directory = copy(family)
        replace(name.format(part), make)(directory)
        with pytest.raises(CheckpointError, match=f"model.safetensors: tensor '{name.format(part)}'") as caught:
            headscope.load(directory)
        assert str(caught.value).count("\n") == 0
        shutil.rmtree(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_finite_in_a_report_names_layer_head_and_matrix(value, copy):
    """Named where it stands; a layer whose weights are finite can still be reported on."""
    directory = copy()
    retensor(directory, lambda t: t[Q1][25, 3].fill_(value))  # heads are 10 wide
    checkpoint = open_checkpoint(directory)
    assert checkpoint.factors(0).n_heads == 4
    with pytest.raises(ValueError, match="layer 1, head 2, W_Q holds 1 values that are NaN or Inf"):
        checkpoint.factors(1)


def test_a_tensor_missing_elsewhere_does_not_stop_a_report(copy):
    directory = copy()
    replace("model.layers.0.mlp.up_proj.weight", lambda t: None)(directory)
    checkpoint = open_checkpoint(directory)
    assert checkpoint.factors(0).n_heads == 4
    with pytest.raises(CheckpointError, match="mlp.up_proj.weight' is missing"):
        checkpoint.load()


def test_factors_name_a_missing_tensor(copy):
    directory = copy()
    replace(Q1, lambda t: None)(directory)
    with pytest.raises(CheckpointError, match=rf"tensor '{Q1}' is missing"):
        open_checkpoint(directory).factors(1)


# -- tied embeddings that are stored twice ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "embedding"), [("llama-tied", "model.embed_tokens"), ("gpt2", "transformer.wte")])
def test_a_stored_copy_of_a_tied_embedding(name, embedding, copy):
    directory = copy(name)
    retensor(directory, lambda t: t.update({"lm_head.weight": t[f"{embedding}.weight"].clone()}))
    model = headscope.load(directory)
    assert model.unembed.weight is model.embed.weight
    retensor(directory, lambda t: t["lm_head.weight"][0, 0].add_(1.0))
    with pytest.raises(CheckpointError, match=r"model.safetensors: tensor 'lm_head.weight' differs from the embedding"):
        headscope.load(directory)
    assert open_checkpoint(directory).factors(0).n_heads == 4


@pytest.mark.parametrize(
    ("name", "buffers"),
    [
        ("llama-mha", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}),
        (
            "gpt2",
            {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4), "transformer.h.1.attn.masked_bias": torch.ones(())},
        ),
    ],
)
def test_buffers_of_older_checkpoints_are_no_weights(name, buffers, copy, saved, tokens):
    directory = copy(name)
    retensor(directory, lambda t: t.update(buffers))
    with torch.no_grad():
        assert torch.equal(headscope.load(directory)(tokens), headscope.load(saved(name))(tokens))


# -- paths ------------------------------------------------------------------------------------------------------------


def a_fifo(place: Path) -> Path:
    os.mkfifo(place)
    return place


def a_loop(place: Path) -> Path:
    place.symlink_to(place.with_name("other"))
    place.with_name("other").symlink_to(place)
    return place


def a_file(place: Path, content: str = "hello") -> Path:
    place.write_text(content)
    return place


def a_directory(place: Path) -> Path:
    place.mkdir()
    return place


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (lambda p: p, "nowhere", "nowhere does not exist"),
        (a_directory, "empty", "empty is empty"),
        (a_loop, "loop", "loop cannot be opened"),
        (a_fifo, "fifo", "fifo is no checkpoint: expected its directory or a .gguf file"),
        (a_fifo, "fifo.gguf", "fifo.gguf is no checkpoint: expected its directory or a .gguf file"),
        (a_file, "notes.txt", "notes.txt is no checkpoint: expected its directory or a .gguf file"),
        (a_file, "model.gguf", "model.gguf cannot be read as GGUF"),
        (a_file, "model.safetensors", "model.safetensors is no checkpoint: expected its directory or a .gguf file"),
        (lambda p: a_file(p) / "inside", "file", "inside cannot be opened"),
        (lambda p: a_file(a_directory(p) / "notes.txt").parent, "other", "other has no config.json and no GGUF file"),
        (lambda p: Path(f"{p}\0"), "null", "null.* cannot be opened"),
        (lambda p: p / ("x" * 300), "long", "cannot be opened|does not exist"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." not in value else "",
)
def test_paths_that_are_no_checkpoint(make, name, message, tmp_path):
    path = make(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert str(caught.value).count("\n") == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_links_strings_and_home(copy, tmp_path, monkeypatch, tokens):
    directory = copy()
    (tmp_path / "link").symlink_to(directory)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with torch.no_grad():
        logits = [headscope.load(path)(tokens) for path in (tmp_path / "link", str(directory), "~/spoilt", "spoilt")]
    assert all(torch.equal(other, logits[0]) for other in logits[1:])


# -- what a checkpoint says of itself ---------------------------------------------------------------------------------


def test_describe(family, saved):
    directory = saved(family, torch.bfloat16)
    described = open_checkpoint(directory).describe()
    assert described["path"] == str(directory)
    assert described["family"] == json.loads((directory / "config.json").read_text())["model_type"]
    assert described["stored_dtypes"] == ["bfloat16"]
    assert len(described["sha256"]) == 64
    json.dumps(described)


def test_opening_reads_no_weights(family, saved, monkeypatch):
    from headscope.checkpoints.store import SafetensorsStore

    monkeypatch.setattr(SafetensorsStore, "get", lambda self, name: pytest.fail(f"{name} was read"))
    checkpoint = open_checkpoint(saved(family))
    assert checkpoint.config.n_layers == 2
    assert family.split("-")[0] in repr(checkpoint).replace("deepseek_", "")


# -- a model is independent of the files and of the open checkpoint ---------------------------------------------------


def test_editing_a_model_changes_neither_file_nor_checkpoint(family, copy, tokens, fingerprint):
    directory = copy(family)
    before, checkpoint = fingerprint(directory), open_checkpoint(directory)
    first = checkpoint.load()
    form = checkpoint.factors(0).circuits["ov"]["all"][0].left.dense(0).clone()
    with torch.no_grad():
        logits = first(tokens)
        for parameter in first.parameters():
            parameter.zero_()
        assert torch.equal(checkpoint.load()(tokens), logits)
    assert torch.equal(checkpoint.factors(0).circuits["ov"]["all"][0].left.dense(0), form)
    assert fingerprint(directory) == before


def test_every_weight_has_memory_of_its_own(family, saved):
    model = headscope.load(saved(family))
    owners = [p.untyped_storage().data_ptr() for p in model.parameters()]
    assert len(set(owners)) == len(owners)
    assert all(p.is_contiguous() and p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())


def test_a_model_outlives_its_files(family, copy, tokens):
    directory = copy(family)
    model = headscope.load(directory)
    with torch.no_grad():
        before = model(tokens)
        for file in directory.glob("*.safetensors"):
            os.truncate(file, 0)
        shutil.rmtree(directory)
        assert torch.equal(model(tokens), before)


def test_loading_draws_no_random_numbers(family, saved):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    headscope.load(saved(family))
    open_checkpoint(saved(family)).factors(1)
    assert torch.equal(torch.rand(3), expected)


def test_memory_is_freed(family, saved):
    """Nothing keeps a deleted model alive."""
    model = headscope.load(saved(family))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


# -- tokenizers, no network, no pickle --------------------------------------------------------------------------------

WORDS = ["[UNK]", "[PAD]", "the", "cat", "sat", "on", "a", "mat"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture
def no_network(monkeypatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError("the network was asked for")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def no_pickle(monkeypatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        pytest.fail("something was unpickled")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
        monkeypatch.setattr(module, name, refuse)


@pytest.mark.usefixtures("no_network", "no_pickle")
@pytest.mark.parametrize("kind", ["hugging_face", "native"])
def test_a_directory_loads_with_the_network_off(kind, family, copy, saved, tokenizer, tmp_path):
    """A path never touches the network, nor does its tokenizer."""
    directory = copy(family)
    if kind == "native":
        model = headscope.load(directory)
        model.tokenizer = tokenizer
        directory = save(model, tmp_path / "native")
    else:
        tokenizer.save_pretrained(directory)
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x04}q\x00.")
    model = headscope.load(directory)
    assert model.to_tokens("the cat sat").tolist() == [[2, 3, 4]]
    with torch.no_grad():
        assert torch.equal(model("the cat sat"), headscope.load(saved(family))(torch.tensor([[2, 3, 4]])))


def test_a_tokenizer_is_loaded_when_text_first_comes(copy, tokenizer, tokens):
    directory = copy()
    tokenizer.save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{")
    model = headscope.load(directory)
    with torch.no_grad():
        model(tokens)


def test_without_a_tokenizer(saved):
    model = headscope.load(saved("gpt2"))
    assert model.tokenizer is None
    with pytest.raises(headscope.TokenizerError, match="this model has no tokenizer"):
        model("text")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"model_type": "llama"}', r"c\.json: 'num_attention_heads' is missing"),
        ('{"model_type": "rwkv"}', r"c\.json: model_type 'rwkv' is not read: it has no attention"),
        ('{"attention": {"variant": "mhha"}}', r"c\.json: attention\.variant should be one of"),
        ('{"format": "headscope", "version": 1, "model": 3}', r"c\.json: 'model' should be a JSON object but is 3"),
        ("[]", r"c\.json should hold a JSON object"),
        ("{", r"c\.json cannot be read as JSON"),
    ],
)
def test_a_configuration_alone_is_refused_by_its_file_and_field(tmp_path, content, words):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        read_config(tmp_path / "c.json")
