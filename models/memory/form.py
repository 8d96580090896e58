"""How one layer keeps its history: what a token leaves, how it is attended to, and how keys and values come back.

A form is chosen when a cache is made. Every variant can keep keys and values as they are (`Dense`); MLA and LRKV have
narrower ones, that are attended to without being written out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import KeyPart, ValuePart
from ..variant import Stream

if TYPE_CHECKING:
    from ..attention import Attention

Rows = Mapping[str, Tensor]
"""What a token leaves: by stream ``[batch, pos, group, width]``."""
Stored = Mapping[str, Tensor]
"""Where it lies: by stream ``[group, page, slot, padded width]``."""


class Form(ABC):
    """One layer's way of keeping history.

    Parameters
    ----------
    attention
        The layer.
    """

    skipped: tuple[str, ...] = ()
    """Hook points on the way from what is kept to keys and values: this form never goes there while decoding."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    @property
    @abstractmethod
    def streams(self) -> tuple[Stream, ...]:
        """What a token leaves."""

    @abstractmethod
    def keep(self, rows: Rows, positions: Int[Tensor, "batch pos"]) -> Rows:
        """Return what to store of new tokens, by stream, from what `Attention.rows` says of them."""

    @abstractmethod
    def restore(
        self, kept: Rows, positions: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return keys (normed and rotated) and values of what was kept, written out."""

    @abstractmethod
    def parts(
        self, q: Float[Tensor, "batch head d_key"], stored: Stored
    ) -> tuple[tuple[KeyPart, ...], tuple[ValuePart, ...]]:
        """Return the parts of a decode step for queries that are normed and rotated."""

    @abstractmethod
    def expand(self, values: tuple[Tensor, ...]) -> Float[Tensor, "batch head part d_value"]:
        """Return each summand of the heads' outputs from the reduced values; their sum is ``z``."""

    def row_scale(self, stored: Stored) -> Float[Tensor, "head page slot"] | None:
        """Return the factor on each head's score at each cached position, if keys are normed after they are joined."""
        return None


class Dense(Form):
    """Keys, normed and rotated, and values: what every variant can keep, and MHA, GQA and MQA do."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """A key and a value a group."""
        config = self.attention.config
        return Stream("k", config.n_groups, config.d_key), Stream("v", config.n_groups, config.d_value)

    def keep(self, rows: Rows, positions: Int[Tensor, "batch pos"]) -> Rows:
        """Return keys and values, through every hook point."""
        k, v = self.attention.keys_values(rows)
        return {"k": self.attention.place_keys(k, positions), "v": v}

    def restore(
        self, kept: Rows, positions: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return them as they are."""
        return kept["k"], kept["v"]

    def parts(
        self, q: Float[Tensor, "batch head d_key"], stored: Stored
    ) -> tuple[tuple[KeyPart, ...], tuple[ValuePart, ...]]:
        """Return one part of keys and one of values."""
        return (KeyPart("all", q, stored["k"]),), (ValuePart("all", stored["v"]),)

    def expand(self, values: tuple[Tensor, ...]) -> Float[Tensor, "batch head part d_value"]:
        """Return the one summand."""
        return values[0][:, :, None]
