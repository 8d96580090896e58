"""The Triton path against float64 from the formulas: in the interpreter with TRITON_INTERPRET=1, else on a GPU.

Which of the two is settled when Triton is imported, so `test_triton.py` runs this file in a process of its own.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import triton.language as tl
from headscope.kernels import KeyPart, Pages, Probes, Problem, ValuePart, decode
from headscope.kernels.triton import launch
from headscope.kernels.triton.combine import Summed, combine
from headscope.kernels.triton.plan import make_plan
from headscope.kernels.triton.score import Keys
from headscope.kernels.triton.split import Looked, Partials, Share
from headscope.kernels.triton.tile import INTERPRETED, Factor, Rows

from ..problems import KINDS, problem, spans_for
from ..test_decode import compare

DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED.value else "cpu")


@pytest.fixture(autouse=True)
def _nothing_is_right_by_chance(monkeypatch):
    """Hand the kernels memory full of NaN."""

    def room(*shape: int, device: torch.device) -> torch.Tensor:
        return torch.full(shape, torch.nan, dtype=torch.float32, device=device)

    monkeypatch.setattr(launch, "room", room)


def placed(step: Problem) -> Problem:
    """Return the step on the device; what was one tensor stays one."""
    known: dict[int, torch.Tensor] = {}

    def move(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else known.setdefault(id(x), x.to(DEVICE))

    def key(part: KeyPart) -> KeyPart:
        turn = part.turn and dataclasses.replace(
            part.turn, **{name: move(getattr(part.turn, name)) for name in ("up", "theta", "first", "second")}
        )
        return KeyPart(part.name, move(part.q), move(part.rows), turn)

    return Problem(
        tuple(key(part) for part in step.keys),
        tuple(ValuePart(part.name, move(part.rows)) for part in step.values),
        Pages(move(step.pages.table), move(step.pages.lengths)),
        step.scale,
        move(step.row_scale),
    )


def check(step: Problem, probes: Probes | None, tolerance: float) -> None:
    found = decode(placed(step), probes, path="triton")
    assert found.path == "triton"
    compare(found, decode(step, probes, path="reference"), tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_everything_looked_at(kind):
    lengths = (17, 1, 130)
    check(problem(kind, lengths, heads=4), Probes(top=2, spans=spans_for(lengths)), 1e-5)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.bfloat16) for kind in ("gqa", "mla", "lrkv", "lrkv-turned-normed")), ("lrkv", torch.float16)],
    ids=str,
)
def test_half_precision_comes_within_a_hundredth(kind, dtype):
    lengths = (40, 9)
    check(problem(kind, lengths, heads=4, dtype=dtype), Probes(top=1, spans=spans_for(lengths)), 1e-2)


@pytest.mark.parametrize(
    ("kind", "lengths", "page"),
    [
        ("lrkv", (63, 64, 65, 129), 64),
        ("mla", (127, 128, 2), 128),
        ("gqa", (64, 50), 7),
        ("mha", (128,), 32),
        ("lrkv-turned", (70, 64), 24),
    ],
)
def test_any_page_size_and_lengths_about_the_borders_of_tiles(kind, lengths, page):
    check(problem(kind, lengths, heads=4, page=page), Probes(top=2), 1e-5)


@pytest.mark.parametrize("kind", ["lrkv", "lrkv-turned"])
def test_widths_that_are_no_powers_of_two(kind):
    check(problem(kind, (66,), d_head=96, rank=51, page=64), None, 1e-5)


@pytest.mark.parametrize(("heads", "kind"), [(1, "mha"), (7, "lrkv"), (34, "mqa"), (18, "lrkv")])
def test_any_number_of_heads(heads, kind):
    check(problem(kind, (20,), heads=heads), None, 1e-5)


@pytest.mark.parametrize("workers", [1, 4, 20])
def test_the_answer_does_not_depend_on_how_the_work_is_divided(workers):
    step = problem("lrkv", (700, 1, 3), page=64, heads=2)
    plan = make_plan(step.pages.lengths, workers, DEVICE)
    found = launch.decode_triton(placed(step), Probes(top=5), plan)
    compare(found, decode(step, Probes(top=5), path="reference"), 1e-5)


def test_a_plan_that_stops_short_gives_nan_until_it_is_refilled():
    step = problem("gqa", (200, 30))
    plan = make_plan(torch.tensor([100, 30]), 3, DEVICE)
    found = launch.decode_triton(placed(step), None, plan)
    assert found.lse[0].isnan().all()
    assert found.values[0][0].isnan().all()
    assert found.values[0][1].isfinite().all()
    plan.refill(step.pages.lengths)
    compare(launch.decode_triton(placed(step), None, plan), decode(step, path="reference"), 1e-5)


def test_rows_may_lie_page_first():
    step = problem("lrkv", (80, 9))
    private = step.keys[1].rows.movedim(0, 1).contiguous().movedim(1, 0)
    assert not private.is_contiguous()
    moved = dataclasses.replace(step, keys=(step.keys[0], dataclasses.replace(step.keys[1], rows=private)))
    compare(decode(placed(moved), path="triton"), decode(step, path="reference"), 1e-5)


def test_among_equals_the_earliest_are_the_strongest():
    step = problem("mqa", (300,), in_order=True)
    alike = torch.where(step.keys[0].rows.isnan(), torch.nan, 1.0)
    step = dataclasses.replace(step, keys=(dataclasses.replace(step.keys[0], rows=alike),))
    found = decode(placed(step), Probes(top=70), path="triton")
    assert found.probes is not None
    assert found.probes.top_positions[0].tolist() == [list(range(70))] * 6


def test_more_asked_for_than_there_are_and_nothing_asked_for():
    step = problem("gqa", (5, 2))
    check(step, Probes(top=8), 1e-5)
    check(step, Probes(top=0), 1e-5)


def test_an_item_that_saw_nothing_weighs_nothing():
    """Largest scores of minus infinity and 0, sums 0 and 2, values 7 and 6: 6 / 2, and a log-sum-exp of log 2."""
    largest, total = torch.tensor([[-torch.inf], [0.0]]), torch.tensor([[0.0], [2.0]])
    values, out, lse = torch.tensor([[[7.0]], [[6.0]]]), torch.empty(1, 1, 1), torch.empty(1, 1)
    of_request, last, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, 2], [1, 2], [70]))
    arrays = [x.to(DEVICE) for x in (values, out, largest, total, of_request, last, lengths, lse)]
    summed = Summed(*arrays[:2], *map(tl.constexpr, (1, 1, True)))
    combine[(1, 1)]((summed,), *arrays[2:], HEADS=1, TILE=64)
    assert arrays[1].item() == 3
    assert arrays[-1].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.double(), "part 'all' is torch.float64"),
        (lambda rows: rows.mT.contiguous().mT, "of part 'all' are 16 apart"),
    ],
)
def test_rows_that_the_kernels_cannot_read_are_refused_by_name(change, message):
    step = problem("mqa")
    step = dataclasses.replace(step, keys=(dataclasses.replace(step.keys[0], rows=change(step.keys[0].rows)),))
    with pytest.raises(ValueError, match=message):
        decode(placed(step), path="triton")


@pytest.mark.parametrize("fields", [Rows, Keys, Factor, Share, Partials, Looked, Summed])
def test_no_field_is_hidden_by_what_compiled_tuples_have_of_their_own(fields):
    """Compiled, `x.values` would be all fields of x, silently; interpreted, it is the field."""
    assert not set(fields._fields) & set(dir(tl.tuple([])))


def test_a_plan_for_another_number_of_requests_is_refused():
    with pytest.raises(ValueError, match="the plan is for 1 requests, not 3"):
        launch.decode_triton(placed(problem("mqa")), None, make_plan(torch.tensor([3]), 2, DEVICE))
