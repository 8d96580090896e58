"""LRKV: keys and values as one dense projection shared by the layer plus a low-rank residual of each head's own.

``W_h = W_S + U_h B_h^T``: `W_S` ``[d_model, d_head]``, `U_h` ``[d_model, rank]``, `B_h` ``[d_head, rank]``. A token
stores one wide shared row ``x W_S`` and one narrow row ``x U_h`` a head; `B_h` is a weight.

References
----------
O'Neill, Clancy, Matskevichus, Reid, Low-Rank Key Value Attention (arXiv 2601.11471v3), section 3, equations 2-7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import Attention, linear, per_head, runs
from .factors import ALL, BilinearForm, Factors, SharedPlusPrivate
from .folding import fold_qk_gains, matrix, note_left_out, stack
from .memory.factored import Factored
from .memory.form import Form
from .norms import Norm
from .rope import Rotary
from .variant import RANK_MULTIPLE, PlainHeads, Stream, register

RESIDUAL_RATIO = 0.1
"""``|U B^T| / |W_S|`` at initialisation: near MQA, yet both factors get a gradient (neither is zero)."""


@register
@dataclass(frozen=True, kw_only=True)
class LRKVConfig(PlainHeads):
    """Shared base and per-head residuals for keys and values.

    Parameters
    ----------
    d_head
        Width of queries, keys and values.
    rank
        Rank of the residuals, 1 to `d_head`.
    qk_norm
        RMS norm of queries and of the joint keys (shared and private together).
    keys
        How a cache of coordinates stays exact under rotary positions: ``"rotate-at-read"`` (any `B`), or
        ``"plane-closed"`` for a `B` whose span is closed under rotation (whole planes, or columns that do not turn),
        which is checked when a cache is made. The forward pass does not depend on it.

    Examples
    --------
    >>> from headscope import LRKVConfig
    >>> attention = LRKVConfig(n_heads=18, d_head=128, rank=55)
    >>> attention.cache_width(), attention.dense_width
    (2236, 4608)
    """

    rank: int
    keys: Literal["rotate-at-read", "plane-closed"] = "rotate-at-read"

    variants: ClassVar[tuple[str, ...]] = ("lrkv",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 1 <= self.rank <= self.d_head:
            raise ValueError(
                f"attention.rank should be an integer from 1 to d_head={self.d_head} but got {self.rank!r} "
                "(rank 0 is MQA: use n_kv_heads=1)"
            )
        if self.keys not in ("rotate-at-read", "plane-closed"):
            raise ValueError(f"attention.keys should be 'rotate-at-read' or 'plane-closed' but got {self.keys!r}")
        if self.qk_norm is not None and self.qk_norm.span == "all":
            raise ValueError("attention.qk_norm.span should be 'head' for lrkv: a gain a head would end what is shared")

    @property
    def variant(self) -> str:
        """``"lrkv"``."""
        return "lrkv"

    @property
    def n_groups(self) -> int:
        """Every head has a key of its own once the residual is added."""
        return self.n_heads

    def streams(self, rank_multiple: int = RANK_MULTIPLE) -> tuple[Stream, ...]:
        """Return shared rows and coordinates, for keys and again for values.

        A bias on keys takes one more coordinate a head, and a norm of joint keys one scalar a head.
        """

        def narrow(name: str, rank: int) -> Stream:
            return Stream(name, self.n_heads, rank, -(-rank // rank_multiple) * rank_multiple)

        streams = (
            Stream("k_shared", 1, self.d_head),
            narrow("k_coords", self.rank + self.bias),
            Stream("v_shared", 1, self.d_head),
            narrow("v_coords", self.rank),
        )
        return streams if self.qk_norm is None else (*streams, Stream("k_scale", self.n_heads, 1))

    def decode_products(self, length: int) -> int:
        """Return both branches of score and value a past token, and twice `B` a step: ``1 + r/d_h + r/T`` of MHA's.

        References
        ----------
        arXiv 2601.11471v3, equations 6 and 7: the query goes through `B` once, the values are reduced before `B`.
        """
        return 2 * self.n_heads * (length * (self.d_head + self.rank) + self.rank * self.d_head)

    def decode_products_rotary(self, length: int) -> int:
        """Return the same where rotary positions meet a `B` of any kind: private keys are rebuilt, a block at a time.

        The rotation comes between the coordinates and the query, ``q (z B^T D_j)^T``, and can be moved before `B` only
        if the span of `B` is closed under it. So each past token's private key is expanded, added to the shared one and
        rotated; the value side stays as it is.
        """
        keys = length * (self.rank + 1) * self.d_head
        return self.n_heads * (keys + length * (self.d_head + self.rank) + self.rank * self.d_head)

    def kv_parameters(self, d_model: int) -> int:
        """Return the shared base and both factors of each head's residual, for keys and again for values."""
        return 2 * (d_model * self.d_head + self.n_heads * self.rank * (d_model + self.d_head))


def rank_for(ratio: float, n_heads: int, d_head: int, n_groups: int | None = None) -> int:
    """Return the largest LRKV rank whose cache is at most `ratio` of MHA's: ``floor(d_head (ratio - 1 / n_heads))``.

    Parameters
    ----------
    ratio
        Share of the other cache.
    n_heads, d_head
        Heads and their width.
    n_groups
        Distinct keys of the other cache, if it is not MHA's but GQA's.

    Raises
    ------
    ValueError
        If not even rank 1 fits, or the ratio would need a rank above `d_head`.

    Examples
    --------
    >>> rank_for(0.5, 18, 128), rank_for(1 / 3, 18, 128)
    (56, 35)
    """
    groups = n_groups or n_heads
    # A ratio meant to hit a rank exactly must not lose it to rounding.
    rank = math.floor(d_head * (ratio * groups - 1) / n_heads + 1e-9)
    if not 1 <= rank <= d_head:
        low, high = (1 + n_heads / d_head) / groups, (1 + n_heads) / groups
        raise ValueError(
            f"cache ratio should be between {low:.4f} (rank 1) and {high:.4f} (rank {d_head}) "
            f"for {n_heads} heads of {d_head} but got {ratio}"
        )
    return rank


class SharedAndPrivate(nn.Module):
    """One side (keys or values): ``x -> x W_S``, ``x U_h`` and ``(x U_h) B_h^T``.

    Initialised so that ``|U B^T| = 0.1 |W_S|`` in expectation: `U` like any projection, `B` with entries of standard
    deviation ``0.1 / sqrt(rank)``.
    """

    def __init__(self, d_model: int, config: LRKVConfig) -> None:
        super().__init__()
        self.rank = config.rank
        self.shared = linear(d_model, config.d_head)
        self.down = linear(d_model, config.n_heads * config.rank)
        self.B = nn.Parameter(torch.empty(config.n_heads, config.d_head, config.rank))
        nn.init.normal_(self.B, std=RESIDUAL_RATIO / config.rank**0.5)
        self.bias = nn.Parameter(torch.zeros(config.n_heads, config.d_head)) if config.bias else None

    @property
    def W_S(self) -> Float[Tensor, "d_model d_head"]:
        """Shared base (a view)."""
        return self.shared.weight.T

    @property
    def U(self) -> Float[Tensor, "head d_model rank"]:
        """Down-factors of the residuals (a view)."""
        return per_head(self.down.weight, self.rank)

    @property
    def W(self) -> Float[Tensor, "head d_model d_head"]:
        """Effective projection of each head, ``W_S + U_h B_h^T`` (computed)."""
        return self.W_S + self.U @ self.B.transpose(1, 2)

    def coordinates(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos head rank"]:
        """Return the private coordinates ``x U_h``, what a cache stores."""
        return self.down(x).unflatten(2, (-1, self.rank))

    def expand(self, coordinates: Float[Tensor, "batch pos head rank"]) -> Float[Tensor, "batch pos head d_head"]:
        """Return the private residuals ``z B_h^T``."""
        return torch.einsum("bphr,hdr->bphd", coordinates, self.B)

    def join(
        self, shared: Float[Tensor, "batch pos d_head"], private: Float[Tensor, "batch pos head d_head"]
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Return shared plus private (plus the head's bias)."""
        joint = shared[:, :, None] + private
        return joint if self.bias is None else joint + self.bias

    def stack(self, layer: int, side: str, norm: Norm | None) -> SharedPlusPrivate:
        """Return the side's float64 factors (`side` is ``"K"`` or ``"V"``, for messages)."""
        down = matrix(layer, f"U_{side}", self.down.weight.unflatten(0, (-1, self.rank)), norm)
        up = matrix(layer, f"B_{side}", self.B)
        return SharedPlusPrivate(matrix(layer, f"W_S{side}", self.shared.weight, norm).T, down.transpose(1, 2), up)


@runs(LRKVConfig)
class LRKVAttention(Attention):
    """Attention whose keys and values are a shared row plus low-rank residuals.

    Besides the common hook points: ``hook_k_shared``, ``hook_v_shared`` ``[batch, pos, d_head]``; ``hook_k_private``,
    ``hook_v_private`` ``[batch, pos, head, d_head]``, the residuals ``(x U_h) B_h^T``; and ``hook_k_coords``,
    ``hook_v_coords`` ``[batch, pos, head, rank]``, the coordinates ``x U_h`` that a factored cache holds.
    ``hook_k = hook_k_shared + hook_k_private`` (plus the bias, if any).
    """

    def __init__(self, config: LRKVConfig, d_model: int, rotary: Rotary | None) -> None:
        super().__init__(config, d_model, rotary, config.qk_norm)
        self.lrkv = config
        self.d_head = config.d_head
        self.q = linear(d_model, config.n_heads * config.d_head, config.bias)
        self.k = SharedAndPrivate(d_model, config)
        self.v = SharedAndPrivate(d_model, config)
        self.hook_k_shared = HookPoint()
        self.hook_k_coords = HookPoint()
        self.hook_k_private = HookPoint()
        self.hook_v_shared = HookPoint()
        self.hook_v_coords = HookPoint()
        self.hook_v_private = HookPoint()

    def queries(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos head d_key"]:
        """Project and split into heads."""
        return self.hook_q(self.q(x).unflatten(2, (-1, self.d_head)))

    def rows(self, x: Float[Tensor, "batch pos d_model"]) -> dict[str, Tensor]:
        """Return the shared rows and the coordinates."""
        return {
            "k_shared": self.hook_k_shared(self.k.shared(x)),
            "k_coords": self.hook_k_coords(self.k.coordinates(x)),
            "v_shared": self.hook_v_shared(self.v.shared(x)),
            "v_coords": self.hook_v_coords(self.v.coordinates(x)),
        }

    def keys_values(
        self, rows: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Expand the coordinates and add them to the shared row."""
        k_private = self.hook_k_private(self.k.expand(rows["k_coords"]))
        v_private = self.hook_v_private(self.v.expand(rows["v_coords"]))
        k, v = self.k.join(rows["k_shared"], k_private), self.v.join(rows["v_shared"], v_private)
        return self.hook_k(k), self.hook_v(v)

    def form(self) -> Form:
        """Keep shared rows and coordinates."""
        return Factored(self)

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_key"]:
        """Query projection of each head (a view)."""
        return per_head(self.q.weight, self.d_head)

    @property
    def W_K(self) -> Float[Tensor, "group d_model d_key"]:
        """Effective key projection of each head (computed; edit `k.shared`, `k.down` and `k.B` instead)."""
        return self.k.W

    @property
    def W_V(self) -> Float[Tensor, "group d_model d_value"]:
        """Effective value projection of each head (computed)."""
        return self.v.W

    def factors(self, layer: int, norm: Norm | None, norm_of_keys: Norm | None = None) -> Factors:
        """Return queries and outputs dense, keys and values as base plus residuals."""
        heads, of_keys = torch.arange(self.config.n_heads), norm_of_keys or norm
        q = stack(layer, "W_Q", self.q.weight, self.d_head, norm, heads)
        o = stack(layer, "W_O", self.o.weight.T, self.d_head, None, heads)
        k, v = self.k.stack(layer, "K", of_keys), self.v.stack(layer, "V", of_keys)
        notes: list[str] = []
        q, k = fold_qk_gains(layer, q, k, self, norm is not None, notes)
        note_left_out(self.config, norm, notes)
        circuits = {"qk": {ALL: (BilinearForm(q, k, self.planes()),)}, "ov": {ALL: (BilinearForm(v, o),)}}
        return Factors(layer, self.config.n_heads, circuits, norm is not None, tuple(notes))
