"""LRKV's history: shared rows for all heads and coordinates for each; residuals are never written out.

Without positions the query meets ``B`` once and coordinates as they are. Rotary positions stand between coordinates
and query, ``q (z B^T) R_j``, and three ways are exact:

- *rotate at read* (any ``B``): coordinates are kept unrotated, restored and rotated block by block as they are read;
- *plane-closed*: where the span of ``B_h`` is closed under rotation, ``B^T R_j = E_j B^T`` for some ``E_j``,
  coordinates are rotated once, when they are kept, and read like unrotated ones. They are kept in an orthonormal basis
  of the span: in `B`'s own, an ill-conditioned one would blow them up, and their rounding with them;
- *separate position channels*: a special case of it. Where ``B`` has no rows in the columns that turn, ``E_j`` is the
  identity.

The shared row is dense and rotated once in any case. Keys that are normalised after their parts are joined have one
scalar a head and position, ``1 / n``, kept beside.

References
----------
O'Neill et al. (arXiv 2601.11471v3), equations 6-7. There keys are rotated apart, ``RoPE(K_S) + RoPE(R) B^T``, which
holds for closed spans only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import KeyPart, Turn, ValuePart
from ..variant import Stream
from .form import Form, Rows, Stored

if TYPE_CHECKING:
    from ..lrkv import LRKVAttention

CLOSED = 1e-5
"""Largest part of a turned direction that may stick out of a span that is to be closed under rotation."""


class Factored(Form):
    """Shared rows and private coordinates, ranks padded to a multiple of eight."""

    skipped = ("hook_k_private", "hook_v_private", "hook_k", "hook_v", "hook_k_normed", "hook_rot_k")
    attention: LRKVAttention

    def __init__(self, attention: LRKVAttention) -> None:
        super().__init__(attention)
        self.closed = attention.lrkv.keys == "plane-closed" and attention.rotary is not None
        if self.closed:
            self._check_closed()
            self._basis = torch.linalg.qr(self._up.detach().double()).Q.to(self._up.dtype)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """As configured."""
        return self.attention.lrkv.streams()

    def keep(self, rows: Rows, positions: Int[Tensor, "batch pos"]) -> Rows:
        """Return shared rows (keys' rotated) and coordinates."""
        attn = self.attention
        coords = rows["k_coords"]
        gain = self._gain if self._norm_where == "before" else None
        shared = rows["k_shared"] if gain is None else rows["k_shared"] * gain
        kept = {
            "k_shared": attn.turn(shared[:, :, None], positions),
            "k_coords": self._turned_coordinates(coords, positions) if self.closed else self._with_bias(coords),
            "v_shared": rows["v_shared"][:, :, None],
            "v_coords": rows["v_coords"],
        }
        if self._norm_where is not None:
            joint = attn.k.join(rows["k_shared"], attn.k.expand(coords))
            joint = attn.turn(joint, positions) if self._norm_where == "after" else joint
            kept["k_scale"] = joint.pow(2).mean(-1, keepdim=True).add(attn.k_norm.eps).rsqrt()
        return kept

    def restore(
        self, kept: Rows, positions: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return joint keys and values."""
        attn = self.attention
        private = torch.einsum("bphr,hdr->bphd", kept["k_coords"], self._read_up)
        k = kept["k_shared"] + (private if self.closed else attn.turn(private, positions))
        if self._norm_where is not None:
            k = k * kept["k_scale"]
        if self._norm_where == "after":
            k = k * self._gain
        return k, attn.v.join(kept["v_shared"][:, :, 0], attn.v.expand(kept["v_coords"]))

    def parts(
        self, q: Float[Tensor, "batch head d_key"], stored: Stored
    ) -> tuple[tuple[KeyPart, ...], tuple[ValuePart, ...]]:
        """Return the shared and the private part of scores and of values."""
        q = q * self._gain if self._norm_where == "after" else q
        coords = stored["k_coords"]
        up = self._read_up
        up = F.pad(up, (0, coords.shape[-1] - up.shape[-1]))
        if self.attention.rotary is None or self.closed:
            private = KeyPart("private", torch.einsum("bhd,hdr->bhr", q, up), coords)
        else:
            private = KeyPart("private", q, coords, self._turn(up))
        values = ValuePart("shared", stored["v_shared"]), ValuePart("private", stored["v_coords"])
        return (KeyPart("shared", q, stored["k_shared"]), private), values

    def expand(self, values: tuple[Tensor, ...]) -> Float[Tensor, "batch head part d_value"]:
        """Return shared values (with the head's bias, if any) and private ones, expanded once."""
        v = self.attention.v
        shared, coords = values[0].to(v.B.dtype), values[1].to(v.B.dtype)
        private = torch.einsum("bhr,hdr->bhd", coords[..., : v.rank], v.B)
        return torch.stack((shared if v.bias is None else shared + v.bias, private), dim=2)

    def row_scale(self, stored: Stored) -> Float[Tensor, "head page slot"] | None:
        """Return one over the norm of the joint keys."""
        return None if self._norm_where is None else stored["k_scale"][..., 0]

    # -- the way up ---------------------------------------------------------------------------------------------------

    @property
    def _norm_where(self) -> str | None:
        norm = self.attention.qk_norm
        return None if norm is None else norm.where

    @property
    def _gain(self) -> Float[Tensor, " d_head"]:
        gain = self.attention.k_norm.w
        return self.attention.k.B.new_ones(self.attention.d_head) if gain is None else gain

    @property
    def _up(self) -> Float[Tensor, "head d_head kept_rank"]:
        """``B``, with the bias as one more column (its coordinate is 1) and a gain that comes before rotation."""
        k = self.attention.k
        up = k.B if k.bias is None else torch.cat((k.B, k.bias[:, :, None]), dim=-1)
        return up * self._gain[:, None] if self._norm_where == "before" else up

    @property
    def _read_up(self) -> Float[Tensor, "head d_head kept_rank"]:
        """The way up from what is kept."""
        return self._basis if self.closed else self._up

    def _with_bias(self, coords: Float[Tensor, "batch pos head rank"]) -> Float[Tensor, "batch pos head kept_rank"]:
        return coords if self.attention.k.bias is None else F.pad(coords, (0, 1), value=1.0)

    def _turn(self, up: Float[Tensor, "head d_head padded_rank"]) -> Turn:
        planes = self.attention.planes()
        if planes is None:
            raise ValueError("keys without rotary positions have nothing to turn")
        first, second = (columns.to(up.device) for columns in self.attention.plane_columns())
        return Turn(up, planes.theta.float().to(up.device), first, second, planes.amplitude)

    # -- coordinates that are rotated themselves ----------------------------------------------------------------------

    def _turned_coordinates(
        self, coords: Float[Tensor, "batch pos head rank"], positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos head rank"]:
        """Return ``z B^T R_j`` in the orthonormal basis Q of the span, which holds it: ``z B^T R_j Q``."""
        turned = self.attention.turn(torch.einsum("bphr,hdr->bphd", coords, self._up), positions)
        return torch.einsum("bphd,hdr->bphr", turned, self._basis)

    def _check_closed(self) -> None:
        if self.attention.k.bias is not None:
            raise ValueError("attention.keys='plane-closed' does not go with biases on keys: rotate them at read")
        violation = closure_violation(self._up.detach(), *self.attention.plane_columns())
        worst = int(violation.argmax())
        if float(violation[worst]) > CLOSED:
            raise ValueError(
                f"attention.keys is 'plane-closed', but the span of head {worst}'s B is not closed under rotation: "
                f"{float(violation[worst]):.3g} of a turned direction sticks out (at most {CLOSED:g} may). "
                "Use keys='rotate-at-read', which is exact for any B"
            )


def closure_violation(
    basis: Float[Tensor, "head width rank"], first: Int[Tensor, " plane"], second: Int[Tensor, " plane"]
) -> Float[Tensor, " head"]:
    """Return how far rotary positions can throw each head's span out of itself.

    A span is closed under rotation by every position exactly if it is closed under the turns of each plane by itself
    (their frequencies differ), so a quarter turn of each is tried.

    Parameters
    ----------
    basis
        `B_h` of each head; need not be orthonormal.
    first, second
        The columns that each plane turns into one another.

    Returns
    -------
    Tensor
        The largest length that a unit vector of the span has outside of it after such a turn: 0 if the span is closed,
        1 if a direction leaves it altogether.

    Examples
    --------
    A single direction of a plane is turned out of itself; the whole plane is not.

    >>> import torch
    >>> line, plane = torch.tensor([[[1.0], [0.0]]]), torch.eye(2)[None]
    >>> [round(float(closure_violation(b, torch.tensor([0]), torch.tensor([1]))), 3) for b in (line, plane)]
    [1.0, 0.0]
    """
    parts = torch.linalg.svd(basis.double(), full_matrices=False)
    span = parts.U * (parts.S[:, :1] * 1e-12 < parts.S)[:, None]
    worst = span.new_zeros(len(span))
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        turned = torch.zeros_like(span)
        turned[:, a], turned[:, b] = -span[:, b], span[:, a]
        outside = turned - span @ (span.mT @ turned)
        worst = torch.maximum(worst, torch.linalg.matrix_norm(outside, ord=2))
    return worst
