"""The division of tiles among workers: every tile once, shares equal, a request's items in a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headscope.kernels import Pages
from headscope.kernels.triton.plan import divide, make_plan, plan_for
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=40)
CPU = torch.device("cpu")


@given(LENGTHS, st.integers(1, 300), st.sampled_from([16, 64]))
def test_every_tile_of_every_request_is_in_one_item(lengths, workers, tile):
    found = divide(lengths, workers, tile)
    items = zip(found.request, found.first, found.last, strict=True)
    read = [(request, i) for request, first, last in items for i in range(first, last)]
    assert read == [(request, i) for request, length in enumerate(lengths) for i in range(-(-length // tile))]


@given(LENGTHS, st.integers(1, 300))
def test_shares_differ_by_one_tile_at_most(lengths, workers):
    found = divide(lengths, workers)
    sizes = found.last - found.first
    shares = [sizes[a:b].sum() for a, b in zip(found.bounds[:-1], found.bounds[1:], strict=True)]
    assert len(shares) == workers
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == sizes.sum()


@given(LENGTHS, st.integers(1, 300))
def test_no_item_is_empty_and_there_is_room_for_all(lengths, workers):
    found = divide(lengths, workers)
    assert (found.last > found.first).all()
    assert len(found.request) <= workers + len(lengths) - 1


@given(LENGTHS, st.integers(1, 300))
def test_a_requests_items_follow_one_another(lengths, workers):
    found = divide(lengths, workers)
    for request, (a, b) in enumerate(zip(found.of_request[:-1], found.of_request[1:], strict=True)):
        assert b > a
        assert (found.request[a:b] == request).all()
    assert found.of_request[-1] == len(found.request)


def test_a_plan_is_made_once_for_pages_and_workers():
    pages = Pages(torch.zeros(2, 4, dtype=torch.long), torch.tensor([100, 3]))
    plan = plan_for(pages, 5, CPU)
    assert plan_for(pages, 5, CPU) is plan
    assert plan_for(pages, 6, CPU) is not plan
    assert plan_for(Pages(pages.table, pages.lengths), 5, CPU) is not plan


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=9), st.integers(1, 50))
def test_a_refilled_plan_is_the_plan_of_the_new_lengths_in_the_same_memory(lengths, workers):
    before, after = (torch.tensor(x) for x in zip(*lengths, strict=True))
    plan = make_plan(before, workers, CPU)
    where = plan.request.data_ptr()
    plan.refill(after)
    assert plan.request.data_ptr() == where
    for name, wanted in divide(after.numpy(), workers)._asdict().items():
        assert np.array_equal(getattr(plan, name)[: len(wanted)].numpy(), wanted)


@pytest.mark.parametrize(("lengths", "workers"), [([3, 0], 2), ([], 2), ([3], 0)])
def test_a_division_of_nothing_or_among_nobody_is_refused(lengths, workers):
    with pytest.raises(ValueError, match="a plan needs workers and requests with tokens"):
        divide(lengths, workers)


def test_a_plan_for_another_number_of_requests_cannot_be_refilled():
    with pytest.raises(ValueError, match="the plan is for 2 requests but got 3 lengths"):
        make_plan(torch.tensor([3, 4]), 2, CPU).refill(torch.tensor([1, 2, 3]))
