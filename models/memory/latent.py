"""MLA's history: the normalised latent and the rotated shared key; queries come to the latent, not latents to keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import KeyPart, ValuePart
from ..variant import Stream
from .form import Form, Rows, Stored

if TYPE_CHECKING:
    from ..mla import MLAAttention


class Latent(Form):
    """The latent and the position channel.

    ``score = ((q_n W_UK[h]^T) . c_j + q_r . k_r,j) scale`` and ``z_h = (sum_j a_j c_j) W_UV[h]`` (DeepSeek-V2, arXiv
    2405.04434, section 2.1).
    """

    skipped = ("hook_k", "hook_v", "hook_rot_k")
    attention: MLAAttention

    @property
    def streams(self) -> tuple[Stream, ...]:
        """As configured."""
        return self.attention.mla.streams()

    def keep(self, rows: Rows, positions: Int[Tensor, "batch pos"]) -> Rows:
        """Return latents as they are and shared keys rotated."""
        kept = {"latent": rows["latent"][:, :, None]}
        if self.attention.mla.d_rope:
            kept["k_rot"] = self.attention.turn_channel(rows["k_rot"][:, :, None], positions)
        return kept

    def restore(
        self, kept: Rows, positions: Int[Tensor, "batch pos"]
    ) -> tuple[Float[Tensor, "batch pos group d_key"], Float[Tensor, "batch pos group d_value"]]:
        """Return keys and values, expanded through the up-projections."""
        heads = (self.attention.config.n_heads, -1)
        latent = kept["latent"][:, :, 0]
        k = self.attention.k_up(latent).unflatten(2, heads)
        if self.attention.mla.d_rope:
            k = torch.cat((k, kept["k_rot"].expand(-1, -1, heads[0], -1)), dim=-1)
        return k, self.attention.v_up(latent).unflatten(2, heads)

    def parts(
        self, q: Float[Tensor, "batch head d_key"], stored: Stored
    ) -> tuple[tuple[KeyPart, ...], tuple[ValuePart, ...]]:
        """Return content and position of the score, and the latents once more as values."""
        cfg = self.attention.mla
        up = self.attention.k_up.weight.unflatten(0, (cfg.n_heads, cfg.d_nope))
        absorbed = torch.einsum("bhn,hnc->bhc", q[..., : cfg.d_nope], up)
        keys = [KeyPart("content", absorbed, stored["latent"])]
        if cfg.d_rope:
            keys.append(KeyPart("position", q[..., cfg.d_nope :], stored["k_rot"]))
        return tuple(keys), (ValuePart("latent", stored["latent"]),)

    def expand(self, values: tuple[Tensor, ...]) -> Float[Tensor, "batch head part d_value"]:
        """Return the reduced latents through ``W_UV``."""
        up = self.attention.v_up.weight.unflatten(0, (self.attention.config.n_heads, -1))
        return torch.einsum("bhc,hvc->bhv", values[0].to(up.dtype), up)[:, :, None]
