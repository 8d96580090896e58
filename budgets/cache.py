"""Bytes of a cache, exactly: what tokens leave, what padding and pages add, and what each of several devices holds.

Nothing here is measured. ``b`` bytes an element, ``N`` layers, requests of lengths ``T_i``: the payload is
``b N Σ T_i`` times the elements that a token leaves in one layer (`AttentionConfig.streams`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..models.memory.cache import PAGE
from ..models.variant import ELEMENT_BYTES, RANK_MULTIPLE, AttentionConfig, Stream

Batch = tuple[int, ...]
"""Lengths of the requests that are in the cache together, in tokens."""


@dataclass(frozen=True)
class Storage:
    """How a cache is laid out in memory.

    Parameters
    ----------
    element_bytes
        Bytes an element (2: bfloat16).
    rank_multiple
        What kernels pad ranks to.
    page
        Tokens a page; a request's last page is allocated whole. One page table serves all layers.
    """

    element_bytes: int = ELEMENT_BYTES
    rank_multiple: int = RANK_MULTIPLE
    page: int = PAGE

    def __post_init__(self) -> None:
        for name in ("element_bytes", "rank_multiple", "page"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"{name} should be an integer > 0 but got {value!r}")


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of a cache over all layers and requests.

    Parameters
    ----------
    payload
        What the tokens leave, ranks as they are (logical).
    padded
        The same with ranks padded (physical): what a decode step reads, where no layer reads another's.
    allocated
        The padded rows of whole pages.
    """

    payload: int
    padded: int
    allocated: int


def cache_bytes(
    attention: AttentionConfig, n_layers: int, lengths: Sequence[int], storage: Storage | None = None
) -> CacheBytes:
    """Return a cache's bytes.

    Parameters
    ----------
    attention
        What is cached.
    n_layers
        Layers that keep something, all alike.
    lengths
        Tokens of each request, each 0 or more.
    storage
        Element, padding and pages; None: bfloat16, ranks padded to 8, pages of 64 tokens.

    Raises
    ------
    ValueError
        If a length is negative.

    Examples
    --------
    >>> from headscope.models import LRKVConfig
    >>> cache_bytes(LRKVConfig(n_heads=18, d_head=128, rank=55), 18, [2048]).payload / 2**20
    157.21875
    """
    storage = storage or Storage()
    if min(lengths, default=0) < 0:
        raise ValueError(f"lengths should be 0 or more tokens but got {min(lengths)}")
    tokens = sum(lengths)
    slots = sum(-(-length // storage.page) * storage.page for length in lengths)
    each = storage.element_bytes * n_layers
    logical, physical = attention.cache_width(), attention.cache_width(storage.rank_multiple)
    return CacheBytes(each * tokens * logical, each * tokens * physical, each * slots * physical)


@dataclass(frozen=True)
class Sharded:
    """A cache whose heads are dealt out over devices, in order.

    Parameters
    ----------
    total
        Bytes on all devices together.
    fullest
        Bytes on the device that holds most.
    moved
        Bytes that a decode step brings to devices that do not hold them.
    """

    total: int
    fullest: int
    moved: int


LAYOUTS = ("replicated", "held once")


def shard(
    attention: AttentionConfig,
    n_layers: int,
    lengths: Sequence[int],
    devices: int,
    layout: str,
    *,
    rank_multiple: int = 1,
    element_bytes: int = ELEMENT_BYTES,
) -> Sharded:
    """Return the bytes of a cache under tensor parallelism.

    A row that heads of several devices read (LRKV's shared row, MLA's latent, a group that is split) is either
    ``"replicated"`` on each of them: for LRKV ``P / H + r / d_head`` of MHA's cache in all; or ``"held once"``, spread
    evenly over the devices, and moved to the others at every step.

    Raises
    ------
    ValueError
        If the heads cannot be dealt out evenly, or the layout is unknown.
    """
    if devices < 1 or attention.n_heads % devices:
        possible = [count for count in range(1, attention.n_heads + 1) if attention.n_heads % count == 0]
        raise ValueError(f"devices should divide the {attention.n_heads} heads (one of {possible}) but got {devices}")
    if layout not in LAYOUTS:
        raise ValueError(f"layout should be one of {', '.join(LAYOUTS)} but got {layout!r}")
    tokens, each = sum(lengths), element_bytes * n_layers
    total = fullest = moved = 0
    for part in attention.streams(rank_multiple):
        needed = _rows_needed(part, attention.n_heads, devices)
        missing = sum(needed) - part.groups
        if layout == "replicated" or not missing:
            total += sum(needed) * tokens * part.padded
            fullest += max(needed) * tokens * part.padded
        else:
            total += part.elements * tokens
            fullest += -(-part.groups * tokens // devices) * part.padded
            moved += missing * tokens * part.padded
    return Sharded(each * total, each * fullest, each * moved)


def _rows_needed(part: Stream, n_heads: int, devices: int) -> list[int]:
    """Return how many of a part's rows a token the heads of each device read."""
    here, per_row = n_heads // devices, n_heads // part.groups
    return [len({head // per_row for head in range(d * here, (d + 1) * here)}) for d in range(devices)]


def parse_batches(text: str) -> tuple[Batch, ...]:
    """Read batches: commas part batches, ``+`` joins requests, ``8x2048`` is eight requests of 2,048 tokens.

    Examples
    --------
    >>> parse_batches("2048,2x100+7")
    ((2048,), (100, 100, 7))
    """
    return tuple(_batch(piece) for piece in text.split(","))


def _batch(text: str) -> Batch:
    lengths: list[int] = []
    for piece in text.replace(" ", "").split("+"):
        found = re.fullmatch(r"(?:(\d+)x)?(\d+)", piece)
        if found is None or int(found[2]) == 0 or found[1] == "0":
            raise ValueError(
                f"lengths should be like 2048,8192 or 8x8192 or 100+2000 (tokens, above zero) but got {text!r}"
            )
        lengths += [int(found[2])] * int(found[1] or 1)
    return tuple(lengths)


def batch_name(batch: Batch) -> str:
    """Write a batch as `parse_batches` reads it.

    Examples
    --------
    >>> batch_name((100, 100, 7))
    '2x100+7'
    """
    runs: list[tuple[int, int]] = []
    for length in batch:
        if runs and runs[-1][1] == length:
            runs[-1] = (runs[-1][0] + 1, length)
        else:
            runs.append((1, length))
    return "+".join(f"{count}x{length}" if count > 1 else f"{length}" for count, length in runs)
