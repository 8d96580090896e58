"""MHA, GQA and MQA: one family, told apart by the number of key/value groups.

References
----------
Vaswani et al. (arXiv 1706.03762); Shazeer (arXiv 1911.02150); Ainslie et al. (arXiv 2305.13245).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import Attention, linear, per_head, runs
from .factors import ALL, BilinearForm, Factors
from .folding import fold_qk_gains, note_left_out, stack
from .norms import Norm
from .rope import Rotary
from .variant import RANK_MULTIPLE, PlainHeads, Stream, register, require_positive


@register
@dataclass(frozen=True, kw_only=True)
class GroupedConfig(PlainHeads):
    """Heads in groups that share a key and a value.

    Parameters
    ----------
    d_head
        Width of queries, keys and values.
    n_kv_heads
        Groups; None: one a head (MHA). 1 is MQA, anything between is GQA.
    qk_norm
        RMS norm of queries and keys.

    Examples
    --------
    >>> from headscope import GroupedConfig
    >>> [GroupedConfig(n_heads=8, d_head=16, n_kv_heads=groups).variant for groups in (None, 2, 1)]
    ['mha', 'gqa', 'mqa']
    """

    n_kv_heads: int | None = None

    variants: ClassVar[tuple[str, ...]] = ("mha", "gqa", "mqa")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("n_kv_heads", self.n_groups)
        if self.n_heads % self.n_groups:
            divisors = [g for g in range(1, self.n_heads + 1) if self.n_heads % g == 0]
            raise ValueError(
                f"attention.n_kv_heads should divide n_heads={self.n_heads} (one of {divisors}) but got {self.n_groups}"
            )
        # One a head is written in one way, so that changing n_heads later keeps it MHA.
        object.__setattr__(self, "n_kv_heads", None if self.n_groups == self.n_heads else self.n_groups)

    @property
    def variant(self) -> str:
        """``"mha"``, ``"mqa"`` or ``"gqa"``."""
        if self.n_groups == self.n_heads:
            return "mha"
        return "mqa" if self.n_groups == 1 else "gqa"

    @property
    def n_groups(self) -> int:
        """Number of key/value groups."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    def streams(self, rank_multiple: int = RANK_MULTIPLE) -> tuple[Stream, ...]:
        """Return a key and a value a group."""
        return Stream("k", self.n_groups, self.d_head), Stream("v", self.n_groups, self.d_head)

    def decode_products(self, length: int) -> int:
        """Return a score and a weighted value of `d_head` a head and past token."""
        return 2 * self.n_heads * self.d_head * length

    def kv_parameters(self, d_model: int) -> int:
        """Return one projection for keys and one for values."""
        return 2 * self.n_groups * self.d_head * d_model


@runs(GroupedConfig)
class GroupedAttention(Attention):
    """Attention with one key and value projection a group."""

    def __init__(self, config: GroupedConfig, d_model: int, rotary: Rotary | None) -> None:
        super().__init__(config, d_model, rotary, config.qk_norm)
        self.q = linear(d_model, config.n_heads * config.d_head, config.bias)
        self.k = linear(d_model, config.n_groups * config.d_head, config.bias)
        self.v = linear(d_model, config.n_groups * config.d_head, config.bias)
        self.d_head = config.d_head

    def queries(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos head d_key"]:
        """Project and split into heads."""
        return self.hook_q(self.q(x).unflatten(2, (-1, self.d_head)))

    def rows(self, x: Float[Tensor, "batch pos d_model"]) -> dict[str, Tensor]:
        """Project keys and values and split into groups."""
        split = (-1, self.d_head)
        return {"k": self.k(x).unflatten(2, split), "v": self.v(x).unflatten(2, split)}

    def keys_values(
        self, rows: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return them as they are."""
        return self.hook_k(rows["k"]), self.hook_v(rows["v"])

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_key"]:
        """Query projection of each head (a view)."""
        return per_head(self.q.weight, self.d_head)

    @property
    def W_K(self) -> Float[Tensor, "group d_model d_key"]:
        """Key projection of each group (a view)."""
        return per_head(self.k.weight, self.d_head)

    @property
    def W_V(self) -> Float[Tensor, "group d_model d_value"]:
        """Value projection of each group (a view)."""
        return per_head(self.v.weight, self.d_head)

    def factors(self, layer: int, norm: Norm | None, norm_of_keys: Norm | None = None) -> Factors:
        """One dense factor a head (queries, outputs) or group (keys, values)."""
        heads, of_keys = torch.arange(self.config.n_heads), norm_of_keys or norm
        groups = torch.tensor(self.head_to_group)
        q = stack(layer, "W_Q", self.q.weight, self.d_head, norm, heads)
        k = stack(layer, "W_K", self.k.weight, self.d_head, of_keys, groups)
        v = stack(layer, "W_V", self.v.weight, self.d_head, of_keys, groups)
        o = stack(layer, "W_O", self.o.weight.T, self.d_head, None, heads)
        notes: list[str] = []
        q, k = fold_qk_gains(layer, q, k, self, norm is not None, notes)
        note_left_out(self.config, norm, notes)
        circuits = {"qk": {ALL: (BilinearForm(q, k, self.planes()),)}, "ov": {ALL: (BilinearForm(v, o),)}}
        return Factors(layer, self.config.n_heads, circuits, norm is not None, tuple(notes))
