"""The report: published values on the real checkpoint, files that hold what is shown, bad input refused."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from csv import DictReader
from dataclasses import replace

import headscope as hs
import numpy as np
import pandas as pd
import pytest
import torch
from headscope.diversity import cosine, gram, measure
from headscope.diversity.null import random_factors
from headscope.diversity.result import COLUMNS, _differs
from headscope.diversity.settings import Settings
from headscope.models import GroupedConfig, LayerChanges, LRKVConfig, MLAConfig, Rotary
from headscope.models.attention import build_attention
from headscope.models.layers import parse_layers
from matplotlib.figure import Figure


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@pytest.fixture
def model(build) -> hs.HookedModel:
    return build(GroupedConfig(n_heads=6, n_kv_heads=2, d_head=4), d_model=24, n_layers=3)


def test_table_has_the_stated_columns_and_one_row_a_layer_and_circuit(model):
    table = hs.report(model, null=3).table
    assert list(table.columns) == list(COLUMNS)
    assert table[["layer", "circuit"]].to_numpy().tolist() == [[layer, c] for layer in range(3) for c in ("qk", "ov")]
    np.testing.assert_allclose(table["erank_pct_heads"], 100 * table["erank"] / 6)
    np.testing.assert_allclose(table["erank_centred_pct_heads"], 100 * table["erank_centred"] / 6)
    np.testing.assert_allclose(table["erank_centred_pct_cap"], 100 * table["erank_centred"] / 5)
    assert (table["null_low"] <= table["null_mean"]).all()
    assert (table["null_mean"] <= table["null_high"]).all()


def test_values_are_those_of_forms_written_out(model):
    """Effective rank from d_model x d_model matrices and an SVD, as the paper defines it."""
    result = hs.report(model, circuit="qk", null=0)
    for layer in range(3):
        attn, gain = model.attention(layer), model.layers[layer].ln1.w
        wq, wk = attn.W_Q * gain[:, None], attn.W_K[[0, 0, 0, 1, 1, 1]] * gain[:, None]
        forms = (wq @ wk.transpose(1, 2)).flatten(1)
        forms = forms / forms.norm(dim=1, keepdim=True)
        for rows, column in ((forms, "erank"), (forms - forms.mean(0), "erank_centred")):
            p = torch.linalg.svdvals(rows.detach()) ** 2
            p = p[p > 1e-14] / p.sum()
            expected = math.exp(-(p * p.log()).sum())
            assert result.table[column][layer] == pytest.approx(expected, rel=1e-9)


def test_the_real_checkpoint_has_the_published_means(smollm2):
    """Means over SmolLM2's layers of uncentred/H, centred/H and centred/(H-1), to 4 digits."""
    at_zero = hs.report(smollm2, offsets=0, null=3)
    averaged = hs.report(smollm2, circuit="qk", offsets="0:255", null=0)
    names = ["erank_pct_heads", "erank_centred_pct_heads", "erank_centred_pct_cap"]
    found = {
        "qk": at_zero.means().set_index("circuit").loc["qk", names],
        "qk, offsets 0:255": averaged.means().set_index("circuit").loc["qk", names],
        "ov": at_zero.means().set_index("circuit").loc["ov", names],
    }
    expected = {
        "qk": [0.8966, 0.8301, 0.9338],
        "qk, offsets 0:255": [0.8937, 0.8253, 0.9284],
        "ov": [0.8930, 0.8118, 0.9132],
    }
    for name, values in expected.items():
        assert np.round(found[name].to_numpy(dtype=float) / 100, 4).tolist() == values, name
    assert (at_zero.table["erank"] < at_zero.table["null_low"]).all()
    assert at_zero.record["checkpoint"]["stored_dtypes"] == ["F32", "Q4_1", "Q8_0"]


@pytest.mark.parametrize(
    "attention",
    [
        GroupedConfig(n_heads=6, d_head=16),
        GroupedConfig(n_heads=6, n_kv_heads=2, d_head=16),
        GroupedConfig(n_heads=6, n_kv_heads=1, d_head=16),
        LRKVConfig(n_heads=6, d_head=16, rank=4),
        MLAConfig(n_heads=6, d_latent=24, d_nope=16, d_rope=8, d_value_head=16, d_q_latent=48),
    ],
    ids=lambda config: config.variant,
)
def test_every_variant_starts_at_its_cap(attention):
    """At random initialisation queries alone decorrelate the forms: 100.0 % of the cap for all five variants."""
    torch.manual_seed(0)
    config = hs.ModelConfig(d_model=384, n_layers=1, d_vocab=7, n_ctx=8, attention=attention)
    table = hs.report(hs.HookedModel(config), circuit="qk", null=2).table
    part = table[table["part"].isin(["all", "content"])].iloc[0]
    assert part["erank_pct_heads"] == pytest.approx(100, abs=0.25)
    assert part["erank_centred_pct_cap"] == pytest.approx(100, abs=0.25)


def test_files_hold_the_shown_values_in_full_precision(model, tmp_path):
    result = hs.report(model, null=2, out=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "report.json",
        "report.csv",
        "report.parquet",
        "heatmap.png",
        "effective-rank.png",
        "spectra.png",
        "spectra-centred.png",
    }
    rows = pd.DataFrame(json.loads((tmp_path / "report.json").read_text())["rows"])
    with (tmp_path / "report.csv").open(newline="") as handle:
        csv = pd.DataFrame([{key: _number(value) for key, value in row.items()} for row in DictReader(handle)])
    parquet = pd.read_parquet(tmp_path / "report.parquet")
    for read in (rows, csv, parquet):
        pd.testing.assert_frame_equal(read, result.table, check_dtype=False, check_exact=True)


def test_json_is_strict_and_says_why_a_value_is_missing(build, tmp_path):
    model = build(GroupedConfig(n_heads=4, n_kv_heads=1, d_head=4), "none", n_layers=2)
    with torch.no_grad():
        model.attention(0).W_Q[1:] = model.attention(0).W_Q[0]
        model.attention(1).W_Q[2] = 0
    result = hs.report(model, circuit="qk", null=0, out=tmp_path)

    def refuse(name):
        raise AssertionError(f"{name} in a JSON file")

    rows = json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)["rows"]
    assert rows[0]["erank"] == pytest.approx(1.0)
    assert rows[0]["erank_centred"] is None
    assert rows[0]["status"] == "degenerate: all heads have the same form, so nothing is left once centred"
    assert rows[1]["erank"] is None
    assert rows[1]["status"] == "degenerate: the form of head 2 is zero"
    assert "no null" in result.record["null"]["reason"]
    assert "degenerate" in (tmp_path / "report.csv").read_text()


def test_the_record_says_what_was_measured(model):
    record = hs.report(model, offsets="0:7", definition="roy", null=2, fold_norm=False, layers=[1]).record
    assert record["offsets"] == {"text": "0:7", "first": 0, "last": 7, "positions": "rotary"}
    assert record["definition"] == "roy"
    assert record["norm_gains_folded"] is False
    assert record["null"]["seeds"] == [0, 1]
    assert len(record["null"]["erank"]["qk/all"]) == 2
    assert record["layers"] == [1]
    assert hs.ModelConfig.from_dict(record["config"]) == model.config
    assert len(record["checkpoint"]["sha256"]) == 64
    assert {"headscope", "torch", "numpy"} <= record["versions"].keys()


def test_a_report_repeats_itself_to_the_byte_and_leaves_the_random_state_alone(model):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = hs.report(model, null=3).to_json()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert hs.report(model, null=3).to_json() == first


def test_disk_and_memory_give_the_same_report(model, tmp_path):
    hs.save(model, tmp_path / "saved")
    on_disk, in_memory = hs.report(tmp_path / "saved", null=2), hs.report(model, null=2)
    pd.testing.assert_frame_equal(on_disk.table, in_memory.table, check_exact=True)
    pd.testing.assert_frame_equal(hs.report(hs.open_checkpoint(tmp_path / "saved"), null=2).table, on_disk.table)


def test_bfloat16_weights_are_measured_as_their_upcast(model):
    half = model.bfloat16()
    low = hs.report(half, null=0).table
    pd.testing.assert_frame_equal(low, hs.report(half.double(), null=0).table, check_exact=True)


def test_folding_and_offsets_matter(model):
    plain, unfolded = hs.report(model, null=0), hs.report(model, null=0, fold_norm=False)
    assert not np.allclose(plain.table["erank"], unfolded.table["erank"], rtol=1e-4)
    ignored, far = hs.report(model, offsets="none", null=0), hs.report(model, offsets=9, null=0)
    pd.testing.assert_frame_equal(plain.table, ignored.table, rtol=1e-9)
    qk = plain.table["circuit"] == "qk"
    assert not np.allclose(plain.table["erank"][qk], far.table["erank"][qk], rtol=1e-4)
    np.testing.assert_array_equal(plain.table["erank"][~qk], far.table["erank"][~qk])


def test_nan_weights_are_named(model):
    with torch.no_grad():
        model.attention(1).W_K[1, 3, 2] = math.nan
    with pytest.raises(ValueError, match=r"layer 1, group 1, W_K holds 1 values that are NaN"):
        hs.report(model, null=0)


def test_mla_reports_its_parts_apart_and_jointly(build):
    model = build(MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3), Rotary())
    result = hs.report(model, null=2)
    assert result.table["part"].tolist() == ["content", "position", "joint", "content_d_model", "all"]
    content, position, joint = (result.similarity["qk", part, 0] for part in ("content", "position", "joint"))
    low, high = np.minimum(content, position), np.maximum(content, position)
    assert not np.allclose(joint, content)
    # A joint cosine mixes the parts' cosines with weights that sum to at most 1.
    assert (np.abs(joint) <= np.maximum(np.abs(low), np.abs(high)) + 1e-12).all()
    assert any("scalar a token" in note for note in result.record["notes"])


def test_reading_says_where_the_numbers_lie_against_the_null(model):
    assert "No null was drawn" in hs.report(model, null=0).reading()
    torch.manual_seed(0)
    fresh = hs.HookedModel(model.config)
    assert hs.report(fresh, null=40).reading().count("are no evidence of specialised heads") == 2
    with torch.no_grad():
        model.attention(0).W_Q[1] = model.attention(0).W_Q[0]
    below = hs.report(model, circuit="qk", layers=[0], null=20).reading()
    assert re.fullmatch(r"QK: 1 of 1 layer below random ones of .* by \S+ heads on average: .* more alike\.", below)


def test_the_reading_calls_a_random_model_different_as_seldom_as_it_says():
    """Twelve layers that are draws of the null, against 20 others, over and over: some is called in about 5 % of cases."""
    config = hs.ModelConfig(
        d_model=48, n_layers=12, d_vocab=5, n_ctx=8, attention=GroupedConfig(n_heads=6, d_head=8), positions="none"
    )
    ranks = np.array(
        [
            measure(cosine(gram(factors.circuits["qk"]["all"], None).numpy())).erank
            for factors in (random_factors(config, seed) for seed in range(600))
        ]
    )
    rng = np.random.default_rng(0)
    called = 0
    for _ in range(300):
        drawn = 6 - rng.choice(ranks, 32, replace=False)
        called += bool(_differs(drawn[:12], drawn[12:]).any())
    assert 0.01 < called / 300 < 0.1
    assert _differs(np.array([6 - 5.0]), 6 - ranks[:20]).all()


def test_progress_counts_every_step(model):
    steps = []
    hs.report(model, null=2, progress=lambda done, total, what: steps.append((done, total, what)))
    assert [done for done, _, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in steps} == {6}
    assert [what for _, _, what in steps] == ["hash", "null 0", "null 1", "layer 0", "layer 1", "layer 2"]


KILLED = """
import os, signal, sys
import headscope as hs

def stop(done, total, what):
    if what == "layer 1":
        os.kill(os.getpid(), signal.SIGKILL)

hs.report(sys.argv[1], null=2, offsets=3, out=sys.argv[2], progress=stop)
"""


def test_a_killed_report_goes_on_and_reads_nothing_twice(model, tmp_path):
    hs.save(model, tmp_path / "saved")
    out, whole = tmp_path / "out", hs.report(tmp_path / "saved", null=2, offsets=3)
    line = [sys.executable, "-c", KILLED, str(tmp_path / "saved"), str(out)]
    killed = subprocess.run(line, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    pieces = {path.name for path in (out / "unfinished").glob("*.npz")}
    assert pieces == {"null-0000-0000.npz", "null-0000-0001.npz", "layer-0000.npz", "layer-0001.npz"}

    with pytest.raises(hs.HeadscopeError, match=r"unfinished report whose offsets\.text is 3, not 4"):
        hs.report(tmp_path / "saved", null=2, offsets=4, out=out)
    other = hs.HookedModel(model.config)
    with pytest.raises(hs.HeadscopeError, match=r"whose checkpoint\.path is .*saved, not None"):
        hs.report(other, null=2, offsets=3, out=out)
    opened = hs.open_checkpoint(tmp_path / "saved")
    read = opened.factors
    layers = []
    opened.factors = lambda layer, fold_norm: layers.append(layer) or read(layer, fold_norm=fold_norm)
    resumed = hs.report(opened, null=2, offsets=3, out=out)
    assert layers == [2]
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)
    assert resumed.record == whole.record
    assert all(np.array_equal(resumed.similarity[key], matrix) for key, matrix in whole.similarity.items())
    assert not (out / "unfinished").exists()


def test_figures_come_from_the_same_result(model):
    result = hs.report(model, null=2)
    assert len(result.plot().axes) >= 2
    assert len(result.plot_similarity().axes) >= 6
    assert len(result.plot_spectra(layers=[0]).axes) == 4
    figure = Figure()
    assert result.plot(ax=figure.subplots(1, 2)) is figure
    assert {len(ax.lines) > 0 for ax in figure.axes} == {True}
    with pytest.raises(IndexError, match="layer 9 does not exist"):
        result.plot_similarity(layers=[9])
    assert "<table" in result._repr_html_()
    assert "effective rank" in repr(result)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"circuit": "kq"}, ValueError, "circuit should be one of"),
        ({"definition": "sigma"}, ValueError, "definition should be one of"),
        ({"offsets": "9:1"}, ValueError, "offsets should be"),
        ({"layers": "3"}, IndexError, "layers 0–2"),
        ({"layers": "2:1"}, ValueError, "choose none"),
        ({"layers": "a"}, ValueError, "layers should be like"),
        ({"null": -1}, ValueError, "null should be"),
        ({"layers": "0:99999999999"}, IndexError, "layer 3 does not exist"),
        ({"offsets": "3:"}, ValueError, "offsets should be"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_options_are_refused(model, options, error, words):
    with pytest.raises(error, match=words):
        hs.report(model, **options)


def by_hand(forms: torch.Tensor, definition: str) -> dict[str, float]:
    """Every measured column from forms written out ``[head, d * d]``, with numpy and an SVD alone."""
    rows = forms / forms.norm(dim=1, keepdim=True)
    heads = len(rows)
    power = {"gram": 2, "roy": 1}[definition]

    def erank(matrix: torch.Tensor) -> float:
        sigma = torch.linalg.svdvals(matrix)
        sigma = sigma[sigma > 1e-7]
        p = sigma**power / (sigma**power).sum()
        return math.exp(-float((p * p.log()).sum()))

    centred = rows - rows.mean(0)
    eigs = torch.linalg.svdvals(centred) ** 2
    total = float(eigs.sum())
    return {
        "erank": erank(rows),
        "erank_centred": erank(centred),
        "erank_pct_heads": 100 * erank(rows) / heads,
        "erank_centred_pct_heads": 100 * erank(centred) / heads,
        "erank_centred_pct_cap": 100 * erank(centred) / (heads - 1),
        "participation_ratio": total**2 / float((eigs**2).sum()),
        "stable_rank": total / float(eigs[0]),
        "components_90": 1 + sum(float(eigs[:k].sum()) < 0.9 * total for k in range(1, heads)),
        "first_component": float(eigs[0]) / total,
        "mean_similarity": float((rows @ rows.T).sum() - heads) / (heads * (heads - 1)),
    }


def forms_by_hand(model: hs.HookedModel, layer: int, circuit: str, fold: bool) -> torch.Tensor:
    attn, norm = model.attention(layer), model.layers[layer].ln1
    d = model.config.d_model
    # What the norm lets through: the gain, and for LayerNorm nothing along the all-ones direction.
    through = torch.eye(d, dtype=torch.float64)
    if fold and norm.centred:
        through = through - 1 / d
    if fold:
        through = through @ torch.diag(norm.w.detach())
    groups = attn.head_to_group
    if circuit == "qk":
        forms = (through @ attn.W_Q) @ (through @ attn.W_K[groups]).transpose(1, 2)
    else:
        forms = (through @ attn.W_V[groups]) @ attn.W_O
    return forms.flatten(1).detach()


@pytest.mark.parametrize("definition", ["gram", "roy"])
@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_every_column_is_what_it_says(build, definition, fold, norm):
    """All measures and all null columns, recomputed from forms written out, per circuit."""
    model = build(GroupedConfig(n_heads=6, n_kv_heads=2, d_head=4), "none", norm, d_model=20, n_layers=2)
    table = hs.report(model, definition=definition, fold_norm=fold, null=4).table
    for row in table.to_dict("records"):
        expected = by_hand(forms_by_hand(model, row["layer"], row["circuit"], fold), definition)
        for column, value in expected.items():
            assert row[column] == pytest.approx(value, rel=1e-7), column
        draws = []
        for seed in range(4):
            torch.manual_seed(seed)
            fresh = build(model.config.attention, "none", norm, d_model=20, n_layers=1)
            torch.manual_seed(seed)
            attention = build_attention(model.config.attention, 20, None).double()
            fresh.blocks[0].attn = attention
            torch.nn.init.ones_(fresh.blocks[0].ln1.w)
            draws.append(by_hand(forms_by_hand(fresh, 0, row["circuit"], fold), definition))
        erank, centred = ([d[name] for d in draws] for name in ("erank", "erank_centred"))
        # The null's weights are drawn in float32.
        assert row["null_mean"] == pytest.approx(np.mean(erank), rel=1e-5)
        assert row["null_low"] == pytest.approx(min(erank), rel=1e-5)
        assert row["null_high"] == pytest.approx(max(erank), rel=1e-5)
        assert row["null_centred_mean"] == pytest.approx(np.mean(centred), rel=1e-5)


def test_summary_counts_only_what_was_measured(build):
    model = build(GroupedConfig(n_heads=4, d_head=4), "none", n_layers=3)
    with torch.no_grad():
        model.attention(0).W_Q[2] = 0
        model.attention(1).W_Q[1:], model.attention(1).W_K[1:] = model.attention(1).W_Q[0], model.attention(1).W_K[0]
    summary = hs.report(model, circuit="qk", null=0).summary()
    assert summary.startswith("QK, mean of 2 layers: effective rank ")
    assert "centred (mean of 1 layer)" in summary
    assert "no layer has one" in hs.report(model, circuit="qk", null=0, layers=[1]).summary()
    assert "no layer could be measured" in hs.report(model, circuit="qk", null=0, layers=[0]).summary()
    assert "nan" not in hs.report(model, null=2).to_json()


def test_one_draw_has_no_range(model):
    assert "single draw" in hs.report(model, null=1).reading()


def test_rows_of_the_papers_table_rise_when_their_own_cap_is_the_denominator():
    """Centred % of H (18 heads) as printed, over H - 1: MHA 94.0 -> 99.5 and so on; every row then rises."""
    printed = {"MHA": (98.9, 94.0), "LRKV": (98.3, 93.5), "GQA": (95.4, 91.7), "MLA": (92.7, 91.6), "MQA": (86.2, 91.0)}
    over_cap = {"MHA": 99.5, "LRKV": 99.0, "GQA": 97.1, "MLA": 97.0, "MQA": 96.4}
    for name, (uncentred, centred) in printed.items():
        assert round(centred * 18 / 17, 1) == over_cap[name]
        assert over_cap[name] > uncentred


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_reported_on_is_named():
    with pytest.raises(ValueError, match="source should be a path"):
        hs.report(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:2", [0, 1, 2]), ("4", [4]), ("0,3,1", [0, 1, 3]), ("3:", [3, 4]), (":1", [0, 1]), (None, [0, 1, 2, 3, 4])],
)
def test_layers_are_read_with_both_ends(text, expected):
    assert parse_layers(text, 5) == expected


def test_layers_with_positions_of_their_own_have_a_null_of_their_own():
    heads = hs.GroupedConfig(n_heads=4, n_kv_heads=2, d_head=8)
    local = LayerChanges(attention=replace(heads, window=4), positions=Rotary(base=20.0))
    config = hs.ModelConfig(d_model=16, n_layers=3, d_vocab=9, n_ctx=8, attention=heads, by_layer=(local, None, local))
    result = hs.report(hs.HookedModel(config), circuit="qk", offsets="0:9", null=3)
    settings = Settings.parse("qk", "0:9", "gram", 3, True)
    means = []
    for layer in range(3):
        draws = [
            measure(settings.similarities(factors)["qk", "all"]).erank
            for factors in (random_factors(config.at(layer), seed) for seed in range(3))
        ]
        means.append(np.mean(draws))
    assert result.table["null_mean"].tolist() == pytest.approx(means, rel=1e-12)
    assert means[0] == means[2] != means[1]
    assert [kind["layers"] for kind in result.record["null"]["others"]] == [[1]]
    assert "QK" in result.reading()
