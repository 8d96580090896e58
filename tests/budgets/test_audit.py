"""The audit finds what is known not to fit together in the LRKV paper, explains it, and leaves what fits alone."""

from __future__ import annotations

import json
from pathlib import Path

import headscope as hs
import pandas as pd
import pytest
from headscope.budgets.explain import as_ranges


@pytest.fixture(scope="module")
def paper() -> pd.DataFrame:
    return hs.audit().table


def row(table: pd.DataFrame, name: str, variant: str, source: str, check: str) -> pd.Series:
    same = (table["name"] == name) & (table["variant"] == variant) & (table["check"] == check)
    found = table[same & (table["source"] == source)]
    assert len(found) == 1, f"{name} {variant}, {source}: {check} is there {len(found)} times"
    return found.iloc[0]


def audited(tmp_path: Path, **cells: str) -> pd.DataFrame:
    path = tmp_path / "printed.csv"
    filled = {"name": "a", "variant": "lrkv", "source": "here"} | cells
    path.write_text(",".join(filled) + "\n" + ",".join(filled.values()) + "\n")
    return hs.audit(path).table


BY_BYTES, BY_SETTINGS = "cache over MHA's, by bytes", "cache over MHA's, by settings"


@pytest.mark.parametrize(
    ("name", "computed", "trained"), [("128M", "66.667 %", 46), ("2.5B", "55.556 %", 55), ("6.3B", "53.125 %", 54)]
)
def test_printed_bytes_are_not_in_the_printed_ratio_and_fit_rank_64(paper, name, computed, trained):
    found = row(paper, name, "lrkv", "Table 12", BY_BYTES)
    assert (found["verdict"], found["computed"]) == ("contradicts", computed)
    assert f"rank 64 (not {trained} of Table 7)" in found["explanation"]
    assert row(paper, name, "lrkv", "Appendix G.4", BY_SETTINGS)["computed"] == computed


def test_the_2_5b_caches_fit_36_layers_not_18(paper):
    dense = row(paper, "2.5B", "lrkv", "Table 12", "MHA's cache")
    assert (dense["printed"], dense["computed"], dense["verdict"]) == ("648.0 MiB", "324 MiB", "contradicts")
    assert "36 layers (not 18 of Table 5)" in dense["explanation"]
    own = row(paper, "2.5B", "lrkv", "Table 12", "cache")
    assert (own["printed"], own["computed"]) == ("360.0 MiB", "157.21875 MiB")
    assert "36 layers (not 18 of Table 5) and rank 64 (not 55 of Table 7)" in own["explanation"]


def test_the_6_3b_caches_fit_36_layers_not_32(paper):
    found = row(paper, "6.3B", "lrkv", "Table 12", "MHA's cache")
    assert (found["computed"], found["explanation"]) == ("1,024 MiB", "fits 36 layers (not 32 of Table 5)")
    own = row(paper, "6.3B", "lrkv", "Table 12", "cache")
    assert own["explanation"] == "fits 36 layers (not 32 of Table 5) and rank 64 (not 54 of Table 7)"


def test_648_mb_at_8k_computes_to_1296_mib(paper):
    found = row(paper, "2.5B", "mha", "introduction", "cache")
    assert (found["printed"], found["computed"], found["verdict"]) == ("648 MB", "1,296 MiB", "contradicts")
    assert "length 4096 (not 8192)" in found["explanation"]


def test_mla_384_is_printed_with_two_ratios_of_which_one_holds(paper):
    assert row(paper, "MLA-384", "mla", "Table 8", BY_SETTINGS)["verdict"] == "agrees"
    wrong = row(paper, "MLA-384", "mla", "text at Table 8", BY_SETTINGS)
    assert (wrong["computed"], wrong["explanation"]) == ("25.000 %", "fits latent 768 (not 384)")
    twice = row(paper, "MLA-384", "mla", "text at Table 8", "cache over MHA's printed twice")
    assert twice["printed"] == "25 (Table 8), 50 (text at Table 8)"


def test_a_centred_rank_of_six_heads_cannot_exceed_five(paper):
    found = row(paper, "six heads", "", "Figure 9", "centred effective rank")
    assert (found["printed"], found["computed"], found["verdict"]) == (">5", "at most 5", "contradicts")


def test_two_sizes_have_one_row_of_settings_that_computes_to_0_834_billion(paper):
    twins = row(paper, "512M, 1.2B", "mha", "Table 5", "same settings")
    assert twins["verdict"] == "contradicts"
    for name in ("512M", "1.2B"):
        found = row(paper, name, "mha", "Table 5", "parameters")
        assert found["verdict"] == "contradicts"
        assert found["computed"].startswith("0.834 B untied")


def test_the_size_of_2_5b_fits_36_layers_too(paper):
    """18 layers of width 2304 are 1.38 billion parameters; 36 would be 2.53, and would give the printed caches."""
    found = row(paper, "2.5B", "mha", "Table 5", "parameters")
    assert found["computed"].startswith("1.379 B untied")
    assert "34-37 layers (not 18)" in found["explanation"]


@pytest.mark.parametrize(("name", "values"), [("128M", (128, 512)), ("2.5B", (384, 1536)), ("6.3B", (1024, 2048))])
def test_latents_of_table_12_are_not_those_of_table_7(paper, name, values):
    found = row(paper, name, "mla", "Table 12 (implied)", "latent printed twice")
    assert found["printed"] == f"{values[0]} (Table 7), {values[1]} (Table 12 (implied))"


@pytest.mark.parametrize(("name", "rank"), [("128M", 46), ("2.5B", 55), ("6.3B", 54)])
def test_ranks_of_the_appendix_are_not_those_of_table_7(paper, name, rank):
    found = row(paper, name, "lrkv", "Appendix G.4", "rank printed twice")
    assert found["printed"] == f"{rank} (Table 7), 64 (Appendix G.4)"


def test_table_9_implies_8_bytes_a_token_where_others_imply_4_77(paper):
    found = row(paper, "all", "", "Table 9", "bytes a token")
    assert (found["printed"], found["verdict"]) == ("8.00 by its losses", "contradicts")
    for source in ("Table 1", "Table 8"):
        assert row(paper, "all", "", source, "bytes a token")["verdict"] == "agrees"


def test_what_fits_is_left_alone(paper):
    """The rank ablation of Table 8, the 128M cache of MHA and its ratio by settings, and no check more."""
    agreeing = paper[paper["verdict"] == "agrees"]
    where = {(r["name"], r["source"]) for r in agreeing[agreeing["check"] == BY_SETTINGS].to_dict("records")}
    assert where == {
        *((f"128M r{rank}", "Table 8") for rank in (8, 16, 32, 64, 128)),
        ("MLA-384", "Table 8"),
        ("128M", "Table 12"),
    }
    assert row(paper, "128M", "lrkv", "Table 12", "MHA's cache")["verdict"] == "agrees"
    assert row(paper, "128M", "mha", "Table 5", "parameters")["verdict"] == "agrees"
    assert set(paper["verdict"]) == {"agrees", "contradicts"}


def test_a_table_of_ones_own_is_read_with_its_units_and_digits(tmp_path):
    settings = {"layers": "36", "heads": "18", "d_head": "128", "rank": "64", "length": "2048"}
    for text in ("360 MiB", "360.0 MB", "377,487,360", "0.4 GB", "377.5 MB"):
        quoted = {"bytes": f'"{text}"'}
        assert audited(tmp_path, **settings, **quoted)["verdict"].tolist() == ["agrees"], text
    for text in ("361 MiB", "0.5 GB", "377487361"):
        assert audited(tmp_path, **settings, bytes=text)["verdict"].tolist() == ["contradicts"], text


def test_a_batch_of_requests_and_other_elements_count(tmp_path):
    settings = {"layers": "1", "heads": "2", "d_head": "8", "rank": "3", "length": "10"}
    expected = 3 * 4 * 10 * 2 * (8 + 2 * 3)
    found = audited(tmp_path, **settings, requests="3", element_bytes="4", bytes=str(expected))
    assert found["verdict"].tolist() == ["agrees"]


def test_what_is_missing_is_named(tmp_path):
    found = audited(tmp_path, heads="18", d_head="128", bytes="360 MiB", ratio="48.4")
    assert found["verdict"].tolist() == ["cannot be checked"] * 2
    assert found["explanation"].tolist() == ["not known: layers, length, rank", "not known: rank"]


@pytest.mark.parametrize(
    ("cells", "printed", "words"),
    [
        ({"rank": "9"}, "heads 4, d_head 8, rank 9", "integer from 1 to d_head=8"),
        ({"variant": "gqa", "groups": "3"}, "heads 4, d_head 8, groups 3", "should divide n_heads=4"),
    ],
)
def test_settings_that_no_layer_can_have_contradict_themselves(tmp_path, cells, printed, words):
    (found,) = audited(tmp_path, heads="4", d_head="8", ratio="50", **cells).to_dict("records")
    assert (found["check"], found["printed"], found["verdict"]) == ("settings", printed, "contradicts")
    assert words in found["explanation"]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"colour": "red"}, "columns colour that no check reads"),
        ({"variant": "mhha"}, "line 2: variant should be one of mha, gqa"),
        ({"layers": "many"}, "line 2: layers should be an integer > 0 or empty but is 'many'"),
        ({"heads": "0"}, "heads should be an integer > 0"),
        ({"bytes": "3 apples"}, r"line 2: bytes should be a number \(units: B, KB"),
        ({"ratio": "half"}, "line 2: ratio should be a number"),
        ({"layers": "3"}, "prints nothing that can be checked"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path, cells, words):
    with pytest.raises(ValueError, match=words):
        audited(tmp_path, **cells)


def test_a_table_without_names_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("name,bytes\na,3\n")
    with pytest.raises(ValueError, match="lacks the columns variant, source"):
        hs.audit(tmp_path / "t.csv")


def test_runs_are_written_as_ranges():
    assert as_ranges([1, 3, 4, 5, 9, 10]) == "1, 3-5, 9-10"


def test_an_audit_saves_what_it_found(tmp_path):
    result = hs.audit(out=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.csv", "audit.json", "audit.parquet"]
    assert len(json.loads((tmp_path / "audit.json").read_text())["rows"]) == len(result.table)
    assert result.summary() == "11 agrees, 29 contradicts, 0 cannot be checked"
