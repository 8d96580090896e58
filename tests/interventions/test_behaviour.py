"""Measures of routing against loops over heads and queries, and what an edit changes against what it can change."""

from __future__ import annotations

import json
import math

import headscope as hs
import numpy as np
import pytest
import torch
from headscope.cli import app
from headscope.interventions import Scale, Shuffle, Zero, apply, behaviour, patterns
from headscope.interventions.plan import edit_from_text
from typer.testing import CliRunner

TOKENS = torch.tensor([[1, 5, 2, 5, 3, 1, 5, 5], [4, 4, 6, 1, 4, 0, 0, 0]])
VALID = torch.tensor([[True] * 8, [True] * 5 + [False] * 3])


@pytest.fixture(scope="module")
def pattern() -> torch.Tensor:
    torch.manual_seed(0)
    scores = torch.randn(2, 3, 8, 8, dtype=torch.float64).masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -1e9)
    return scores.softmax(-1)


def queries():
    return [(row, query) for row in range(2) for query in range(8) if VALID[row, query]]


def test_entropy_and_distance_by_hand(pattern):
    for head in range(3):
        entropies, distances = [], []
        for row, query in queries():
            weights = [float(pattern[row, head, query, key]) for key in range(query + 1)]
            entropies.append(-sum(w * math.log(w) for w in weights))
            distances.append(sum(w * (query - key) for key, w in enumerate(weights)))
        assert float(patterns.entropy(pattern, VALID)[head]) == pytest.approx(np.mean(entropies))
        assert float(patterns.distance(pattern, VALID)[head]) == pytest.approx(np.mean(distances))


def test_attention_to_chosen_keys_by_hand(pattern):
    rules = {
        "previous": (patterns.previous_keys(VALID), lambda row, q, k: k == q - 1),
        "duplicate": (
            patterns.duplicate_keys(TOKENS, VALID),
            lambda row, q, k: k < q and TOKENS[row, k] == TOKENS[row, q],
        ),
        "induction": (
            patterns.induction_keys(TOKENS, VALID),
            lambda row, q, k: 0 < k < q and TOKENS[row, k - 1] == TOKENS[row, q],
        ),
    }
    for keys, rule in rules.values():
        for head in range(3):
            found = []
            for row, query in queries():
                chosen = [key for key in range(8) if VALID[row, key] and rule(row, query, key)]
                if chosen:
                    found.append(sum(float(pattern[row, head, query, key]) for key in chosen))
            assert found
            assert float(patterns.mass(pattern, keys, VALID)[head]) == pytest.approx(np.mean(found))
    nothing = patterns.duplicate_keys(torch.arange(8)[None], VALID[:1])
    assert patterns.mass(pattern[:1], nothing, VALID[:1]).isnan().all()


def test_agreement_is_what_two_heads_share(pattern):
    found = patterns.agreement(pattern, VALID)
    by_hand = np.mean([float(torch.minimum(pattern[r, 0, q], pattern[r, 2, q]).sum()) for r, q in queries()])
    assert float(found[0, 2]) == pytest.approx(by_hand)
    assert torch.equal(found.diagonal(), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found, found.T)


def test_debiased_cka_is_one_for_turned_copies_and_unbiased_for_strangers():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 40, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64))[0]
    found = patterns.debiased_cka(torch.stack((x, 3 * x @ turn + 5)))
    torch.testing.assert_close(found, torch.ones(2, 2, dtype=torch.float64))
    strangers = torch.randn(60, 20, 40, generator=generator, dtype=torch.float64)
    off = patterns.debiased_cka(strangers)[~torch.eye(60, dtype=torch.bool)]
    assert abs(float(off.mean())) < 0.01  # the plain one is about 0.65 here
    centred = strangers - strangers.mean(1, keepdim=True)
    plain = centred @ centred.transpose(1, 2)
    plain = (plain[0] * plain[1]).sum() / (plain[0].norm() * plain[1].norm())
    assert float(plain) > 0.5
    constant = torch.stack((x, torch.ones_like(x)))
    assert patterns.debiased_cka(constant)[0, 1].isnan()
    with pytest.raises(ValueError, match="at least 4 samples"):
        patterns.debiased_cka(torch.randn(2, 3, 5))


def test_debiased_hsic_by_its_definition():
    """Song et al.'s U-statistic: the mean over all ordered quadruples of distinct samples."""
    from itertools import permutations

    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    first, second = (z @ z.T for z in (x, y))

    def hsic(a, b) -> float:
        terms = [
            float(a[i, j] * (b[i, j] + b[q, r] - 2 * b[i, q])) for i, j, q, r in permutations(range(6), 4)
        ]  # fmt: skip
        return float(np.mean(terms))

    expected = hsic(first, second) / math.sqrt(hsic(first, first) * hsic(second, second))
    assert float(patterns.debiased_cka(torch.stack((x, y)))[0, 1]) == pytest.approx(expected)


ATTENTION = {
    "gqa": hs.GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6),
    "mla": hs.MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3),
    "lrkv": hs.LRKVConfig(n_heads=4, d_head=6, rank=2),
}
ROWS = [[1, 5, 2, 5, 3, 1, 5, 5], [4, 4, 6, 1, 4], [2, 2, 2, 6, 0, 1]]


@pytest.fixture(params=ATTENTION)
def model(request) -> hs.HookedModel:
    torch.manual_seed(0)
    config = hs.ModelConfig(d_model=16, n_layers=2, d_vocab=7, n_ctx=16, attention=ATTENTION[request.param])
    return hs.HookedModel(config).double().eval()


def test_batches_and_pads_do_not_matter(model):
    one, all_at_once = (behaviour(model, ROWS, batch_size=size).table for size in (1, 3))
    np.testing.assert_allclose(one, all_at_once, rtol=1e-9)


def test_an_edit_of_values_changes_what_and_of_queries_where(model):
    values = behaviour(model, ROWS, edit=Shuffle(path="v", layers=(1,))).table
    queries = behaviour(model, ROWS, edit=Scale(path="q", layers=(1,), factor=0.1)).table
    untouched = values["layer"] == 0
    for table, changed, same in ((values, "what", "where"), (queries, "where", "what")):
        assert (table.loc[~untouched, changed] > 0.01).all()
        np.testing.assert_allclose(table.loc[~untouched, same], 0, atol=1e-9)
        np.testing.assert_allclose(table.loc[untouched, ["where", "what"]], 0, atol=1e-9)
    np.testing.assert_allclose(values["entropy_edited"], values["entropy"], rtol=1e-9)
    assert (queries.loc[~untouched, "entropy_edited"] > queries.loc[~untouched, "entropy"]).all()


@torch.no_grad()
def test_changes_by_hand():
    model = built_lrkv()
    edit = Zero(path="v_private", layers=(0,), heads=(1,))
    table = behaviour(model, ROWS[:1], edit=edit).table
    tokens = torch.tensor(ROWS[:1])
    _, before = model.run_with_cache(tokens)
    with apply(model, edit):
        _, after = model.run_with_cache(tokens)
    layer, head = 1, 2
    a, b = (c[f"blocks.{layer}.attn.hook_pattern"][0, head] for c in (before, after))
    v, w = (c[f"blocks.{layer}.attn.hook_v"][0, :, head] for c in (before, after))
    out = model.attention(layer).W_O[head]
    row = table[(table["layer"] == layer) & (table["head"] == head)].iloc[0]
    assert row["where"] == pytest.approx(float((((b - a) @ v) @ out).norm() / ((a @ v) @ out).norm()))
    assert row["what"] == pytest.approx(float(((b @ (w - v)) @ out).norm() / ((a @ v) @ out).norm()))


def test_a_silenced_head_brings_something_else():
    model = built_lrkv()
    table = behaviour(model, ROWS, edit=Zero(path="z", layers=(0,), heads=(1,))).table
    row = table[(table["layer"] == 0) & (table["head"] == 1)].iloc[0]
    assert row["what"] == pytest.approx(1.0)
    assert row["where"] == 0
    assert math.isnan(row["cka_edited"])


def test_a_text_of_three_tokens_has_no_cka():
    table = behaviour(built_lrkv(), [[1, 2, 3]]).table
    assert table["cka"].isna().all()
    assert table["entropy"].notna().all()


def built_lrkv() -> hs.HookedModel:
    torch.manual_seed(1)
    config = hs.ModelConfig(d_model=16, n_layers=2, d_vocab=7, n_ctx=16, attention=ATTENTION["lrkv"])
    return hs.HookedModel(config).double().eval()


def test_a_layer_below_zero_is_no_range():
    with pytest.raises(IndexError, match="layer -1 does not exist"):
        edit_from_text("zero:z:-1", ((1,),), 2)


def test_rows_that_do_not_fit_are_refused(model):
    for rows, words in (
        ([], "at least one token"),
        ([[1], []], "at least one token"),
        ([[1] * 17], "at most n_ctx 16"),
    ):
        with pytest.raises(ValueError, match=words):
            behaviour(model, rows)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shuffle:v_private", Shuffle(path="v_private")),
        ("shuffle-past:k:1", Shuffle(path="k", among="past", layers=(1,))),
        ("zero:z:0-1:2,3", Zero(path="z", layers=(0, 1), heads=(2, 3))),
    ],
)
def test_edits_are_read_from_text(text, expected):
    assert edit_from_text(text, ((1,),), 2) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shuffle", "HOW:PATH"),
        ("zero:z:0:1:2", "HOW:PATH"),
        ("shake:z", "how should be one of"),
        ("zero:keys", "path should be one of"),
        ("zero:z:9", "choose none of 0–1"),
        ("zero:z:x", "layers should be like"),
        ("zero:z:0:a", "heads of the edit should be numbers"),
    ],
)
def test_text_that_is_no_edit_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        edit_from_text(text, ((1,),), 2)


def test_the_report_says_what_heads_do_on_a_text(tmp_path):
    from headscope.training import build
    from headscope.training.tokens import train_tokenizer

    text = "import os\nimport sys\n\n\ndef f(x):\n    return os.path.join(x, sys.path[0])\n"
    torch.manual_seed(0)
    hs.save(hs.HookedModel(build("lrkv", "tiny"), train_tokenizer([text], 300)), tmp_path / "model")
    (tmp_path / "text.py").write_text(text)
    arguments = ["report", str(tmp_path / "model"), "--null", "1", "--text", str(tmp_path / "text.py")]
    shown = CliRunner().invoke(app, [*arguments, "--edit", "shuffle:v_private:0:1", "--out", str(tmp_path / "out")])
    assert shown.exit_code == 0, shown.output
    assert "before → after the edit" in shown.output
    assert max(len(line) for line in shown.output.splitlines() if not line.startswith("wrote ")) <= 100
    assert {"behaviour.csv", "where.png", "what.png", "report.json"} <= {p.name for p in (tmp_path / "out").iterdir()}
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert data["record"]["kind"] == "effective-rank report"
    assert len(data["behaviour"]["rows"]) == 8
    for wrong, words in (
        (["report", "--edit", "zero:z"], "give one with --text"),
        ([*arguments, "--edit", "z"], "HOW:PATH"),
    ):
        result = CliRunner().invoke(app, wrong)
        assert result.exit_code == 2
        assert words in result.output
