"""Pages and their holders, in any order of events, against a dictionary of plain token lists."""

from __future__ import annotations

import pytest
from headscope.models.memory import Ledger, OutOfPages
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

PAGES, SIZE = 7, 4


class Life(RuleBasedStateMachine):
    """Every token is a number written to two 'halves' (say, key and value) of its slot; a dictionary remembers all."""

    requests = Bundle("requests")

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(PAGES, SIZE)
        self.halves = [[[None] * SIZE for _ in range(PAGES)] for _ in range(2)]
        self.model: dict[int, list[int]] = {}
        self.token = 0

    @rule(target=requests, reserve=st.integers(0, 9))
    def add(self, reserve):
        free = self.ledger.free_pages
        try:
            request = self.ledger.add(reserve)
        except OutOfPages:
            assert -(-reserve // SIZE) > free == self.ledger.free_pages
            return self.ledger.add()
        finally:
            self.model.update({r: [] for r in self.ledger.requests if r not in self.model})
        return request

    @rule(target=requests, request=requests)
    def fork(self, request):
        if request not in self.model:
            with pytest.raises(KeyError, match="does not live"):
                self.ledger.fork(request)
            return request
        twin = self.ledger.fork(request)
        self.model[twin] = list(self.model[request])
        return twin

    @rule(request=consumes(requests))
    def free(self, request):
        if request in self.model:
            self.ledger.free(request)
            del self.model[request]

    @rule(request=requests, keep=st.integers(0, 30))
    def shorten(self, request, keep):
        if request in self.model and keep <= len(self.model[request]):
            self.ledger.shorten(request, keep)
            del self.model[request][keep:]

    @rule(counts=st.dictionaries(requests, st.integers(0, 9), max_size=3))
    def extend(self, counts):
        counts = {request: count for request, count in counts.items() if request in self.model}
        before = {r: self.ledger.pages(r) for r in self.model}, self.ledger.free_pages
        try:
            copies = self.ledger.extend(counts)
        except OutOfPages:
            assert ({r: self.ledger.pages(r) for r in self.model}, self.ledger.free_pages) == before
            return
        for half in self.halves:
            for source, target in copies:
                half[target] = list(half[source])
        for request, count in counts.items():
            for _ in range(count):
                self.token += 1
                place = len(self.model[request])
                for half in self.halves:
                    half[self.ledger.pages(request)[place // SIZE]][place % SIZE] = self.token
                self.model[request].append(self.token)

    @invariant()
    def both_halves_of_every_token_are_where_they_should_be(self):
        for request, tokens in self.model.items():
            assert self.ledger.length(request) == len(tokens)
            pages = self.ledger.pages(request)
            assert len(pages) == -(-len(tokens) // SIZE)
            for half in self.halves:
                found = [half[pages[i // SIZE]][i % SIZE] for i in range(len(tokens))]
                assert found == tokens

    @invariant()
    def no_page_is_lost(self):
        if not self.model:
            assert self.ledger.free_pages == PAGES


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_events_loses_and_mixes_nothing = Life.TestCase


def test_a_fork_shares_all_pages_until_someone_writes_into_a_partly_filled_one():
    ledger = Ledger(6, 4)
    first = ledger.add()
    assert ledger.extend({first: 6}) == []
    second = ledger.fork(first)
    assert ledger.pages(first) == ledger.pages(second)
    assert ledger.free_pages == 4
    (copy,) = ledger.extend({second: 1, first: 1})
    assert copy[0] in ledger.pages(first)
    assert copy[1] in ledger.pages(second)
    assert ledger.pages(first)[0] == ledger.pages(second)[0]
    assert ledger.free_pages == 3


def test_full_pages_are_never_copied():
    ledger = Ledger(6, 4)
    first = ledger.add()
    ledger.extend({first: 8})
    second = ledger.fork(first)
    assert ledger.extend({first: 1, second: 1}) == []


def test_a_request_with_a_reserve_grows_in_one_run_of_pages():
    ledger = Ledger(12, 4)
    first, second = ledger.add(reserve=24), ledger.add(reserve=8)
    for _ in range(24):
        ledger.extend({first: 1})
        if ledger.length(second) < 8:
            ledger.extend({second: 1})
    assert ledger.pages(first) == list(range(6))
    assert ledger.pages(second) == [6, 7]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda ledger: Ledger(0, 4), "n_pages should be >= 1 but got 0"),
        (lambda ledger: ledger.add(-1), "reserve should be >= 0"),
        (lambda ledger: ledger.extend({0: -1}), "cannot grow by less"),
        (lambda ledger: ledger.shorten(0, 1), "has 0 tokens and cannot be shortened to 1"),
    ],
)
def test_what_cannot_be_is_refused(act, message):
    ledger = Ledger(2, 4)
    ledger.add()
    with pytest.raises(ValueError, match=message):
        act(ledger)
