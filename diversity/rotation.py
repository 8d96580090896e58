"""Rotary positions in products of factors: the rotation between query and key, averaged over a range of offsets.

Under rotary positions ``A_h(delta) = L_h R_delta R_h^T`` depends on how far query and key are apart, and
``<A_i, A_j> = <M^L_ij, R_delta M^R_ij R_delta^T>``. Pair the rotary planes' columns into complex ones, ``C = a + ib``,
with frequencies theta; then, averaged over a range of offsets,

    E <A_i, A_j> = 1/2 Re sum_mn [ phi-_mn (C_Li^T conj(C_Lj))_mn (C_Ri^H C_Rj)_mn
                                 + phi+_mn (C_Li^T C_Lj)_mn (C_Ri^H conj(C_Rj))_mn ],

``phi±_mn = mean over delta of exp(i delta (theta_m ± theta_n))``, a geometric series. `turned` collects what stands
there beside each entry of ``M^L``: the mean of ``R_delta M^R R_delta^T``. The inner products are averaged, never the
operators: averaging operators would keep about half of their squared norm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor

from ..models.factors import Planes
from .offsets import Offsets


def turned(
    product: Float[Tensor, "*pair width width"], planes: Planes | None, offsets: Offsets | None
) -> Float[Tensor, "*pair width width"]:
    """Return the mean over the offsets of ``R_delta M R_delta^T`` for products ``M = R_i^T R_j`` of right factors."""
    distance = offsets or Offsets(0)
    if planes is None or (distance == Offsets(0) and planes.amplitude == 1.0):
        return product
    width, n_planes = product.shape[-1], len(planes.theta)
    still = width - 2 * n_planes
    order = _order(width, planes)
    aa, ab, ba, bb = _blocks(product[..., order, :][..., order], n_planes, still)
    # A column that does not turn is a plane of frequency 0 whose second column is zero.
    theta = F.pad(planes.theta, (0, still))
    weight = F.pad(torch.full_like(planes.theta, planes.amplitude**2), (0, still), value=1.0) / 2**0.5
    u, v = {}, {}
    for sign, re, im in ((-1, aa + bb, ba - ab), (1, aa - bb, ba + ab)):
        phi = weight[:, None] * weight * phase_mean(theta[:, None] + sign * theta, offsets=distance)
        u[sign] = re * phi.real + im * phi.imag
        v[sign] = re * phi.imag - im * phi.real
    above = torch.cat((u[-1] + u[1], (v[-1] - v[1])[..., :n_planes]), -1)
    below = torch.cat((-v[-1] - v[1], (u[-1] - u[1])[..., :n_planes]), -1)[..., :n_planes, :]
    back = order.argsort()
    return torch.cat((above, below), -2)[..., back, :][..., back]


def _order(width: int, planes: Planes) -> Int[Tensor, " width"]:
    """Return the columns in the order: first ones of the planes, those that do not turn, second ones of the planes."""
    columns = torch.arange(width)
    first, second = planes.pairs
    return torch.cat((columns[first], columns[: planes.start], columns[planes.stop :], columns[second]))


def _blocks(product: Tensor, n_planes: int, still: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the products of first with first columns, first with second, and so on, second ones filled up by zeros."""
    firsts = n_planes + still
    padded = F.pad(product, (0, still, 0, still))
    a, b = slice(0, firsts), slice(firsts, None)
    return padded[..., a, a], padded[..., a, b], padded[..., b, a], padded[..., b, b]


def phase_mean(omega: Float[Tensor, "*shape"], offsets: Offsets) -> Complex[Tensor, "*shape"]:
    """Return ``mean over delta of exp(i delta omega)`` in closed form (a geometric series).

    ``exp(i omega (first + last) / 2) sin(n omega / 2) / (n sin(omega / 2))`` for n offsets.
    """
    n = offsets.count
    half = omega / 2
    middle = torch.exp(1j * half * (offsets.first + offsets.last))
    sine = torch.sin(half)
    flat = sine.abs() < 1e-12
    ratio = torch.sin(n * half) / (n * torch.where(flat, 1.0, sine))
    # At a whole number of turns every term is 1.
    return torch.where(flat, torch.ones_like(middle), middle * ratio)
