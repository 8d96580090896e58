"""What a model can become, refused when it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..models.config import ModelConfig
from ..models.grouped import GroupedConfig
from ..models.lrkv import LRKVConfig
from ..models.rope import column_pairs
from ..training.presets import rank_for
from .spans import Choose, strongest, whole_planes

To = Literal["lrkv", "gqa", "mqa"]
Keys = Literal["rotate-at-read", "plane-closed"]


@dataclass(frozen=True)
class Target:
    """What a model becomes.

    Parameters
    ----------
    config
        The whole model's configuration afterwards.
    keys
        LRKV: ``"rotate-at-read"`` leaves private keys any directions, which are cached unrotated; ``"plane-closed"``
        gives them whole rotary planes, whose coordinates can be rotated once.
    align
        Bring the heads' bases together first, and undo it in queries and outputs.
    """

    config: ModelConfig
    keys: Keys = "rotate-at-read"
    align: bool = True

    def choose(self, side: str) -> Choose:
        """Return how LRKV's private directions of keys (``"k"``) or values (``"v"``) are chosen."""
        attention, rotary = self.config.attention, self.config.rotary
        if not isinstance(attention, LRKVConfig):
            raise ValueError(f"{attention.variant} has no private directions to choose")
        if side == "v" or self.keys == "rotate-at-read" or rotary is None:
            return strongest(attention.rank)
        turned = attention.rotated_columns(rotary)
        columns = range(attention.d_head)
        first, second = (tuple(columns[part]) for part in column_pairs(turned.start, turned.stop, rotary.interleaved))
        return whole_planes(attention.rank, first, second, attention.d_head)

    def describe(self) -> dict[str, Any]:
        """Return what was asked for, for a record."""
        attention = self.config.attention
        said: dict[str, Any] = {"to": attention.variant, "align": self.align, "attention": attention.to_dict()}
        return said | ({"keys": self.keys} if isinstance(attention, LRKVConfig) else {})


def target(
    source: ModelConfig,
    to: To,
    *,
    rank: int | None = None,
    cache_ratio: float | None = None,
    groups: int | None = None,
    keys: Keys = "rotate-at-read",
    align: bool = True,
) -> Target:
    """Return what a model becomes.

    Parameters
    ----------
    source
        What it is: MHA, GQA or MQA.
    to
        ``"lrkv"`` with `rank` or `cache_ratio`, ``"gqa"`` with `groups`, or ``"mqa"``.
    rank, cache_ratio
        LRKV's rank, or the share of the source's cache to fill at most.
    groups
        GQA's groups: fewer than the source has, a divisor of their number.
    keys, align
        As in `Target`.

    Raises
    ------
    ValueError
        If the source is of another variant, or an option cannot be or belongs to another target.
    """
    old = source.attention
    if not isinstance(old, GroupedConfig):
        raise ValueError(f"the source should be MHA, GQA or MQA but is {old.variant.upper()}")
    for name, value, known in (("to", to, To), ("keys", keys, Keys)):
        if value not in get_args(known):
            raise ValueError(f"{name} should be one of {', '.join(get_args(known))} but got {value!r}")
    common = {
        "n_heads": old.n_heads,
        "d_head": old.d_head,
        "bias": old.bias,
        "output_bias": old.output_bias,
        "scale": old.scale,
        "softcap": old.softcap,
        "window": old.window,
        "slopes": old.slopes,
        "qk_norm": old.qk_norm,
    }
    if to == "lrkv":
        if groups is not None:
            raise ValueError("groups belong to gqa, not to lrkv, where every head has a residual of its own")
        if keys == "plane-closed" and source.rotary is None:
            raise ValueError(f"plane-closed keys need rotary positions but positions are {source.positions!r}")
        new = LRKVConfig(**common, rank=_rank(old, rank, cache_ratio), keys=keys)
        found = Target(source.with_attention(new), keys, align)
        found.choose("k")  # refuses a rank that whole planes cannot fill
        return found
    if rank is not None or cache_ratio is not None or keys != "rotate-at-read":
        raise ValueError(f"rank, cache ratio and keys belong to lrkv, not to {to}")
    return Target(source.with_attention(GroupedConfig(**common, n_kv_heads=_groups(old, to, groups))), align=align)


def _rank(old: GroupedConfig, rank: int | None, cache_ratio: float | None) -> int:
    if (rank is None) == (cache_ratio is None):
        raise ValueError("lrkv needs a rank or a cache ratio, and not both")
    return rank if rank is not None else rank_for(cache_ratio or 0.0, old.n_heads, old.d_head, old.n_groups)


def _groups(old: GroupedConfig, to: To, groups: int | None) -> int:
    if to == "mqa" and groups not in (None, 1):
        raise ValueError(f"mqa has one group but got groups={groups}")
    if to == "gqa" and groups is None:
        raise ValueError("gqa needs a number of groups: give groups")
    wanted = 1 if to == "mqa" else groups
    fitting = [g for g in range(1 if to == "mqa" else 2, old.n_groups) if old.n_groups % g == 0]
    if wanted not in fitting:
        raise ValueError(
            f"the source has {old.n_groups} distinct keys, which can be pooled "
            f"{f'into {fitting} groups' if fitting else f'into none of the shapes of {to}'} but got groups={wanted}"
        )
    return wanted
