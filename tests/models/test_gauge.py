"""Alignment: copies in other bases come back together; only free turns are used; a plain mean is never better."""

from __future__ import annotations

import math

import pytest
import torch
from headscope.models.gauge import FreeTurns, align, toward

D_MODEL, WIDTH = 20, 8


def orthogonal(width: int, generator: torch.Generator) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]


def plane_turn(angles: torch.Tensor, first: list[int], second: list[int]) -> torch.Tensor:
    turn = torch.eye(WIDTH, dtype=torch.float64)
    for angle, a, b in zip(angles, first, second, strict=True):
        turn[a, a] = turn[b, b] = math.cos(angle)
        turn[a, b], turn[b, a] = math.sin(angle), -math.sin(angle)
    return turn


FREE = {
    "dense": FreeTurns(tuple(range(WIDTH))),
    "halves": FreeTurns((), (0, 1, 2, 3), (4, 5, 6, 7)),
    "interleaved": FreeTurns((), (0, 2, 4, 6), (1, 3, 5, 7)),
    "partial": FreeTurns((4, 5, 6, 7), (0, 1), (2, 3)),
}


def turns(free: FreeTurns, count: int, generator: torch.Generator) -> torch.Tensor:
    found = []
    for _ in range(count):
        turn = plane_turn(torch.rand(len(free.first), generator=generator) * 6, list(free.first), list(free.second))
        if free.dense:
            columns = torch.tensor(free.dense)
            turn[columns[:, None], columns] = orthogonal(len(columns), generator)
        found.append(turn)
    return torch.stack(found)


@pytest.mark.parametrize("free", FREE.values(), ids=FREE)
def test_copies_of_one_weight_in_other_bases_come_back_together(free):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(D_MODEL, WIDTH, generator=generator, dtype=torch.float64)
    weights = base @ turns(free, 5, generator)
    found = align(weights, free)
    aligned = weights @ found
    assert torch.allclose(aligned, aligned.mean(0).expand_as(aligned), atol=1e-9)
    assert not torch.allclose(weights, weights.mean(0).expand_as(weights), atol=0.1)


@pytest.mark.parametrize("free", FREE.values(), ids=FREE)
def test_only_free_turns_are_used_and_they_help(free):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(6, D_MODEL, WIDTH, generator=generator, dtype=torch.float64)
    found = align(weights, free)
    eye = torch.eye(WIDTH, dtype=torch.float64)
    torch.testing.assert_close(found @ found.transpose(1, 2), eye.expand_as(found))
    for turn in found:
        allowed = torch.eye(WIDTH, dtype=torch.bool)
        for a, b in zip(free.first, free.second, strict=True):
            allowed[a, b] = allowed[b, a] = True
            assert turn[a, a] == turn[b, b]
            assert turn[a, b] == -turn[b, a]
        if free.dense:
            columns = torch.tensor(free.dense)
            allowed[columns[:, None], columns] = True
        assert (turn[~allowed] == 0).all()
    spread = [((x - x.mean(0)) ** 2).sum() for x in (weights, weights @ found)]
    assert spread[1] < 0.95 * spread[0]
    # No single head can be turned nearer to the mean of the others: small free turns either way only hurt.
    aligned = weights @ found
    for first, second in zip(free.first, free.second, strict=True):
        for angle in (0.01, -0.01):
            moved = aligned.clone()
            moved[2] = moved[2] @ plane_turn(torch.tensor([angle]), [first], [second])
            assert ((moved - moved.mean(0)) ** 2).sum() >= spread[1] - 1e-9


def test_without_free_turns_nothing_is_turned():
    weights = torch.randn(3, D_MODEL, WIDTH)
    assert torch.equal(align(weights, FreeTurns(())), torch.eye(WIDTH, dtype=torch.float64).expand(3, -1, -1))


@pytest.mark.parametrize("free", FREE.values(), ids=FREE)
def test_each_head_is_turned_to_the_best_place_beside_its_own_goal(free):
    generator = torch.Generator().manual_seed(2)
    goals = torch.randn(4, D_MODEL, WIDTH, generator=generator, dtype=torch.float64)
    hidden = turns(free, 4, generator)
    torch.testing.assert_close(toward(goals @ hidden.mT, goals, free), hidden)
    weights = torch.randn(4, D_MODEL, WIDTH, generator=generator, dtype=torch.float64)
    found = weights @ toward(weights, goals, free)
    distance = ((found - goals) ** 2).sum((1, 2))
    for seed in range(20):
        other = turns(free, 4, torch.Generator().manual_seed(seed))
        assert (((weights @ other - goals) ** 2).sum((1, 2)) >= distance).all()
        near = torch.linalg.matrix_exp(1e-3 * (other - other.mT))  # free turns, too: a turn less its inverse makes one
        assert (((found @ near - goals) ** 2).sum((1, 2)) >= distance - 1e-9).all()
