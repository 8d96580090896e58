"""What others do for a decode step, for `decode_gpu.py`: torch's attention over dense keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from decode_steps import Shape
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

Run = Callable[[], object]


def dense(shape: Shape, batch: int, tokens: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return a query, keys and values as they are without factors or pages: full heads for LRKV."""
    sizes = ((shape.heads, 1, shape.d_head), *[(shape.groups, tokens, shape.d_head)] * 2)
    return tuple(torch.randn(batch, *size, dtype=torch.bfloat16, device=device) for size in sizes)


def sdpa(shape: Shape, lengths: list[int], layers: int, device: torch.device) -> Run | None:
    """Return a step through layers by `scaled_dot_product_attention`.

    None for lengths that differ, which it cannot be told, and for MLA, whose latents it would repeat for every head.
    """
    if len(set(lengths)) > 1 or shape.kind == "mla":
        return None
    caches = [dense(shape, len(lengths), lengths[0], device) for _ in range(layers)]
    return lambda: [scaled_dot_product_attention(*cache, enable_gqa=shape.groups < shape.heads) for cache in caches]


def flex(shape: Shape, lengths: list[int], layers: int, device: torch.device) -> Run | None:
    """Return a step through layers by FlexAttention, compiled where there is a GPU; None for what is not asked of it.

    Compiling takes much of the time that there is, so only two shapes are asked for.
    """
    if shape.kind != "dense" or shape.heads != 18 or shape.groups == 1:
        return None
    caches = [dense(shape, len(lengths), max(lengths), device) for _ in range(layers)]
    length = torch.tensor(lengths, device=device)
    mask = create_block_mask(lambda b, h, i, j: j < length[b], len(lengths), None, 1, max(lengths), device=device)
    torch.compiler.reset()
    attend = torch.compile(flex_attention, dynamic=False) if device.type == "cuda" else flex_attention
    return lambda: [attend(*cache, block_mask=mask, enable_gqa=shape.groups < shape.heads) for cache in caches]
