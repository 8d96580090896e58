"""Which directions of a head stay private: the strongest ones, or whole rotary planes, which a rotation leaves closed.

A private residual ``U_h B_h^T`` lives in the span of `B_h`. Its cached coordinates can be rotated once, as keys are
written, only if that span is closed under every rotation: ``B^T D_j = E_j B^T``. With planes of distinct frequencies
such a span is a sum of whole planes and of anything in the columns that no rotation turns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Choose = Callable[[Float[Tensor, "head width width"]], Float[Tensor, "head width rank"]]
"""From each head's ``D_h^T D_h`` to an orthonormal basis of what is kept of `D_h`'s columns."""


def strongest(rank: int) -> Choose:
    """Return the choice of the `rank` leading right singular vectors: the truncated SVD, best of all."""
    return lambda energy: torch.linalg.eigh(energy)[1][..., -rank:].flip(-1)


def whole_planes(rank: int, first: tuple[int, ...], second: tuple[int, ...], width: int) -> Choose:
    """Return the choice of whole rotary planes with the most energy, filled up with directions that nothing turns.

    A plane takes two of the `rank` dimensions, a direction among the unturned columns (partial rotary) one; of all
    mixtures the one that holds the most is taken, head by head.

    Parameters
    ----------
    rank
        Dimensions to keep.
    first, second
        Columns ``a`` and ``b`` of the planes.
    width
        Columns of a head.

    Raises
    ------
    ValueError
        If no mixture has `rank` dimensions: an odd rank where every column is turned.
    """
    unturned = torch.tensor([c for c in range(width) if c not in {*first, *second}], dtype=torch.long)
    mixtures = [n for n in range(len(first) + 1) if 0 <= rank - 2 * n <= len(unturned)]
    if not mixtures:
        raise ValueError(f"rank should be even for whole rotary planes but got {rank} (every column is turned)")
    pairs = torch.tensor([first, second]).T

    def of_head(energy: Float[Tensor, "width width"]) -> Float[Tensor, "width rank"]:
        planes = energy.diagonal()[pairs].sum(-1)
        order = planes.argsort(descending=True, stable=True)
        values, vectors = torch.linalg.eigh(energy[unturned[:, None], unturned])
        values, vectors = values.flip(-1), vectors.flip(-1)

        def held(n: int) -> float:
            return float(planes[order[:n]].sum() + values[: rank - 2 * n].sum())

        n = max(mixtures, key=held)
        basis = energy.new_zeros(width, rank)
        # Planes in their own order, so that their frequencies stand in it, too.
        columns = pairs[order[:n].sort().values].T.flatten()
        basis[columns, torch.arange(2 * n)] = 1
        basis[unturned, 2 * n :] = vectors[:, : rank - 2 * n]
        return basis

    return lambda energy: torch.stack([of_head(each) for each in energy])
