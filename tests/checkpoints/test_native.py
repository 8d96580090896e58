"""headscope's own format: what is saved comes back bit for bit, or nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import headscope
import huggingface_hub
import pytest
import torch
from headscope.checkpoints import open_checkpoint, save
from headscope.errors import CheckpointError
from headscope.models import (
    FrequencyFactors,
    GroupedConfig,
    HookedModel,
    LinearScaling,
    Llama3Scaling,
    LRKVConfig,
    MLAConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
    QKNorm,
    Rotary,
    YarnScaling,
)
from torch import Tensor

GATED = MLPConfig(d_mlp=10)
PLAIN = MLPConfig(d_mlp=9, act="relu2", gated=False, bias=True)


def tiny(attention: Any, **options: Any) -> ModelConfig:
    return ModelConfig(**{"d_model": 12, "n_layers": 2, "d_vocab": 37, "n_ctx": 32, "attention": attention} | options)


CONFIGS: dict[str, ModelConfig] = {
    "mha": tiny(GroupedConfig(n_heads=3, d_head=4), mlp=GATED),
    "mha-gpt2_like": tiny(
        GroupedConfig(n_heads=3, d_head=4, bias=True, output_bias=True),
        mlp=PLAIN,
        norm=NormConfig("layer", 1e-3),
        positions="learned",
        tie_embeddings=True,
    ),
    "gqa": tiny(GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6, scale=0.3), mlp=GATED, tie_embeddings=True),
    "gqa-yarn": tiny(
        GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6),
        positions=Rotary(base=500.0, width=4, interleaved=True, scaling=YarnScaling(4.0, 8, attention_factor=1.2)),
    ),
    "gqa-linear": tiny(GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6), positions=Rotary(scaling=LinearScaling(2.5))),
    "gqa-factors": tiny(
        GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6), positions=Rotary(scaling=FrequencyFactors((1.0, 2.0, 3.5)))
    ),
    "mqa": tiny(GroupedConfig(n_heads=4, n_kv_heads=1, d_head=4, qk_norm=QKNorm("after", eps=1e-3))),
    "mqa-no_positions": tiny(GroupedConfig(n_heads=4, n_kv_heads=1, d_head=3), mlp=GATED, positions="none"),
    "mla": tiny(MLAConfig(n_heads=3, d_latent=7, d_nope=4, d_rope=2, d_value_head=5), mlp=GATED),
    "mla-query_latent": tiny(
        MLAConfig(n_heads=3, d_latent=7, d_nope=4, d_rope=2, d_value_head=5, d_q_latent=6, bias=True, output_bias=True),
        mlp=PLAIN,
        tie_embeddings=True,
    ),
    "mla-no_latent_norm": tiny(
        MLAConfig(n_heads=3, d_latent=7, d_nope=4, d_rope=0, d_value_head=5, latent_norm=False), positions="none"
    ),
    "lrkv": tiny(LRKVConfig(n_heads=3, d_head=4, rank=2, bias=True), mlp=GATED),
    "lrkv-qk_norm": tiny(
        LRKVConfig(n_heads=3, d_head=4, rank=4, qk_norm=QKNorm("before", gain=False)),
        norm=NormConfig("layer"),
        positions=Rotary(scaling=Llama3Scaling(8.0, 16)),
        tie_embeddings=True,
    ),
}


def build(config: ModelConfig, dtype: torch.dtype = torch.float32) -> HookedModel:
    """Model with no weight left at zero or one."""
    torch.manual_seed(0)
    model = HookedModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gain = name.endswith(".w")
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.5) + gain)
    return model.to(dtype).eval()


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture
def model() -> HookedModel:
    return build(CONFIGS["gqa"])


@torch.no_grad()
def same(first: HookedModel, second: HookedModel, tokens: Tensor) -> bool:
    return torch.equal(first(tokens), second(tokens))


def assert_same_weights(first: HookedModel, second: HookedModel) -> None:
    expected = first.state_dict()
    assert list(second.state_dict()) == list(expected)
    for name, tensor in second.state_dict().items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])


def test_the_list_covers_every_variant():
    assert {config.attention.variant for config in CONFIGS.values()} == {"mha", "gqa", "mqa", "mla", "lrkv"}
    assert {config.tie_embeddings for config in CONFIGS.values()} == {True, False}


# -- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", ["5GB", 700], ids=["whole", "sharded"])
def test_round_trip(config, shard, tokens, tmp_path):
    model = build(config)
    assert save(model, tmp_path / "saved", max_shard_size=shard) == tmp_path / "saved"
    assert (len(list((tmp_path / "saved").glob("*.safetensors"))) > 2) == (shard == 700)
    loaded = headscope.load(tmp_path / "saved")
    assert loaded.config == config
    assert not loaded.training
    assert_same_weights(model, loaded)
    assert same(model, loaded, tokens)


def test_tied_embeddings_are_one_tensor_again(config, tmp_path):
    """Stored once, tied after loading, so that a change to one is a change to the other."""
    save(build(config), tmp_path / "saved")
    checkpoint = open_checkpoint(tmp_path / "saved")
    assert ("unembed.weight" in checkpoint.store.names()) != config.tie_embeddings
    loaded = checkpoint.load()
    assert (loaded.unembed.weight is loaded.embed.weight) == config.tie_embeddings
    with torch.no_grad():
        loaded.embed.weight[0, 0] = 77.0
    assert (float(loaded.W_U[0, 0].detach()) == 77.0) == config.tie_embeddings


def test_saved_twice_is_the_same_file(config, tmp_path):
    model = build(config)
    save(model, tmp_path / "first")
    save(headscope.load(tmp_path / "first"), tmp_path / "second")
    first, second = open_checkpoint(tmp_path / "first").describe(), open_checkpoint(tmp_path / "second").describe()
    assert first["sha256"] == second["sha256"]
    assert (first["family"], first["stored_dtypes"]) == ("headscope", ["float32"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(config, dtype, tokens, tmp_path):
    """Half-precision weights are computed with in float32 on a CPU, and kept as they are when asked."""
    model = build(config, dtype)
    save(model, tmp_path / "saved")
    checkpoint = open_checkpoint(tmp_path / "saved")
    assert checkpoint.describe()["stored_dtypes"] == [str(dtype).removeprefix("torch.")]
    assert same(checkpoint.load(), build(config, dtype).float(), tokens)
    kept = checkpoint.load(dtype=dtype)
    assert_same_weights(model, kept)
    assert same(kept, model, tokens)


def test_float64_is_kept(config, tokens, tmp_path):
    model = build(config, torch.float64)
    save(model, tmp_path / "saved")
    assert same(model, headscope.load(tmp_path / "saved"), tokens)


def test_every_family_of_hugging_face(family, saved, tokens, tmp_path):
    """Fused and transposed matrices of other formats come apart into tensors that can be saved."""
    loaded = headscope.load(saved(family))
    save(loaded, tmp_path / "native")
    again = headscope.load(tmp_path / "native")
    assert again.config == loaded.config
    assert same(loaded, again, tokens)


def test_weights_that_share_memory_are_all_saved(tokens, tmp_path):
    """A weight tied by hand, and one that is a view into another, are each written in full."""
    model = build(CONFIGS["mha"])
    first, second = model.layers
    second.attn.o.weight = first.attn.o.weight
    second.attn.q.weight = torch.nn.Parameter(first.attn.q.weight.detach().view(12, 12).T)
    second.mlp.up.weight = torch.nn.Parameter(torch.randn(20, 12)[5:15])
    save(model, tmp_path / "saved")
    assert same(model, headscope.load(tmp_path / "saved"), tokens)


def test_saving_leaves_the_model_alone(tokens, tmp_path):
    model = build(CONFIGS["gqa"])
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    save(model, tmp_path / "saved")
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert model.unembed.weight is model.embed.weight
    assert all(p.requires_grad for p in model.parameters())


def test_record_is_kept(model, tmp_path):
    record = {"command": "headscope train", "seed": 3, "data": {"sha256": "ab", "steps": [1, 2]}}
    save(model, tmp_path / "with", record=record)
    assert open_checkpoint(tmp_path / "with").layout.raw["record"] == record
    save(model, tmp_path / "without")
    assert open_checkpoint(tmp_path / "without").layout.raw["record"] == {}


def test_config_json_says_what_it_is(model, tmp_path):
    save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (config["format"], config["version"]) == ("headscope", 1)
    assert ModelConfig.from_dict(config["model"]) == model.config


def test_into_an_empty_directory_and_below_new_ones(model, tokens, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "new" / "newer" / "newest"):
        save(model, place)
        assert same(model, headscope.load(place), tokens)
        assert (place.stat().st_mode & 0o777) == 0o755
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["checkpoint", "directory", "file"])
def test_nothing_is_overwritten(what, model, tmp_path, fingerprint):
    target = tmp_path / "taken"
    if what == "checkpoint":
        save(build(CONFIGS["mha"]), target)
    elif what == "directory":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    else:
        target.write_text("mine")
    before = fingerprint(tmp_path)
    with pytest.raises(CheckpointError, match=r"taken already exists: headscope does not overwrite a checkpoint"):
        save(model, target)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()], ids=["disk_full", "interrupt"])
@pytest.mark.parametrize("existed", [False, True])
def test_a_failure_leaves_nothing_behind(failure, existed, model, monkeypatch, tmp_path):
    def fail(state: dict[str, Tensor], directory: Path, **options: Any) -> None:
        (Path(directory) / "model-00001-of-00002.safetensors").write_bytes(b"half")
        raise failure

    monkeypatch.setattr(huggingface_hub, "save_torch_state_dict", fail)
    if existed:
        (tmp_path / "saved").mkdir()
    with pytest.raises(type(failure)):
        save(model, tmp_path / "saved")
    assert [path.name for path in tmp_path.rglob("*")] == (["saved"] if existed else [])


@pytest.mark.parametrize("record", [{"loss": float("nan")}, {"when": object()}], ids=["nan", "object"])
def test_a_record_that_is_no_json_leaves_nothing_behind(record, model, tmp_path):
    with pytest.raises((ValueError, TypeError)):
        save(model, tmp_path / "saved", record=record)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_tokenizer_leaves_nothing_behind(model, tmp_path):
    class Broken:
        decode = None

        def save_pretrained(self, directory: Path) -> None:
            raise OSError("no space for a vocabulary")

    model.tokenizer = Broken()
    with pytest.raises(OSError, match="no space"):
        save(model, tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def with_model(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    config["model"] |= changes
    (directory / "config.json").write_text(json.dumps(config))


CANNOT = r"(?s)saved/config.json: 'model' describes no model that can be: .*"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 0}, "n_layers should be an integer > 0 but got 0"),
        ({"attention": {"variant": "xyz"}}, r"attention.variant should be one of \['gqa', 'lrkv'.*but got 'xyz'"),
        ({"attention": {"variant": "gqa", "n_heads": 4, "n_kv_heads": 3, "d_head": 6}}, "should divide n_heads=4"),
        ({"attention": {"variant": "mha", "n_heads": 4, "n_kv_heads": 2, "d_head": 6}}, "its fields describe 'gqa'"),
        ({"attention": {"variant": "gqa", "n_heads": 0, "d_head": 6}}, "attention.n_heads should be an integer > 0"),
        ({"attention": {"variant": "lrkv", "n_heads": 4, "d_head": 6, "rank": 7}}, "from 1 to d_head=6 but got 7"),
        ({"attention": {"variant": "gqa", "n_heads": 4}}, "d_head"),
        ({"positions": {"base": 10.0, "scaling": {"kind": "ntk"}}}, "rope scaling should be one of .* but got 'ntk'"),
        ({"mlp": {"d_mlp": -1}}, "mlp.d_mlp should be an integer > 0 but got -1"),
        ({"colour": "red"}, "colour"),
        # A value of a wrong type is refused by the package or, while it is type-checked in tests, by the checker.
        ({"d_vocab": "37"}, "d_vocab"),
        ({"positions": "sideways"}, "positions"),
        ({"norm": {"kind": "batch"}}, "kind"),
        ({"mlp": {"d_mlp": 2.5}}, ""),
        ({"attention": 5}, ""),
    ],
    ids=str,
)
def test_a_model_that_cannot_be(changes, message, model, tmp_path):
    save(model, tmp_path / "saved")
    with_model(tmp_path / "saved", **changes)
    with pytest.raises(CheckpointError, match=CANNOT + message):
        open_checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("broken", [None, 5, "gqa", [1]])
def test_no_model_at_all(broken, model, tmp_path):
    save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text()) | {"model": broken}
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config.json: 'model' should be a JSON object but is"):
        open_checkpoint(tmp_path / "saved")


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_version(version, model, tmp_path):
    save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text()) | {"version": version}
    (tmp_path / "saved" / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=rf"config.json: the native format's version should be 1 but is {version!r}"
    ):
        open_checkpoint(tmp_path / "saved")


def test_weights_of_another_configuration(model, tmp_path):
    save(model, tmp_path / "saved")
    with_model(tmp_path / "saved", d_model=11)
    with pytest.raises(
        CheckpointError, match=r"tensor 'embed.weight' gives .* the shape \(37, 12\); expected \(37, 11\)"
    ):
        headscope.load(tmp_path / "saved")
