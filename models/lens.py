"""The model under TransformerLens's names: its configuration and its weights, as that library's tools ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix

from .config import ModelConfig
from .mlp import MLP

if TYPE_CHECKING:
    from .block import Block, Table


@dataclass(frozen=True)
class LensConfig:
    """A model's configuration under TransformerLens's names, for its tools (`ActivationCache`, patching, ...)."""

    n_layers: int
    n_heads: int
    n_key_value_heads: int | None
    d_model: int
    d_head: int
    d_mlp: int | None
    d_vocab: int
    n_ctx: int
    act_fn: str | None
    normalization_type: str
    positional_embedding_type: str
    attn_only: bool
    parallel_attn_mlp: bool
    use_normalization_before_and_after: bool
    eps: float
    dtype: torch.dtype
    device: torch.device


class LensViews:
    """Mixin for a model with a `config`, `blocks`, `embed`, `unembed` and perhaps `pos_embed`."""

    if TYPE_CHECKING:
        config: ModelConfig
        embed: Table
        unembed: Table
        pos_embed: Table
        blocks: nn.ModuleList

    @property
    def layers(self) -> list[Block]:
        """The blocks, as a list that type checkers understand."""
        return list(self.blocks)  # pyright: ignore[reportReturnType]

    @property
    def device(self) -> torch.device:
        """Device of the embedding, where tokens are expected."""
        return self.embed.weight.device

    @property
    def cfg(self) -> LensConfig:
        """The configuration under TransformerLens's names."""
        config, attention = self.config, self.config.attention
        return LensConfig(
            n_layers=config.n_layers,
            n_heads=attention.n_heads,
            n_key_value_heads=None if attention.n_groups == attention.n_heads else attention.n_groups,
            d_model=config.d_model,
            d_head=attention.d_value,
            d_mlp=None if config.mlp is None else config.mlp.d_mlp,
            d_vocab=config.d_vocab,
            n_ctx=config.n_ctx,
            act_fn=None if config.mlp is None else config.mlp.act,
            normalization_type="LN" if config.norm.kind == "layer" else "RMS",
            positional_embedding_type=self._positions(),
            attn_only=config.mlp is None,
            parallel_attn_mlp=config.arrangement.startswith("parallel"),
            use_normalization_before_and_after=config.arrangement == "sandwich",
            eps=config.norm.eps,
            dtype=self.embed.weight.dtype,
            device=self.device,
        )

    def _positions(self) -> str:
        if self.config.rotary is not None:
            return "rotary"
        if self.config.attention.slopes is not None:
            return "alibi"
        return "standard" if self.config.positions == "learned" else "none"

    def _stacked(self, name: str) -> Tensor:
        return torch.stack([getattr(block.attn, name) for block in self.layers])

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_key"]:
        """Query projections of all layers."""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer group d_model d_key"]:
        """Key projections of all layers, one a group."""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer group d_model d_value"]:
        """Value projections of all layers, one a group."""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_value d_model"]:
        """Output projections of all layers."""
        return self._stacked("W_O")

    @property
    def b_O(self) -> Float[Tensor, "layer d_model"]:
        """Output biases of all layers, zeros where there are none."""
        return self._stacked("b_O")

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"]:
        """Input projections of all MLPs."""
        return torch.stack([mlp.W_in for mlp in self._mlps()])

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"]:
        """Output projections of all MLPs."""
        return torch.stack([mlp.W_out for mlp in self._mlps()])

    def _mlps(self) -> list[MLP]:
        mlps = [block.mlp for block in self.layers]
        for layer, mlp in enumerate(mlps):
            if not isinstance(mlp, MLP):
                raise ValueError(f"layer {layer} is a mixture of experts: it has no single W_in and W_out")
        return mlps  # pyright: ignore[reportReturnType]

    @property
    def all_head_labels(self) -> list[str]:
        """``L0H0``, ``L0H1``, ... in the order of `ActivationCache.stack_head_results`."""
        return [f"L{l}H{h}" for l in range(self.config.n_layers) for h in range(self.config.attention.n_heads)]  # noqa: E741

    @property
    def QK(self) -> FactoredMatrix:
        """``W_Q W_K^T`` of every layer and query head, ``[layer, head, d_model, d_model]`` in factored shape."""
        return FactoredMatrix(self.W_Q, self.W_K[:, self._groups].transpose(-2, -1))

    @property
    def OV(self) -> FactoredMatrix:
        """``W_V W_O`` of every layer and query head, ``[layer, head, d_model, d_model]`` in factored shape."""
        return FactoredMatrix(self.W_V[:, self._groups], self.W_O)

    @property
    def _groups(self) -> list[int]:
        return self.config.attention.head_to_group

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """Embedding, as it enters the residual stream (a view; computed where it is scaled on the way in)."""
        scale = self.config.embed_scale
        return self.embed.weight if scale == 1.0 else self.embed.weight * scale

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Unembedding (a view)."""
        return self.unembed.weight.T

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        """Unembedding bias, zeros if there is none."""
        bias = self.unembed.bias
        return self.unembed.weight.new_zeros(self.config.d_vocab) if bias is None else bias

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        """Learned positions; AttributeError without them."""
        return self.pos_embed.weight

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Return the sum of the output biases that the blocks before `layer` add to the residual stream.

        Raises
        ------
        ValueError
            If norms stand behind attention and MLP: what they add of a bias then depends on the token.
        """
        if self.config.arrangement in ("post", "sandwich"):
            raise ValueError(f"arrangement {self.config.arrangement!r}: a norm stands behind the biases")
        total = self.embed.weight.new_zeros(self.config.d_model)
        for block in self.layers[:layer]:
            total = total + block.attn.b_O
            if include_mlp_biases and block.has_mlp:
                total = total + block.mlp.b_out
        in_parallel = self.config.arrangement.startswith("parallel")  # its MLP does not read what attention added
        return total + self.layers[layer].attn.b_O if mlp_input and not in_parallel else total
