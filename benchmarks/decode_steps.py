"""Decode steps with the shapes of real models, for `decode_gpu.py`: random rows on pages in no order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from headscope.kernels import KeyPart, Pages, Problem, Turn, ValuePart

PAGE = 64


@dataclass(frozen=True)
class Shape:
    """A kind of attention with its numbers; for MLA, `d_head` is the latent's width and `rank` the rotated key's."""

    name: str
    kind: str
    heads: int
    groups: int
    d_head: int = 128
    rank: int = 0


SHAPES = (
    Shape("LRKV 18 heads, rank 56", "lrkv", 18, 18, rank=56),
    Shape("LRKV, keys turned on reading", "turned", 18, 18, rank=56),
    Shape("MHA 18 heads", "dense", 18, 18),
    Shape("GQA 18 heads, 3 groups", "dense", 18, 3),
    Shape("GQA 32 heads, 8 groups", "dense", 32, 8),
    Shape("MQA 18 heads", "dense", 18, 1),
    Shape("MLA 18 heads, 512 + 64", "mla", 18, 1, 512, 64),
    Shape("MLA 128 heads, 512 + 64", "mla", 128, 1, 512, 64),
)


def step(shape: Shape, lengths: list[int], device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Problem:
    """Return a step over a cache of its own."""
    blocks = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(blocks), dtype=torch.int32, device=device)
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32, device=device)
    taken = 0
    for request, count in enumerate(blocks):
        table[request, :count] = order[taken : taken + count]
        taken += count
    pages = Pages(table, torch.tensor(lengths, dtype=torch.int32, device=device))

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=dtype, device=device)

    def rows(groups: int, width: int) -> torch.Tensor:
        return draw(groups, sum(blocks), PAGE, width)

    batch, heads, d_head, rank = len(lengths), shape.heads, shape.d_head, shape.rank
    scale = d_head**-0.5
    if shape.kind == "dense":
        keys = (KeyPart("all", draw(batch, heads, d_head), rows(shape.groups, d_head)),)
        return Problem(keys, (ValuePart("all", rows(shape.groups, d_head)),), pages, scale)
    if shape.kind == "mla":
        latent = rows(1, d_head)
        position = KeyPart("position", draw(batch, heads, rank), rows(1, rank))
        keys = (KeyPart("content", draw(batch, heads, d_head), latent), position)
        return Problem(keys, (ValuePart("latent", latent),), pages, scale)
    private = KeyPart("private", draw(batch, heads, rank), rows(heads, rank))
    if shape.kind == "turned":
        plane = torch.arange(d_head // 2, device=device)
        theta = 10000.0 ** (-2 * plane.float() / d_head)
        turn = Turn(torch.randn(heads, d_head, rank, device=device) / rank**0.5, theta, plane, plane + d_head // 2)
        private = KeyPart("private", draw(batch, heads, d_head), rows(heads, rank), turn)
    return Problem(
        (KeyPart("shared", draw(batch, heads, d_head), rows(1, d_head)), private),
        (ValuePart("shared", rows(1, d_head)), ValuePart("private", rows(heads, rank))),
        pages,
        scale,
    )


def bytes_read(problem: Problem) -> int:
    """Return the bytes of cached rows that a step has to read, each once."""
    rows = {id(part.rows): part.rows for part in (*problem.keys, *problem.values)}
    tokens = int(problem.pages.lengths.sum())
    return sum(tokens * found.shape[0] * found.shape[3] * found.element_size() for found in rows.values())
