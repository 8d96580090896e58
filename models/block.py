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
from .norms import Norm


class Block(nn.Module):
    """Attention and MLP, added to the residual stream one after the other or, in a parallel block, together.

    Where norms stand is the configuration's `arrangement`; a norm that a block lacks is None. ``hook_attn_out`` and
    ``hook_mlp_out`` are what is added, behind ``ln1_post`` and ``ln2_post`` where there are such. A parallel block has
    no ``hook_resid_mid``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        before = config.arrangement != "post"
        after = config.arrangement in ("post", "sandwich")
        self.parallel = config.arrangement.startswith("parallel")
        self.has_mlp = config.mlp is not None
        self.ln1 = config.build_norm(before)
        self.ln1_post = config.build_norm(after)
        self.attn = build_attention(config.attention, config.d_model, config.rotary)
        self.hook_resid_pre = HookPoint()
        self.hook_attn_out = HookPoint()
        if config.mlp is not None:
            self.ln2 = config.build_norm(before and config.arrangement != "parallel_one_norm")
            self.ln2_post = config.build_norm(after)
            self.mlp = config.mlp.build(config.d_model)
            if not self.parallel:
                self.hook_resid_mid = HookPoint()
            self.hook_mlp_out = HookPoint()
        self.hook_resid_post = HookPoint()

    def forward(
        self,
        resid: Float[Tensor, "batch pos d_model"],
        positions: Int[Tensor, "batch pos"],
        visible: Bool[Tensor, "batch 1 query_pos key_pos"] | None,
        memory: LayerMemory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream after this block."""
        resid = self.hook_resid_pre(resid)
        normed = _through(self.ln1, resid)
        attn_out = self.hook_attn_out(_through(self.ln1_post, self.attn(normed, positions, visible, memory)))
        if not self.has_mlp:
            return self.hook_resid_post(resid + attn_out)
        if self.parallel:
            mlp_in = normed if self.ln2 is None else self.ln2(resid)
            return self.hook_resid_post(resid + attn_out + self.hook_mlp_out(self.mlp(mlp_in)))
        resid = self.hook_resid_mid(resid + attn_out)
        mlp_out = self.mlp(_through(self.ln2, resid))
        return self.hook_resid_post(resid + self.hook_mlp_out(_through(self.ln2_post, mlp_out)))

    def factors(self, layer: int, *, fold_norm: bool = True, keys_behind: Block | None = None) -> Factors:
        """Return the attention's bilinear forms, by default with the input norm's gain folded in.

        Parameters
        ----------
        layer
            Index to record.
        fold_norm
            Whether to fold gains in.
        keys_behind
            The block whose stream (behind its norm) keys and values are made of; None: this one.
        """
        norm, of_keys = (
            no_norm(self.attn.d_model) if block.ln1 is None else block.ln1 for block in (self, keys_behind or self)
        )
        return self.attn.factors(layer, norm, of_keys) if fold_norm else self.attn.factors(layer, None)


def no_norm(width: int) -> Norm:
    """Return the norm to fold where none stands before attention: it changes nothing, yet inner gains are folded."""
    return Norm(width, 0.0, gain=False)


def _through(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Table(nn.Module):
    """A vocabulary of vectors, ``[d_vocab, d_model]``: the embedding, and transposed the unembedding (with a bias)."""

    def __init__(self, rows: int, d_model: int, std: float, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, d_model))
        nn.init.normal_(self.weight, std=std)
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None
