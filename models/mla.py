"""MLA: keys and values expanded from one normalised latent a token, plus one rotary key that all heads share.

``c = RMSNorm(x W_DKV) * g``; ``k_h = [c W_UK[h], RoPE(x W_KR)]``; ``v_h = c W_UV[h]``. The query is dense or goes
through a normalised latent of its own. A token stores ``c`` and the rotated shared key.

References
----------
DeepSeek-V2 (arXiv 2405.04434), section 2.1; DeepSeek-V3 (arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from .attention import Attention, linear, per_head, runs
from .factors import ALL, CONTENT_D_MODEL, BilinearForm, Factors, Separate, Through
from .folding import matrix, note_left_out, stack
from .memory.form import Form
from .memory.latent import Latent
from .norms import Norm, require_eps
from .rope import Rotary, rotate
from .variant import RANK_MULTIPLE, AttentionConfig, Stream, register, require_positive


@register
@dataclass(frozen=True, kw_only=True)
class MLAConfig(AttentionConfig):
    """Multi-head latent attention.

    Parameters
    ----------
    d_latent
        Width of the key/value latent.
    d_nope
        Content columns of a head's query and key.
    d_rope
        Rotary columns of a head's query, and the width of the shared rotary key (even; 0: none).
    d_value_head
        Width of a head's value.
    d_q_latent
        Width of the query's latent; None: a dense query projection.
    latent_eps
        Added to the mean square in the latents' norms.
    latent_norm
        Whether the latents are normalised.
    bias
        Biases on the down-projections (a dense query has none).

    Examples
    --------
    >>> from headscope import MLAConfig
    >>> attention = MLAConfig(n_heads=128, d_latent=512, d_nope=128, d_rope=64, d_value_head=128, d_q_latent=1536)
    >>> attention.cache_width(), attention.dense_width
    (576, 32768)
    """

    d_latent: int
    d_nope: int
    d_rope: int
    d_value_head: int
    d_q_latent: int | None = None
    latent_eps: float = 1e-6
    latent_norm: bool = True

    variants: ClassVar[tuple[str, ...]] = ("mla",)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d_latent", "d_nope", "d_value_head"):
            require_positive(name, getattr(self, name))
        if self.d_q_latent is not None:
            require_positive("d_q_latent", self.d_q_latent)
        require_eps("attention.latent_eps", self.latent_eps)
        if isinstance(self.d_rope, bool) or not isinstance(self.d_rope, int) or self.d_rope < 0 or self.d_rope % 2:
            raise ValueError(f"attention.d_rope should be an even integer >= 0 but got {self.d_rope!r}")

    @property
    def variant(self) -> str:
        """``"mla"``."""
        return "mla"

    @property
    def n_groups(self) -> int:
        """Every head has a key of its own once the latent is expanded."""
        return self.n_heads

    def streams(self, rank_multiple: int = RANK_MULTIPLE) -> tuple[Stream, ...]:
        """Return the latent and the shared rotary key."""
        latent = Stream("latent", 1, self.d_latent)
        return (latent, Stream("k_rot", 1, self.d_rope)) if self.d_rope else (latent,)

    def decode_products(self, length: int) -> int:
        """Return what absorbed decode takes: scores and values in the latent, the query in and the output out once."""
        per_token = 2 * self.d_latent + self.d_rope
        return self.n_heads * (length * per_token + self.d_latent * (self.d_nope + self.d_value_head))

    def kv_parameters(self, d_model: int) -> int:
        """Return the way down to latent and rotary key, and the way up to each head's content key and value."""
        return d_model * (self.d_latent + self.d_rope) + self.n_heads * self.d_latent * (
            self.d_nope + self.d_value_head
        )

    @property
    def d_key(self) -> int:
        """Width of queries and keys: content and rotary columns."""
        return self.d_nope + self.d_rope

    @property
    def d_value(self) -> int:
        """Width of values."""
        return self.d_value_head

    @property
    def rotary_width(self) -> int:
        """The rotary channel, no more and no less."""
        return self.d_rope

    def score_scale(self, rotary: Rotary | None) -> float:
        """Return `scale`, or ``1 / sqrt(key width)`` times YaRN's factor on the scores, as DeepSeek has it."""
        factor = 1.0 if rotary is None or self.scale is not None else rotary.softmax_factor
        return super().score_scale(rotary) * factor


@runs(MLAConfig)
class MLAAttention(Attention):
    """Latent attention.

    Besides the common hook points: ``hook_latent`` ``[batch, pos, d_latent]``, the normalised latent; ``hook_k_rot``
    ``[batch, pos, d_rope]``, the shared key of the position channel before its rotation; and, with a query latent,
    ``hook_q_latent`` ``[batch, pos, d_q_latent]``. A head's ``hook_q`` and ``hook_k`` are content columns, then rotary
    ones.
    """

    of_keys = ("kv_down", "latent_norm", "k_rot", "k_up", "v_up")

    def __init__(self, config: MLAConfig, d_model: int, rotary: Rotary | None) -> None:
        super().__init__(config, d_model, rotary, qk_norm=None)
        self.mla = config
        heads = config.n_heads
        if config.d_q_latent is None:
            self.q = linear(d_model, heads * config.d_key)
        else:
            self.q_down = linear(d_model, config.d_q_latent, config.bias)
            self.q_latent_norm = Norm(config.d_q_latent, config.latent_eps) if config.latent_norm else None
            self.q_up = linear(config.d_q_latent, heads * config.d_key)
            self.hook_q_latent = HookPoint()
        self.kv_down = linear(d_model, config.d_latent, config.bias)
        self.latent_norm = Norm(config.d_latent, config.latent_eps) if config.latent_norm else None
        self.k_up = linear(config.d_latent, heads * config.d_nope)
        self.v_up = linear(config.d_latent, heads * config.d_value_head)
        self.hook_latent = HookPoint()
        if config.d_rope:
            self.k_rot = linear(d_model, config.d_rope, config.bias)
            self.hook_k_rot = HookPoint()

    def queries(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos head d_key"]:
        """Project, through the query's latent if there is one."""
        if self.mla.d_q_latent is None:
            q = self.q(x)
        else:
            q_latent = self.q_down(x)
            q_latent = q_latent if self.q_latent_norm is None else self.q_latent_norm(q_latent)
            q = self.q_up(self.hook_q_latent(q_latent))
        return self.hook_q(q.unflatten(2, (self.config.n_heads, -1)))

    def rows(self, x: Float[Tensor, "batch pos d_model"]) -> dict[str, Tensor]:
        """Compress and normalise; beside it the shared key of the position channel."""
        latent = self.kv_down(x)
        rows = {"latent": self.hook_latent(latent if self.latent_norm is None else self.latent_norm(latent))}
        return rows | {"k_rot": self.hook_k_rot(self.k_rot(x))} if self.mla.d_rope else rows

    def keys_values(
        self, rows: Mapping[str, Tensor]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Expand."""
        heads = (self.config.n_heads, -1)
        k = self.k_up(rows["latent"]).unflatten(2, heads)
        if self.mla.d_rope:
            k = torch.cat((k, rows["k_rot"][:, :, None].expand(-1, -1, self.config.n_heads, -1)), dim=-1)
        return self.hook_k(k), self.hook_v(self.v_up(rows["latent"]).unflatten(2, heads))

    def form(self) -> Form:
        """Keep latents, and bring queries to them."""
        return Latent(self)

    def turn_channel(
        self, k_rot: Float[Tensor, "batch pos 1 d_rope"], positions: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, "batch pos 1 d_rope"]:
        """Return shared keys of the position channel rotated (as they are without rotary positions)."""
        return k_rot if self.rotary is None else rotate(k_rot, positions, self.rotary)

    # -- weights: plain heads, exact up to one positive scalar a token and latent (its norm's divisor) ----------------

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_key"]:
        """Query projection of each head; through a query latent, up to the token's positive norm scalar."""
        if self.mla.d_q_latent is None:
            return per_head(self.q.weight, self.config.d_key)
        return self._through(self.q_down.weight, self.q_latent_norm, self.q_up.weight, self.config.d_key)

    @property
    def W_K(self) -> Float[Tensor, "group d_model d_key"]:
        """Key projection of each head: content columns up to the token's positive norm scalar, then rotary columns."""
        content = self._through(self.kv_down.weight, self.latent_norm, self.k_up.weight, self.mla.d_nope)
        if not self.mla.d_rope:
            return content
        return torch.cat((content, self.k_rot.weight.T.expand(self.config.n_heads, -1, -1)), dim=-1)

    @property
    def W_V(self) -> Float[Tensor, "group d_model d_value"]:
        """Value projection of each head, up to the token's positive norm scalar."""
        return self._through(self.kv_down.weight, self.latent_norm, self.v_up.weight, self.mla.d_value_head)

    @staticmethod
    def _through(down: Tensor, norm: Norm | None, up: Tensor, width: int) -> Tensor:
        gained = down if norm is None or norm.w is None else down * norm.w[:, None]
        return gained.T @ per_head(up, width)

    def factors(self, layer: int, norm: Norm | None, norm_of_keys: Norm | None = None) -> Factors:
        """Forms between what is multiplied: the normalised latents, and for the position channel the token itself.

        Parts of ``qk``: ``content``, ``W_UQ[h] W_UK[h]^T`` between the latents; ``position``, ``W_QR[h] R W_KR^T``;
        ``joint``, both as one form on the stacked input (latent and token), whose inner products are the sum of the
        two; and ``content_d_model``, content between residual streams, ``W_DQ M_h W_DKV^T``, which holds up to the
        latents' token scalars and is what compares with other variants. ``ov`` is ``W_UV[h] W_O[h]`` from the latent.
        """
        cfg, heads, of_keys = self.mla, torch.arange(self.config.n_heads), norm_of_keys or norm
        latent_norm = None if norm is None else self.latent_norm
        query, q_base = self._query(layer, norm)
        k = stack(layer, "W_UK", self.k_up.weight, cfg.d_nope, latent_norm, heads)
        v = stack(layer, "W_UV", self.v_up.weight, cfg.d_value_head, latent_norm, heads)
        o = stack(layer, "W_O", self.o.weight.T, cfg.d_value_head, None, heads)
        q_content = Separate(query(slice(None, cfg.d_nope)), heads)
        content = BilinearForm(q_content, k)
        qk: dict[str, tuple[BilinearForm, ...]] = {"content": (content,)}
        if cfg.d_rope:
            q_rope = Separate(query(slice(cfg.d_nope, None)), heads)
            k_rope = stack(layer, "W_KR", self.k_rot.weight, cfg.d_rope, of_keys, torch.zeros_like(heads))
            position = BilinearForm(q_rope, k_rope, self.planes(first_column=cfg.d_nope))
            qk |= {"position": (position,), "joint": (content, position)}
        outer_q = q_content if q_base is None else Through(q_base, q_content)
        outer_k = Through(matrix(layer, "W_DKV", self.kv_down.weight, of_keys).T, k)
        qk[CONTENT_D_MODEL] = (BilinearForm(outer_q, outer_k),)
        notes: list[str] = []
        if cfg.latent_norm:
            notes.append(
                "MLA: the latents' norms divide by a positive scalar a token, shared by all heads, not in the forms"
            )
        note_left_out(self.config, norm, notes)
        circuits = {"qk": qk, "ov": {ALL: (BilinearForm(v, o),)}}
        return Factors(layer, cfg.n_heads, circuits, norm is not None, tuple(notes))

    def _query(
        self, layer: int, norm: Norm | None
    ) -> tuple[Callable[[slice], Float[Tensor, "head width d_in"]], Float[Tensor, "d_model latent"] | None]:
        """Return what gives some columns of every head's query and, through a latent, the map into it."""
        split = (self.config.n_heads, self.config.d_key)
        if self.mla.d_q_latent is None:
            dense = self.q.weight.unflatten(0, split)
            return lambda columns: matrix(layer, "W_Q", dense[:, columns], norm), None
        latent_norm = None if norm is None else self.q_latent_norm
        up = self.q_up.weight.unflatten(0, split)
        base = matrix(layer, "W_DQ", self.q_down.weight, norm).T
        return lambda columns: matrix(layer, "W_UQ", up[:, columns], latent_norm), base
