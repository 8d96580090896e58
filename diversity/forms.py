"""Inner products of bilinear forms from their factors; no ``d_model x d_model`` matrix is ever formed.

With ``A_h = L_h R_h^T`` and ``M^L_ij = L_i^T L_j``, ``M^R_ij = R_i^T R_j``: ``<A_i, A_j>_F = sum(M^L_ij * M^R_ij)``.

Under rotary positions ``A_h(delta) = L_h R_delta R_h^T`` depends on how far query and key are apart. Pair the rotary
planes' columns into complex ones, ``C = a + ib``, with frequencies theta; then, averaged over a range of offsets,

    E <A_i, A_j> = 1/2 Re sum_mn [ phi-_mn (C_Li^T conj(C_Lj))_mn (C_Ri^H C_Rj)_mn
                                 + phi+_mn (C_Li^T C_Lj)_mn (C_Ri^H conj(C_Rj))_mn ],

``phi±_mn = mean over delta of exp(i delta (theta_m ± theta_n))``, a geometric series. The inner products are averaged,
never the operators: averaging operators would keep about half of their squared norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor

from ..models.factors import BilinearForm, Planes

TILE_BYTES = 16 * 2**20
"""Size that one tile of small products is held to: small enough that tiles leave the lower triangle out."""


@dataclass(frozen=True)
class Offsets:
    """A range of distances between query and key, both ends included.

    Examples
    --------
    >>> Offsets.parse("0:255"), Offsets.parse("3"), Offsets.parse("none")
    (Offsets(first=0, last=255), Offsets(first=3, last=3), None)
    """

    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < 2**31:
            raise ValueError(f"offsets should be 0 <= first <= last < 2**31 but got {self.first}:{self.last}")

    @classmethod
    def parse(cls, text: str | int | tuple[int, int] | Offsets | None) -> Offsets | None:
        """Read ``"3"``, ``"0:255"`` or ``"none"`` (also an int, a pair, or what `parse` returned)."""
        if text is None or isinstance(text, Offsets):
            return text
        if isinstance(text, tuple):
            return cls(*text)
        if isinstance(text, str) and text.strip().lower() == "none":
            return None
        try:
            first, colon, last = str(text).partition(":")
            ends = int(first), int(last if colon else first)
        except ValueError:
            raise ValueError(f"offsets should be a distance, FIRST:LAST or none but got {text!r}") from None
        return cls(*ends)

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}:{self.last}"

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.last - self.first + 1


def gram(forms: Sequence[BilinearForm], offsets: Offsets | None) -> Float[Tensor, "head head"]:
    """Return the Frobenius inner products of every pair of heads' forms, float64.

    Parameters
    ----------
    forms
        One form a head each; several are one form on stacked inputs, and their inner products add up.
    offsets
        Distances to average over under rotary positions; None leaves positions out, which has the value of distance 0.

    Raises
    ------
    ValueError
        If `forms` is empty.
    """
    if not forms:
        raise ValueError("a layer's part needs at least one form")
    heads = forms[0].left.n_heads
    total = torch.zeros(heads, heads, dtype=torch.float64)
    for form in forms:
        for rows in _row_blocks(form):
            cols = slice(rows.start, heads)
            block = _tile(form, rows, cols, offsets)
            total[rows, cols] += block
    upper = total.triu()
    return upper + upper.triu(1).T


def _row_blocks(form: BilinearForm) -> Iterator[slice]:
    """Yield blocks of heads whose products with all later heads fit a tile; the lower triangle is mirrored."""
    heads = form.left.n_heads
    row_bytes = heads * 8 * max(form.left.width, form.right.width) ** 2
    step = max(1, TILE_BYTES // row_bytes)
    for start in range(0, heads, step):
        yield slice(start, min(start + step, heads))


def _tile(form: BilinearForm, rows: slice, cols: slice, offsets: Offsets | None) -> Float[Tensor, "rows cols"]:
    left, right = form.left.cross(rows, cols), form.right.cross(rows, cols)
    distance = offsets or Offsets(0)
    if form.planes is None or (distance == Offsets(0) and form.planes.amplitude == 1.0):
        return torch.einsum("ijmn,ijmn->ij", left, right)
    return _rotated(left, right, form.planes, distance)


def _rotated(left: Tensor, right: Tensor, planes: Planes, offsets: Offsets) -> Float[Tensor, "rows cols"]:
    still = left.shape[-1] - 2 * len(planes.theta)
    theta = F.pad(planes.theta, (0, still))
    weight = F.pad(torch.full_like(planes.theta, planes.amplitude**2), (0, still), value=1.0)
    total = torch.zeros(left.shape[:2], dtype=torch.float64)
    for sign in (-1, 1):
        phi = weight[:, None] * weight * phase_mean(theta[:, None] + sign * theta, offsets)
        (s_l, d_l), (s_r, d_r) = _complex_product(left, planes, sign), _complex_product(right, planes, sign)
        total += torch.einsum("ijmn,mn->ij", (s_l * s_r).addcmul_(d_l, d_r), phi.real)
        total -= torch.einsum("ijmn,mn->ij", (d_l * s_r).addcmul_(s_l, d_r, value=-1), phi.imag)
    return total / 2


def _complex_product(product: Tensor, planes: Planes, sign: int) -> tuple[Tensor, Tensor]:
    """Return real and imaginary part of ``C_i^T conj(C_j)`` (sign -1) or ``C_i^T C_j`` (sign +1) from ``F_i^T F_j``."""
    a_rows, b_rows = _halves(product.transpose(-2, -1), planes)
    aa, ab = _halves(a_rows.transpose(-2, -1), planes)
    ba, bb = _halves(b_rows.transpose(-2, -1), planes)
    return (aa - bb, ba + ab) if sign > 0 else (aa + bb, ba - ab)


def _halves(columns: Tensor, planes: Planes) -> tuple[Tensor, Tensor]:
    """Split the last axis into the planes' first and second columns.

    A column that does not turn is a plane of frequency 0 whose second column is zero.
    """
    first, second = planes.pairs
    a, b = columns[..., first], columns[..., second]
    still = columns.shape[-1] - 2 * len(planes.theta)
    if not still:
        return a, b
    return torch.cat((a, columns[..., : planes.start], columns[..., planes.stop :]), -1), F.pad(b, (0, still))


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
