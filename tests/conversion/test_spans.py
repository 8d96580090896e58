"""Whole planes: closed under every rotation, the best mixture by brute force; the worked counter-example."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from headscope.conversion.spans import strongest, whole_planes
from headscope.models import FrequencyFactors, Rotary
from headscope.models.memory.factored import closure_violation
from headscope.models.rope import column_pairs, rotate


def energies(heads: int, width: int, seed: int = 0) -> torch.Tensor:
    gaps = torch.randn(heads, 9, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gaps *= torch.linspace(0.5, 2, width, dtype=torch.float64)
    return gaps.mT @ gaps


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("width", "turned", "rank"), [(8, 8, 4), (8, 4, 3), (10, 6, 5), (6, 6, 6)])
def test_coordinates_of_whole_planes_can_be_rotated_once(width, turned, rank, interleaved):
    """``z B^T D_j = z E_j B^T``: restoring and then rotating is rotating and then restoring."""
    rotary = Rotary(width=turned, interleaved=interleaved, base=50.0)
    first, second = (tuple(range(width)[part]) for part in column_pairs(0, turned, interleaved))
    basis = whole_planes(rank, first, second, width)(energies(3, width))
    torch.testing.assert_close(basis.mT @ basis, torch.eye(rank, dtype=torch.float64).expand(3, -1, -1))
    z = torch.randn(1, 5, 3, rank, dtype=torch.float64)
    restored = torch.einsum("bphr,hdr->bphd", z, basis)
    positions = torch.tensor([[0, 1, 7, 30, 1000]])
    rotated = restored.clone()
    rotated[..., :turned] = rotate(restored[..., :turned], positions, rotary)
    coordinates = torch.einsum("bphd,hdr->bphr", rotated, basis)  # z E_j
    torch.testing.assert_close(torch.einsum("bphr,hdr->bphd", coordinates, basis), rotated)
    assert float(closure_violation(basis, torch.tensor(first), torch.tensor(second)).max()) < 1e-6


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_the_best_mixture_of_planes_and_unturned_directions_is_chosen(rank):
    width, first, second, unturned = 7, (0, 1), (2, 3), [4, 5, 6]
    for energy in energies(6, width, seed=rank):
        basis = whole_planes(rank, first, second, width)(energy[None])[0]
        held = []
        for n in range(3):
            if 0 <= rank - 2 * n <= len(unturned):
                free = torch.linalg.eigvalsh(energy[unturned][:, unturned]).flip(0)[: rank - 2 * n].sum()
                for planes in combinations(range(2), n):
                    columns = [c for p in planes for c in (first[p], second[p])]
                    held.append(float(energy.diagonal()[columns].sum() + free))
        assert float((basis.T @ energy @ basis).trace()) == pytest.approx(max(held))


def test_a_line_in_a_plane_is_not_closed():
    """The restored key turns to (0, ±1) and scores ±1 with (0, 1); a rotated coordinate stays on the axis: 0."""
    quarter = Rotary(scaling=FrequencyFactors((2 / math.pi,)))  # a quarter turn a position
    line = torch.tensor([[[1.0], [0.0]]])
    key, query = 4 * line[0, :, 0], torch.tensor([0.0, 1.0])
    turned = rotate(key.view(1, 1, 1, 2), torch.tensor([[1]]), quarter).flatten()
    torch.testing.assert_close(turned, torch.tensor([0.0, 4.0]), atol=1e-6, rtol=0)
    within = line[0] @ (line[0].T @ turned)  # the nearest that any rotated coordinate restores to
    assert float(query @ turned) == pytest.approx(4)
    assert float(query @ within) == 0
    columns = torch.tensor([0]), torch.tensor([1])
    assert float(closure_violation(line, *columns)[0]) == pytest.approx(1)
    assert float(closure_violation(torch.eye(2)[None], *columns)[0]) < 1e-12


def test_strongest_directions_are_not_closed_as_a_rule():
    basis = strongest(4)(energies(3, 8))
    assert (closure_violation(basis, torch.arange(4), torch.arange(4, 8)) > 0.3).all()


def test_an_odd_rank_of_planes_is_refused():
    with pytest.raises(ValueError, match="should be even for whole rotary planes but got 3"):
        whole_planes(3, (0, 1), (2, 3), 4)
