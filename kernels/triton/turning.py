"""What a query brings to rows that turn with their positions, worked out before the cache is read.

With coordinates z at position j, ``key = (z B^T) R_j``, and plane p turning columns a and b by the angle ``j theta_p``,

``q . key = z . sum_p [cos(j theta_p) (q_a B_a + q_b B_b) + sin(j theta_p) (q_b B_a - q_a B_b)] amplitude + z . c``

where c collects ``q_d B_d`` of the columns that stay. Both brackets and c know no position, so they come once a step,
and c passes for one more plane, of frequency 0. A tile then costs a head two products of ``[token, plane]`` with
``[plane, rank]`` instead of restored and rotated keys.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..operands import Turn


def along(
    q: Float[Tensor, "batch head d_key"], turn: Turn, planes: int, padded: int
) -> tuple[Float[Tensor, "2 batch head plane padded_rank"], Float[Tensor, " plane"]]:
    """Return what cosines and sines are multiplied with, and the frequencies; zeros up to `planes` and `padded`."""
    q, up = q.float(), turn.up.float()
    first, second = up[:, turn.first], up[:, turn.second]
    q_first, q_second = q[:, :, turn.first, None], q[:, :, turn.second, None]
    turned, rank = len(turn.theta), up.shape[2]
    out = q.new_zeros(2, *q.shape[:2], planes, padded)
    out[0, :, :, :turned, :rank] = turn.amplitude * (q_first * first + q_second * second)
    out[1, :, :, :turned, :rank] = turn.amplitude * (q_second * first - q_first * second)
    if planes_of(turn) > turned:
        still = q.index_fill(2, turn.first, 0).index_fill(2, turn.second, 0)
        out[0, :, :, turned, :rank] = torch.einsum("bhd,hdr->bhr", still, up)
    theta = q.new_zeros(planes)
    theta[:turned] = turn.theta.float()
    return out, theta


def planes_of(turn: Turn) -> int:
    """Return the number of planes, with one of frequency 0 if any column stays."""
    return len(turn.theta) + (2 * len(turn.theta) < turn.up.shape[1])
