"""What a model is a stack of: blocks of attention and MLP, and the tables at either end."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from .attention import build_attention
from .config import ModelConfig
from .factors import Factors
from .memory.cache import LayerMemory


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream after a norm of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln1 = config.norm.build(config.d_model)
        self.attn = build_attention(config.attention, config.d_model, config.rotary)
        self.hook_resid_pre = HookPoint()
        self.hook_attn_out = HookPoint()
        if config.mlp is not None:
            self.ln2 = config.norm.build(config.d_model)
            self.mlp = config.mlp.build(config.d_model)
            self.hook_resid_mid = HookPoint()
            self.hook_mlp_out = HookPoint()
        self.hook_resid_post = HookPoint()
        self.has_mlp = config.mlp is not None

    def forward(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        positions: Int[Tensor, "batch pos"],
        visible: Bool[Tensor, "batch 1 query_pos key_pos"] | None,
        memory: LayerMemory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream after this block."""
        resid = self.hook_resid_pre(resid)
        resid = resid + self.hook_attn_out(self.attn(self.ln1(resid), positions, visible, memory))
        if self.has_mlp:
            resid = self.hook_resid_mid(resid)
            resid = resid + self.hook_mlp_out(self.mlp(self.ln2(resid)))
        return self.hook_resid_post(resid)

    def factors(self, layer: int, *, fold_norm: bool = True) -> Factors:
        """Return the attention's bilinear forms, by default with the input norm's gain folded in."""
        return self.attn.factors(layer, self.ln1 if fold_norm else None)


class Table(nn.Module):
    """A vocabulary of vectors, ``[d_vocab, d_model]``: the embedding, and transposed the unembedding."""

    def __init__(self, rows: int, d_model: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, d_model))
        nn.init.normal_(self.weight, std=std)
