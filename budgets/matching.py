"""Which settings of each variant fit into a given cache."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.grouped import GroupedConfig
from ..models.lrkv import LRKVConfig, rank_for
from ..models.mla import MLAConfig
from ..models.variant import AttentionConfig


@dataclass(frozen=True)
class Match:
    """A setting beside the cache that it is to fit into.

    Parameters
    ----------
    variant
        ``"lrkv"``, ``"gqa"``, ``"mqa"`` or ``"mla"``.
    setting
        The rank, the groups, the latent's width.
    fit
        ``"within"``: the largest that fits; ``"above"``: the next one.
    attention
        The configuration.
    """

    variant: str
    setting: int
    fit: str
    attention: AttentionConfig


def largest_rank(ratio: float, n_heads: int, d_head: int) -> int:
    """Return the largest LRKV rank within a share of MHA's cache, at most `d_head`; 0 if not even rank 1 fits.

    Examples
    --------
    >>> largest_rank(1 / 2, 18, 128), largest_rank(1 / 3, 18, 128), largest_rank(0.06, 18, 128)
    (56, 35, 0)
    """
    if ratio + 1e-9 < 1 / n_heads + 1 / d_head:
        return 0
    return rank_for(min(ratio, 1 + 1 / n_heads), n_heads, d_head)


def equal_cache(attention: AttentionConfig, *, d_rope: int | None = None) -> list[Match]:
    """Return what fits into the (logical) cache of `attention`, with the same heads.

    The largest rank, the largest number of groups and the next one above (one group is MQA), and the latents without
    and with a position channel; these fill any cache exactly.

    Parameters
    ----------
    attention
        Whose cache to fill; heads and value width are kept.
    d_rope
        Width of MLA's position channel; None: half a head, as DeepSeek has it.
    """
    heads, width, elements = attention.n_heads, attention.d_value, attention.cache_width()
    d_rope = width // 2 // 2 * 2 if d_rope is None else d_rope
    found: list[Match] = []
    if rank := largest_rank(elements / (2 * heads * width), heads, width):
        found.append(Match("lrkv", rank, "within", LRKVConfig(n_heads=heads, d_head=width, rank=rank)))
    counts = [count for count in range(1, heads + 1) if heads % count == 0]
    within = [count for count in counts if 2 * count * width <= elements]
    above = [count for count in counts if 2 * count * width > elements]
    for fit, groups in (("within", within[-1:]), ("above", above[:1])):
        for count in groups:
            config = GroupedConfig(n_heads=heads, n_kv_heads=count, d_head=width)
            found.append(Match(config.variant, count, fit, config))
    for channel in dict.fromkeys((0, d_rope)):
        if elements > channel:
            latent = MLAConfig(
                n_heads=heads, d_latent=elements - channel, d_nope=width, d_rope=channel, d_value_head=width
            )
            found.append(Match("mla", elements - channel, "within", latent))
    return found
