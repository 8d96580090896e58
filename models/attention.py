"""The attention every variant shares: queries, keys and values in, a pattern, one result a head out.

A variant is one file with two classes: a frozen `AttentionConfig` (what can be chosen, refused when it cannot be) and
an `Attention` module that says how queries, keys and values come about (`queries`, `rows`, `keys_values`), what its
weights are in TransformerLens's shapes, and what its bilinear forms are (`factors`). Everything after the projections
stands here, once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.hook_points import HookPoint

from .factors import Factors, Planes
from .memory.cache import LayerMemory
from .memory.form import Dense, Form
from .norms import Norm
from .rope import Rotary, column_pairs, rotate
from .scores import slope_bias, soft_cap, within
from .variant import AttentionConfig, QKNorm


class Attention(nn.Module, ABC):
    """Causal attention with TransformerLens's hook points.

    ``hook_q``, ``hook_k``, ``hook_v`` stand right after the projections, before any norm or rotation;
    ``hook_q_normed``, ``hook_k_normed`` after the q/k norm; ``hook_rot_q``, ``hook_rot_k`` after the rotation. All of
    them are ``[batch, pos, head or group, width]``. ``hook_attn_scores`` (masked, scaled) and ``hook_pattern`` are
    ``[batch, head, query_pos, key_pos]``, ``hook_z`` is ``[batch, pos, head, d_value]`` and ``hook_result``
    ``[batch, pos, head, d_model]``; the result is worked out head by head only when something is hooked to it. The
    pattern too is written out only when something is hooked to it or to the scores; otherwise a fused product runs,
    which agrees to rounding.
    """

    of_keys: ClassVar[tuple[str, ...]] = ("k", "v", "k_norm")
    """Modules that make keys and values."""

    def __init__(self, config: AttentionConfig, d_model: int, rotary: Rotary | None, qk_norm: QKNorm | None) -> None:
        super().__init__()
        self.config = config
        self.d_model = d_model
        self.rotary = rotary
        self.qk_norm = qk_norm
        self.scale = config.score_scale(rotary)
        self.turned = config.rotated_columns(rotary)
        self.o = linear(config.n_heads * config.d_value, d_model, config.output_bias)
        self.hook_q = HookPoint()
        self.hook_k = HookPoint()
        self.hook_v = HookPoint()
        if qk_norm is not None:
            self.q_norm = qk_norm.build(config.d_key, config.n_heads)
            self.k_norm = qk_norm.build(config.d_key, config.n_groups)
            self.hook_q_normed = HookPoint()
            self.hook_k_normed = HookPoint()
        if rotary is not None:
            self.hook_rot_q = HookPoint()
            self.hook_rot_k = HookPoint()
        self.hook_attn_scores = HookPoint()
        self.hook_pattern = HookPoint()
        self.hook_attn_scores.pos_dim = self.hook_pattern.pos_dim = 2
        self.hook_z = HookPoint()
        self.hook_result = HookPoint()

    # -- what a variant says ------------------------------------------------------------------------------------------

    @abstractmethod
    def queries(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos head d_key"]:
        """Return queries, unrotated, through ``hook_q``."""

    @abstractmethod
    def rows(self, x: Float[Tensor, "batch pos d_model"]) -> dict[str, Tensor]:
        """Return what keys and values are made from, ``[batch, pos, ...]`` by name."""

    @abstractmethod
    def keys_values(
        self, rows: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return keys, unrotated, and values of such rows, through ``hook_k`` and ``hook_v``."""

    @classmethod
    def makes_keys(cls, parameter: str) -> bool:
        """Whether a parameter makes keys or values, so that layers that share these share it."""
        return parameter.split(".")[0] in cls.of_keys

    def form(self) -> Form:
        """Return how this layer keeps its history; by default keys and values as they are."""
        return Dense(self)

    @property
    @abstractmethod
    def W_Q(self) -> Float[Tensor, "head d_model d_key"]:
        """Query projection of each head."""

    @property
    @abstractmethod
    def W_K(self) -> Float[Tensor, "group d_model d_key"]:
        """Key projection of each group."""

    @property
    @abstractmethod
    def W_V(self) -> Float[Tensor, "group d_model d_value"]:
        """Value projection of each group."""

    @abstractmethod
    def factors(self, layer: int, norm: Norm | None, norm_of_keys: Norm | None = None) -> Factors:
        """Return the layer's bilinear forms in float64.

        Parameters
        ----------
        layer
            Index to record.
        norm
            Input norm to fold into the projections (inner norms' gains are then folded too); None: fold nothing.
        norm_of_keys
            The one before keys and values, where another layer makes them; None: the same one.

        Raises
        ------
        ValueError
            If a weight is NaN or Inf; names layer, head and matrix.
        """

    # -- views in TransformerLens's shapes ----------------------------------------------------------------------------

    @property
    def W_O(self) -> Float[Tensor, "head d_value d_model"]:
        """Output projection of each head (a view)."""
        return self.o.weight.T.unflatten(0, (self.config.n_heads, self.config.d_value))

    @property
    def b_O(self) -> Float[Tensor, " d_model"]:
        """Output bias, zeros if there is none."""
        return self.o.weight.new_zeros(self.d_model) if self.o.bias is None else self.o.bias

    @property
    def head_to_group(self) -> list[int]:
        """Group of each query head."""
        return self.config.head_to_group

    def group_of(self, head: int) -> int:
        """Return the key/value group of a query head; IndexError names the range."""
        if not 0 <= head < self.config.n_heads:
            raise IndexError(f"head {head} does not exist: this layer has heads 0–{self.config.n_heads - 1}")
        return self.head_to_group[head]

    def QK(self, head: int) -> FactoredMatrix:
        """Return ``W_Q[head] W_K[group]^T`` in factored shape, without positions, norms or scale."""
        group = self.group_of(head)
        return FactoredMatrix(self.W_Q[head], self.W_K[group].T)

    def OV(self, head: int) -> FactoredMatrix:
        """Return ``W_V[group] W_O[head]`` in factored shape."""
        group = self.group_of(head)
        return FactoredMatrix(self.W_V[group], self.W_O[head])

    def planes(self, first_column: int = 0) -> Planes | None:
        """Return the rotary planes of a head's key, counted from `first_column`; None without rotary positions."""
        if self.rotary is None:
            return None
        theta = self.rotary.frequencies(self.turned.stop - self.turned.start).double()
        return Planes(self.turned.start - first_column, theta, self.rotary.interleaved, self.rotary.amplitude)

    def plane_columns(self) -> tuple[Int[Tensor, " plane"], Int[Tensor, " plane"]]:
        """Return the two columns of a key that each rotary plane turns into one another; none without positions."""
        columns = torch.arange(self.config.d_key)
        interleaved = self.rotary is not None and self.rotary.interleaved
        first, second = column_pairs(self.turned.start, self.turned.stop, interleaved)
        return columns[first], columns[second]

    # -- the part all variants share ----------------------------------------------------------------------------------

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        positions: Int[Tensor, "batch pos"],
        visible: Bool[Tensor, "#batch #head query_pos key_pos"] | None,
        memory: LayerMemory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Attend.

        Parameters
        ----------
        x
            Normalised residual stream.
        positions
            Position of each token, for the rotation.
        visible
            True where a query may look at a key; None: at itself and all before it. The layer's window narrows it. A
            query that may look nowhere (a pad) gets a pattern of zeros.
        memory
            History to go on with, instead of `visible`.
        """
        q = self.place_queries(self.queries(x), positions)
        rows = self.rows(x)
        if memory is not None:
            z = self._attend_history(q, rows, positions, memory)
        else:
            k, v = self.keys_values(rows)
            z = self._attend_among(q, self.place_keys(k, positions), v, positions, visible)
        z = self.hook_z(z)
        if self.hook_result.has_hooks():
            result = self.hook_result(torch.einsum("bphd,hdm->bphm", z, self.W_O))
            return result.sum(2) + self.b_O
        return self.o(z.flatten(2))

    @property
    def _watched(self) -> bool:
        return self.hook_attn_scores.has_hooks() or self.hook_pattern.has_hooks()

    def _attend_history(
        self, q: Tensor, rows: Mapping[str, Tensor], positions: Tensor, memory: LayerMemory
    ) -> Float[Tensor, "batch pos head d_value"]:
        """Store what the new tokens leave and attend to the whole history.

        One token a request attends to what is stored as it is stored. Several at once, or a pattern that somebody
        looks at, need keys and values written out.
        """
        for name in memory.form.skipped:
            point = getattr(self, name, None)
            if point is not None and point.has_hooks():
                kind = type(memory.form).__name__.lower()
                raise ValueError(
                    f"layer {memory.index}: {name} is hooked, but this cache keeps {kind} rows and never goes there: "
                    "make the cache with expanded=True"
                )
        kept = memory.form.keep(rows, positions)
        memory.write(kept)
        if q.shape[1] == 1 and self.config.between(memory.longest) is None and not self._watched:
            return memory.decode(q[:, 0], self.scale).to(q.dtype)[:, None]
        if memory.is_first:
            return self._attend_among(q, *memory.form.restore(kept, positions), positions, memory.visible)
        kept = {name: stored.to(q.dtype) for name, stored in memory.history().items()}
        key_pos = torch.arange(memory.longest, device=q.device).expand(len(q), -1)
        visible = memory.visible
        if self.config.window is not None:
            visible = within(visible, self.config.window, positions, key_pos)
        return self._attend(q, *memory.form.restore(kept, key_pos), positions, key_pos, visible)

    def _attend_among(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, visible: Tensor | None) -> Tensor:
        """Attend to keys that stand where the queries do."""
        if self.config.window is not None:
            visible = within(visible, self.config.window, positions, positions)
        if visible is None and self.config.between(k.shape[1]) is None and not self._watched:
            return self._attend_fused(q, k, v)
        return self._attend(q, k, v, positions, positions, visible)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, query_pos: Tensor, key_pos: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Return each head's weighted values ``[batch, pos, head, d_value]``, writing the pattern out."""
        if visible is None:
            visible = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).tril()[None, None]
        per_group = self.config.n_heads // self.config.n_groups
        grouped_q = q.unflatten(2, (self.config.n_groups, per_group))
        scores = torch.einsum("bqgnd,bkgd->bgnqk", grouped_q, k).flatten(1, 2) * self.scale
        if self.config.softcap is not None:
            scores = soft_cap(scores, self.config.softcap)
        if self.config.slopes is not None:
            scores = scores + slope_bias(self.config.slopes, query_pos, key_pos, scores.dtype)
        scores = self.hook_attn_scores(scores.masked_fill(~visible, -math.inf))
        pattern = self.hook_pattern(masked_softmax(scores, visible).to(v.dtype))
        grouped = pattern.unflatten(1, (self.config.n_groups, per_group))
        return torch.einsum("bgnqk,bkgd->bqgnd", grouped, v).flatten(2, 3)

    def _attend_fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the same without writing the pattern out: nobody looks at it."""
        per_group = self.config.n_heads // self.config.n_groups
        q, k, v = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(per_group, 1) for x in (k, v))
        # The fused product wants keys and values of one width; columns of zeros change neither scores nor sums.
        width = max(q.shape[-1], v.shape[-1])
        q, k, padded = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
        z = F.scaled_dot_product_attention(q, k, padded, is_causal=True, scale=self.scale)
        return z[..., : v.shape[-1]].transpose(1, 2)

    def place_queries(
        self, q: Float[Tensor, "batch pos head d_key"], positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos head d_key"]:
        """Apply the norm and the rotation to queries, in the configured order, through their hook points."""
        where = None if self.qk_norm is None else self.qk_norm.where
        q = self.hook_q_normed(self.q_norm(q)) if where == "before" else q
        q = q if self.rotary is None else self.hook_rot_q(self.turn(q, positions))
        return self.hook_q_normed(self.q_norm(q)) if where == "after" else q

    def place_keys(
        self, k: Float[Tensor, "batch pos group d_key"], positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos group d_key"]:
        """Apply the norm and the rotation to keys."""
        where = None if self.qk_norm is None else self.qk_norm.where
        k = self.hook_k_normed(self.k_norm(k)) if where == "before" else k
        k = k if self.rotary is None else self.hook_rot_k(self.turn(k, positions))
        return self.hook_k_normed(self.k_norm(k)) if where == "after" else k

    def turn(
        self, x: Float[Tensor, "batch pos head d_key"], positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos head d_key"]:
        """Return vectors with the columns that turn rotated by their positions (as they are without any)."""
        if self.rotary is None:
            return x
        start, stop = self.turned.start, self.turned.stop
        turned = rotate(x[..., start:stop], positions, self.rotary)
        if stop - start == x.shape[-1]:
            return turned
        return torch.cat((x[..., :start], turned, x[..., stop:]), dim=-1)


def masked_softmax(
    scores: Float[Tensor, "batch head query_pos key_pos"],
    visible: Bool[Tensor, "#batch #head query_pos key_pos"],
) -> Float[Tensor, "batch head query_pos key_pos"]:
    """Softmax over the visible keys: exactly zero elsewhere, a row of zeros (not NaN) where nothing is visible.

    Computed in float32 for half-precision scores.
    """
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    nothing = ~visible.any(-1, keepdim=True)
    pattern = scores.masked_fill(nothing, 0.0).softmax(-1)
    return pattern * visible


def linear(d_in: int, d_out: int, bias: bool = False) -> nn.Linear:
    """Return a projection with weights drawn from ``N(0, 1 / d_in)`` and zero bias."""
    layer = nn.Linear(d_in, d_out, bias=bias)
    nn.init.normal_(layer.weight, std=d_in**-0.5)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def per_head(weight: Float[Tensor, "rows d_in"], width: int) -> Float[Tensor, "head d_in width"]:
    """View a stacked projection as one matrix a head."""
    return weight.unflatten(0, (-1, width)).transpose(1, 2)


Module = TypeVar("Module", bound=type[Attention])

_MODULES: dict[type[AttentionConfig], Any] = {}


def runs(config: type[AttentionConfig]) -> Callable[[Module], Module]:
    """Class decorator: say which configurations a module runs."""

    def enter(module: Module) -> Module:
        if config in _MODULES:
            raise ValueError(f"{config.__name__} has a module already: {_MODULES[config].__name__}")
        _MODULES[config] = module
        return module

    return enter


def build_attention(config: AttentionConfig, d_model: int, rotary: Rotary | None) -> Attention:
    """Return a variant's module for residual streams of width `d_model`, initialised at random."""
    return _MODULES[type(config)](config, d_model, rotary)
