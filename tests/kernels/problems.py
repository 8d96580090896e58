"""Random decode steps of every kind: ragged, on pages in no order, with NaN wherever no token was written."""

from __future__ import annotations

import torch
from headscope.kernels import KeyPart, Pages, Problem, Turn, ValuePart

KINDS = ("mha", "gqa", "mqa", "mla", "lrkv", "lrkv-turned", "lrkv-normed", "lrkv-turned-normed")


def problem(
    kind: str,
    lengths: tuple[int, ...] = (17, 1, 70),
    *,
    heads: int = 6,
    d_head: int = 8,
    rank: int = 3,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    in_order: bool = False,
) -> Problem:
    """Return a decode step of `kind`; a key's scores have standard deviation of about one."""
    rng = torch.Generator().manual_seed(seed)
    blocks = [-(-length // page) for length in lengths]
    n_pages = sum(blocks) + 2
    order = torch.arange(n_pages) if in_order else torch.randperm(n_pages, generator=rng)
    table = torch.full((len(lengths), max(blocks) + 1), n_pages - 1 if in_order else int(order[-1]))
    taken = 0
    for request, count in enumerate(blocks):
        table[request, :count] = order[taken : taken + count]
        taken += count
    pages = Pages(table, torch.tensor(lengths))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng).to(dtype)

    def rows(group: int, width: int) -> torch.Tensor:
        found = draw(group, n_pages, page, width)
        return found.where(_written(pages, n_pages, page)[None, :, :, None], torch.nan)

    batch, scale = len(lengths), d_head**-0.5
    if kind in ("mha", "gqa", "mqa"):
        groups = {"mha": heads, "gqa": heads // 2, "mqa": 1}[kind]
        keys = (KeyPart("all", draw(batch, heads, d_head), rows(groups, d_head)),)
        return Problem(keys, (ValuePart("all", rows(groups, d_head)),), pages, scale)
    if kind == "mla":
        latent = rows(1, 2 * d_head)
        content = KeyPart("content", draw(batch, heads, 2 * d_head) / 2, latent)
        position = KeyPart("position", draw(batch, heads, 4), rows(1, 4))
        return Problem((content, position), (ValuePart("latent", latent),), pages, scale)
    q, up = draw(batch, heads, d_head), draw(heads, d_head, rank) / rank**0.5
    coords = rows(heads, rank)
    if "turned" in kind:
        half = d_head // 4  # half of the columns turn, half stay
        planes = torch.arange(half)
        private = KeyPart("private", q, coords, Turn(up, 1.0 / (1 + planes.float()) ** 2, planes, planes + half, 1.1))
    else:
        private = KeyPart("private", torch.einsum("bhd,hdr->bhr", q, up), coords)
    normed = "normed" in kind
    return Problem(
        (KeyPart("shared", q, rows(1, d_head)), private),
        (ValuePart("shared", rows(1, d_head)), ValuePart("private", rows(heads, rank))),
        pages,
        scale,
        rows(heads, 1)[..., 0].abs() + 0.5 if normed else None,
    )


def _written(pages: Pages, n_pages: int, page: int) -> torch.Tensor:
    written = torch.zeros(n_pages, page, dtype=torch.bool)
    for table, length in zip(pages.table, pages.lengths.tolist(), strict=True):
        position = torch.arange(length)
        written[table[position // page], position % page] = True
    return written


def spans_for(lengths: tuple[int, ...]) -> torch.Tensor:
    """Return three spans a request: the first half, the last token, and an empty one."""
    return torch.tensor([[[0, length // 2], [length - 1, length], [0, 0]] for length in lengths])
