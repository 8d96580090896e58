"""Whole models: exact at full rank, gauges undone, errors measured on activations, checkpoints like any other."""

from __future__ import annotations

import json
from dataclasses import replace

import headscope as hs
import headscope.models as hs_models
import pytest
import torch
from headscope.checkpoints.native import save
from headscope.cli import app
from headscope.conversion.layer import convert_layer
from headscope.conversion.target import target
from headscope.conversion.text import second_moments
from headscope.models import MLPConfig, NormConfig, Rotary
from typer.testing import CliRunner

HEADS = hs.GroupedConfig(n_heads=4, d_head=6)
BIASED = replace(HEADS, bias=True, output_bias=True)


def tiny(attention: hs.GroupedConfig, **options) -> hs.ModelConfig:
    fields = {"d_model": 20, "n_layers": 2, "d_vocab": 23, "n_ctx": 16, "attention": attention}
    return hs.ModelConfig(**fields | options)


CAPPED = replace(HEADS, n_kv_heads=2, softcap=3.0)
MODELS = {
    "mha": tiny(HEADS, mlp=MLPConfig(d_mlp=10), tie_embeddings=True),
    "mha-biased": tiny(BIASED, positions="learned", norm=NormConfig("layer")),
    "gqa-biased": tiny(replace(BIASED, n_kv_heads=2, scale=0.3)),
    "gqa-partial_interleaved": tiny(replace(HEADS, n_kv_heads=2), positions=Rotary(width=4, interleaved=True)),
    "gqa-norm_gain": tiny(replace(HEADS, n_kv_heads=2, qk_norm=hs.QKNorm("before"))),
    "mha-norm_after": tiny(replace(HEADS, qk_norm=hs.QKNorm("after", gain=False))),
    "mqa": tiny(replace(HEADS, n_kv_heads=1)),
    "gqa-capped_windows": tiny(
        CAPPED, arrangement="sandwich", by_layer=(hs_models.LayerChanges(attention=replace(CAPPED, window=5)), None)
    ),
}


def build(config: hs.ModelConfig, dtype: torch.dtype = torch.float64) -> hs.HookedModel:
    torch.manual_seed(0)
    model = hs.HookedModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            if name.endswith("embed.weight"):
                parameter.copy_(torch.randn_like(parameter))
    return model.to(dtype).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(23, (6, 16), generator=torch.Generator().manual_seed(1))


def go(model, tokens, **options) -> hs.Conversion:
    return hs.convert(model, calibrate=tokens, text=tokens, **options)


@pytest.mark.parametrize("name", MODELS)
def test_full_rank_is_the_source_whatever_is_aligned(name, tokens):
    for dtype, near in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        model = build(MODELS[name], dtype)
        before = model.state_dict()
        before = {key: value.clone() for key, value in before.items()}
        for align in (True, False) if dtype == torch.float64 else (True,):
            found = go(model, tokens, rank=6, align=align).model
            assert found.config.attention.variant == "lrkv"
            torch.testing.assert_close(found(tokens), model(tokens), rtol=near, atol=near)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["mha", "gqa-partial_interleaved"])
def test_turned_heads_pool_without_loss_once_they_are_aligned(name, tokens):
    """Heads that are one head in different bases: alignment finds that, and a plain mean does not."""
    config = MODELS[name]
    shared = build(config.with_(attention=replace(config.attention, n_kv_heads=1)))
    turned = build(config)
    state = {key: value.clone() for key, value in shared.state_dict().items()}
    groups, generator = config.attention.n_groups, torch.Generator().manual_seed(3)
    first, second = ((0, 1, 2), (3, 4, 5)) if name == "mha" else ((0, 2), (1, 3))
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        keys, values = (state[f"{at}{side}.weight"].view(6, 20) for side in "kv")
        turns = {"k": [], "v": []}
        for _ in range(groups):
            turn = torch.eye(6, dtype=torch.float64)
            for a, b in zip(first, second, strict=True):
                angle = torch.rand((), generator=generator, dtype=torch.float64) * 6
                turn[a, a] = turn[b, b] = angle.cos()
                turn[a, b], turn[b, a] = angle.sin(), -angle.sin()
            turns["k"].append(turn)
            turns["v"].append(torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64))[0])
        state[f"{at}k.weight"] = torch.cat([turn.T @ keys for turn in turns["k"]])
        state[f"{at}v.weight"] = torch.cat([turn.T @ values for turn in turns["v"]])
        of = [head // (4 // groups) for head in range(4)]
        queries, outputs = state[f"{at}q.weight"].view(4, 6, 20), state[f"{at}o.weight"].view(20, 4, 6)
        state[f"{at}q.weight"] = torch.cat([turns["k"][of[h]].T @ queries[h] for h in range(4)])
        state[f"{at}o.weight"] = torch.cat([outputs[:, h] @ turns["v"][of[h]] for h in range(4)], dim=1)
    turned.load_state_dict(state)
    torch.testing.assert_close(turned(tokens), shared(tokens))
    aligned, plain = (go(turned, tokens, to="mqa", align=align) for align in (True, False))
    torch.testing.assert_close(aligned.model(tokens), turned(tokens), rtol=1e-7, atol=1e-7)
    assert aligned.table.loc[aligned.table.step == "aligned", "error"].max() < 1e-12
    assert plain.table.error.min() > 0.1
    assert plain.record["loss"]["after"] != pytest.approx(plain.record["loss"]["before"], abs=1e-3)


@pytest.mark.parametrize(("options", "bound"), [({"rank": 2}, 0.9), ({"to": "mqa"}, 1.0)])
def test_errors_are_those_of_the_keys_and_values_themselves(options, bound, tokens):
    """In the first layer both models read the same inputs, so the hooks see the very error that the table says."""
    model = build(MODELS["mha"])
    found = go(model, tokens, align=False, **options)
    names = ["blocks.0.attn.hook_k", "blocks.0.attn.hook_v"]
    _, before = model.run_with_cache(tokens, names_filter=names)
    _, after = found.model.run_with_cache(tokens, names_filter=names)
    for side in "kv":
        old, new = before[f"blocks.0.attn.hook_{side}"], after[f"blocks.0.attn.hook_{side}"]
        error = float(((old - new) ** 2).sum() / (old**2).sum())
        last = found.table[(found.table.layer == 0) & (found.table.side == side)].error.iloc[-1]
        assert last == pytest.approx(error, rel=1e-3)  # the ridge is in the table alone
        assert 0.01 < error < bound


def test_heads_of_a_group_get_one_residual(tokens):
    found = go(build(MODELS["gqa-biased"]), tokens, rank=2)
    for block in found.model.layers:
        for side in (block.attn.k, block.attn.v):
            for part in (side.U, side.B, side.bias):
                assert torch.equal(part[0], part[1])
                assert torch.equal(part[2], part[3])
                assert not torch.equal(part[0], part[2])
    # Cached per head, so that the source's sharing is lost: 2 * (6 + 4 * 2), and 4 for the keys' biases, against
    # 2 * 2 * 6, times 2 layers of 2 bytes.
    assert found.record["cache_bytes"] == {
        "before": {"logical": 96, "physical": 96},
        "after": {"logical": 128, "physical": 304},
    }
    assert "The cache does not shrink" in found.reading()


@pytest.mark.parametrize("name", ["mha", "gqa-partial_interleaved"])
def test_plane_closed_keys_are_closed_and_cost_more(name, tokens):
    model = build(MODELS[name])
    free, closed = (go(model, tokens, rank=2, keys=keys) for keys in ("rotate-at-read", "plane-closed"))
    assert closed.record["method"]["closure_violation"] < 1e-6 < 0.1 < free.record["method"]["closure_violation"]
    last = [result.table[result.table.step == "aligned"].groupby("side").error.mean() for result in (free, closed)]
    assert last[1]["k"] > last[0]["k"]
    assert last[1]["v"] == pytest.approx(last[0]["v"])
    attention = closed.model.attention(0)
    assert set(attention.k.B.unique().tolist()) <= {0.0, 1.0} or attention.turned.stop < 6


def test_calibration_reads_the_normed_inputs_of_every_layer(tokens):
    model = build(MODELS["mha-biased"])
    seen = []
    moments = second_moments(model, tokens.tolist(), seen.append)
    _, cache = model.run_with_cache(tokens)
    for layer, block in enumerate(model.layers):
        x = cache[f"blocks.{layer}.ln1.hook_normalized"] * block.ln1.w + block.ln1.b
        torch.testing.assert_close(moments[layer], x.flatten(0, 1).T @ x.flatten(0, 1))
        assert not block.attn._forward_pre_hooks
    assert seen == [1, 2, 3, 4, 5, 6]


def test_the_checkpoint_is_like_any_other_and_keeps_its_history(tokens, tmp_path):
    source = save(build(MODELS["mha"], torch.float32), tmp_path / "source")
    found = hs.convert(source, tmp_path / "new", rank=3, calibrate=tokens, text=tokens, samples=6)
    opened = hs.open_checkpoint(tmp_path / "new")
    assert opened.config == found.model.config
    loaded = opened.load()
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in found.model.state_dict().items())
    assert hs.report(tmp_path / "new", null=1).table.erank.notna().all()
    kept = json.loads((tmp_path / "new" / "config.json").read_text())["record"]["conversion"]
    assert kept == json.loads(found.to_json())
    assert kept["record"]["source"]["sha256"] == hs.open_checkpoint(source).describe()["sha256"]
    assert len(kept["rows"]) == 2 * 2 * 4
    for when, model in (("before", hs.load(source)), ("after", loaded)):
        assert kept["record"]["loss"][when] == pytest.approx(model(tokens, return_type="loss").item(), rel=1e-5)
    with pytest.raises(hs.CheckpointError, match="does not overwrite"):
        hs.convert(source, tmp_path / "new", rank=3, calibrate=tokens, text=tokens)


def test_a_cache_ratio_is_of_the_sources_cache():
    for name, ratio, rank in (("mha", 0.5, 1), ("mha", 1.0, 4), ("gqa-biased", 1.0, 1), ("gqa-biased", 2.0, 4)):
        goal = target(MODELS[name], "lrkv", cache_ratio=ratio).config.attention
        assert goal.rank == rank
        assert goal.cache_width() <= ratio * MODELS[name].attention.cache_width()
        assert replace(goal, rank=rank + 1).cache_width() > ratio * MODELS[name].attention.cache_width()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mha", {}, "a rank or a cache ratio"),
        ("mha", {"rank": 2, "cache_ratio": 0.5}, "not both"),
        ("mha", {"rank": 7}, "from 1 to d_head=6 but got 7"),
        ("mha", {"cache_ratio": 0.1}, "between 0.4167"),
        ("mha", {"rank": 2, "groups": 2}, "groups belong to gqa"),
        ("mha", {"rank": 3, "keys": "plane-closed"}, "even for whole rotary planes"),
        ("mha", {"rank": 2, "keys": "closed"}, "keys should be one of rotate-at-read, plane-closed"),
        ("mha-biased", {"rank": 2, "keys": "plane-closed"}, "need rotary positions"),
        ("mha", {"to": "mla"}, "to should be one of lrkv, gqa, mqa"),
        ("mha", {"to": "gqa"}, "gqa needs a number of groups"),
        ("mha", {"to": "gqa", "groups": 3}, r"into \[2\] groups but got groups=3"),
        ("mha", {"to": "mqa", "groups": 2}, "mqa has one group"),
        ("mha", {"to": "mqa", "rank": 2}, "belong to lrkv"),
        ("mqa", {"to": "mqa"}, "into none"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(name, options, words, unchecked):
    with pytest.raises(ValueError, match=words):
        hs.convert(build(MODELS[name]), **options)


def test_other_variants_are_refused_by_name():
    with pytest.raises(ValueError, match="should be MHA, GQA or MQA but is MLA"):
        hs.convert("mla", rank=2)


def test_the_command_says_what_it_costs(tmp_path):
    (tmp_path / "text.py").write_text("def add(a, b):\n    return a + b\n" * 40)
    arguments = ["convert", "mha", str(tmp_path / "gqa"), "--to", "gqa", "--groups", "2"]
    few = [word for option in ("--calibrate", "--text") for word in (option, str(tmp_path / "text.py"))]
    shown = CliRunner().invoke(app, [*arguments, *few])
    assert shown.exit_code == 0, shown.output
    prose = " ".join(shown.output.split())
    assert "cache a token: 2,048 -> 512 bytes at 2 an element (25.0 %)" in prose
    assert "next-token loss: " in prose
    assert max(map(len, shown.output.splitlines())) <= 100
    assert hs.open_checkpoint(tmp_path / "gqa").config.attention.variant == "gqa"
    again = CliRunner().invoke(app, [*arguments, *few])
    assert again.exit_code == 2
    assert "does not overwrite" in again.stderr


def test_real_layers_reach_the_published_errors(smollm2):
    """SmolLM2 at rank 32: relative squared errors of .020 (V) and .003 (K), the means of layers 0, 5, 15 and 25."""
    model = hs.load(smollm2)
    rows = model.to_tokens((smollm2.parent / "docs" / "report.md").read_text())[:, :512]
    moments = second_moments(model, rows.tolist(), lambda done: None)
    errors = {"k": 0.0, "v": 0.0}
    for layer in (5, 15):
        found = convert_layer(model.attention(layer), moments[layer], target(model.config, "lrkv", rank=32))
        for side in errors:
            errors[side] += found.errors[side]["aligned"] / 2
    assert errors["v"] < 0.020
    assert errors["k"] < 0.003


def test_a_converted_model_reports_ablates_and_generates_like_any_other(tmp_path):
    """Plane-closed keys: coordinates are rotated once as they are kept, and single tokens say what the whole pass says."""
    place = tmp_path / "converted"
    hs.convert("mha", place, rank=6, keys="plane-closed", calibration_samples=2, samples=2)
    assert set(hs.report(place, null=0).table["layer"]) == {0, 1, 2, 3}
    ablated = hs.ablate(place, path="v_private", task="induction", samples=4, layers="3", heads=(0, 1))
    assert len(ablated.table) == 2
    model, prompt = hs.load(place), "import os\nimport"
    assert model.generate(prompt, 8) == model.generate(prompt, 8, use_cache=False)
    found = hs.probe(model, prompt, max_new_tokens=1)
    assert found.table["private_share"].between(0, 1).all()
