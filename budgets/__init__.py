"""What an attention variant costs, from configurations alone; and an audit of printed figures."""

from .audit import Audit, audit
from .budget import budget
from .cache import CacheBytes, Sharded, Storage, cache_bytes, parse_batches, shard
from .matching import Match, equal_cache, largest_rank
from .paper import preset_models, presets
from .result import Budget
from .timing import DEVICES, Device, floor_seconds

__all__ = [
    "DEVICES",
    "Audit",
    "Budget",
    "CacheBytes",
    "Device",
    "Match",
    "Sharded",
    "Storage",
    "audit",
    "budget",
    "cache_bytes",
    "equal_cache",
    "floor_seconds",
    "largest_rank",
    "parse_batches",
    "preset_models",
    "presets",
    "shard",
]
