"""Decoding by torch against float64 straight from the formulas, and both against the toys worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from headscope.kernels import KeyPart, Pages, Probes, Problem, Turn, ValuePart, decode
from hypothesis import given, settings
from hypothesis import strategies as st

from .problems import KINDS, problem, spans_for

D = torch.float64


def compare(found, wanted, tolerance):
    """Compare two results; the tolerance is absolute below 1 and relative above."""

    def close(name, mine, truth):
        torch.testing.assert_close(
            mine.double().cpu(), truth, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}"
        )

    for i, (mine, truth) in enumerate(zip(found.values, wanted.values, strict=True)):
        close(f"value part {i}", mine, truth)
    close("lse", found.lse, wanted.lse)
    assert (found.probes is None) == (wanted.probes is None)
    if wanted.probes is not None:
        for name in ("entropy", "distance", "score", "score_everywhere", "top_weights", "span_mass"):
            close(name, getattr(found.probes, name), getattr(wanted.probes, name))
        assert torch.equal(found.probes.top_positions.cpu(), wanted.probes.top_positions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(17, 1, 70), (16,), (700, 33)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_torch_gives_what_the_formulas_give(kind, lengths, dtype):
    step = problem(kind, lengths, dtype=dtype)
    probes = Probes(top=3, spans=spans_for(lengths))
    found = decode(step, probes, path="torch")
    assert found.path == "torch"
    compare(found, decode(step, probes, path="reference"), 1e-12 if dtype == D else 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_pages_in_order_are_read_in_place(kind):
    step = problem(kind, (200,), dtype=D, in_order=True)
    compare(decode(step, path="torch"), decode(step, path="reference"), 1e-12)


@pytest.mark.parametrize("kind", ["mha", "lrkv", "lrkv-turned", "mla"])
def test_half_precision_rows_are_computed_with_in_float32(kind):
    step = problem(kind, (40, 9), dtype=torch.bfloat16)
    compare(decode(step, path="torch"), decode(step, path="reference"), 1e-5)


@given(
    st.lists(st.integers(1, 90), min_size=1, max_size=4),
    st.sampled_from(KINDS),
    st.sampled_from([1, 3, 5]),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_lengths_ranks_and_pages(lengths, kind, rank, seed):
    step = problem(kind, tuple(lengths), rank=rank, page=7, dtype=D, seed=seed)
    probes = Probes(top=2, spans=spans_for(tuple(lengths)))
    compare(decode(step, probes, path="torch"), decode(step, probes, path="reference"), 1e-11)


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


def one_request(keys, values, scale=1.0):
    """Return a decode step of one request on one page: parts as (q [head, w], rows [pos, group, w])."""
    length = len(values[0])
    pages = Pages(torch.zeros(1, 1, dtype=torch.long), torch.tensor([length]))
    key_parts = tuple(
        KeyPart(f"k{i}", q[None], rows.movedim(1, 0)[:, None], *turn) for i, (q, rows, *turn) in enumerate(keys)
    )
    value_parts = tuple(ValuePart(f"v{i}", rows.movedim(1, 0)[:, None]) for i, rows in enumerate(values))
    return Problem(key_parts, value_parts, pages, scale)


BOTH = pytest.mark.parametrize("path", ["reference", "torch"])


@BOTH
def test_key_toy_scores_nine(path):
    """q=(2,1), s=(1,3), z=4, B=(1,-1)^T: k=(5,-1), score 9 = 5 + 1*4; against a second position that scores 0."""
    q, absorbed = row(2, 1)[None], (row(2, 1) @ row(1, -1))[None, None]
    shared, private = torch.stack([row(1, 3), row(0, 0)])[:, None], row(4, 0)[:, None, None]
    step = one_request([(q, shared), (absorbed, private)], [torch.eye(2, dtype=D)[:, None]])
    found = decode(step, Probes(top=0), path=path)
    weight = row(9, 0).softmax(-1)
    torch.testing.assert_close(found.values[0][0, 0], weight)
    torch.testing.assert_close(found.probes.score[0, 0], weight[0] * row(5, 4))
    torch.testing.assert_close(found.probes.score_everywhere[0, 0], row(2.5, 2))


@BOTH
def test_value_toy_reduces_before_anyone_expands(path):
    """Weights 1/4, 3/4 over private coordinates 2, 6 -> 5, and 5 (1, -1) = (5, -5)."""
    keys = [(row(1)[None], torch.stack([row(0), row(math.log(3))])[:, None])]
    found = decode(one_request(keys, [row(2, 6)[:, None, None]]), path=path)
    torch.testing.assert_close(found.values[0][0, 0] * row(1, -1), row(5, -5))


@BOTH
def test_parts_meet_before_the_softmax(path):
    """Logits (2,0) and (0,2): merged (0.5, 0.5); softmaxed apart (0.881, 0.119) and (0.119, 0.881)."""
    keys = [(row(1)[None], row(2, 0)[:, None, None]), (row(1)[None], row(0, 2)[:, None, None])]
    found = decode(one_request(keys, [torch.eye(2, dtype=D)[:, None]]), path=path)
    torch.testing.assert_close(found.values[0][0, 0], row(0.5, 0.5))
    assert round(float(row(2, 0).softmax(-1)[0]), 3) == 0.881


@BOTH
def test_coordinates_are_restored_before_they_are_rotated(path):
    """B=(1,0)^T at a quarter turn: the key is (0, 1), the query (0, 1) scores 1; no rotated coordinate could."""
    turn = Turn(row(1, 0)[None, :, None], row(math.pi / 2).float(), torch.tensor([0]), torch.tensor([1]))
    keys = [(row(0, 1)[None], row(1, 1)[:, None, None], turn)]
    found = decode(one_request(keys, [torch.eye(2, dtype=D)[:, None]]), path=path)
    torch.testing.assert_close(found.values[0][0, 0], row(0, 1).softmax(-1), rtol=0, atol=1e-7)


@BOTH
def test_one_token_gets_all_the_weight(path):
    step = problem("lrkv", (1,), dtype=D)
    found = decode(step, Probes(top=3), path=path)
    only = step.values[0].rows[0, int(step.pages.table[0, 0]), 0]
    torch.testing.assert_close(found.values[0][0], only.expand(6, -1))
    assert found.probes.top_positions[0].tolist() == [[0, -1, -1]] * 6
    torch.testing.assert_close(found.probes.entropy, torch.zeros(1, 6, dtype=D), rtol=0, atol=1e-12)


@BOTH
def test_shared_and_private_keys_that_nearly_cancel_lose_nothing(path):
    """Shared scores of a thousand against private ones of minus a thousand: what is left decides, and is kept."""
    generator = torch.Generator().manual_seed(0)
    big, small = torch.randn(2, 30, 1, 1, generator=generator, dtype=D)
    keys = [(row(1000)[None], big), (row(-1000)[None], big - small / 1000)]
    found = decode(one_request(keys, [torch.eye(30, dtype=D)[:, None]]), path=path)
    torch.testing.assert_close(found.values[0][0, 0], small.flatten().softmax(-1), rtol=0, atol=1e-12)


def test_a_path_that_does_not_exist_is_refused(unchecked):
    with pytest.raises(ValueError, match="path should be one of"):
        decode(problem("mha"), path="cuda")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: Problem(s.keys, s.values, Pages(s.pages.table, torch.tensor([3, 0, 2])), 1.0), "needs a token"),
        (lambda s: Problem(s.keys, s.values, Pages(s.pages.table, torch.tensor([3, 999, 2])), 1.0), "do not lie on"),
        (lambda s: KeyPart("private", s.keys[0].q[..., :2], s.keys[0].rows), "queries are 2 wide and rows 8"),
        (lambda s: KeyPart("all", s.keys[0].q, s.keys[0].rows.expand(4, -1, -1, -1)), "6 heads cannot share"),
        (lambda s: Problem(s.keys, (), s.pages, 1.0), "at least one part"),
        (lambda s: Probes(spans=torch.tensor([[[3, 1]]])), "spans should run"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change, message):
    step = problem("mqa")
    with pytest.raises(ValueError, match=message):
        change(step)
