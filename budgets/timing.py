"""A floor under the time of a decode step: the cache must be read, and the products must be made.

``max(M / β, F / φ)`` for `M` bytes at bandwidth `β` and `F` operations at rate `φ`. A real step takes longer: launches,
weights, latency and what does not overlap are left out. For LRKV beside MHA it reads ``max(c M / β, a F / φ)`` with the
cache's ratio `c` and the arithmetic's `a = 1 + r / d_head + r / T`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..models.lrkv import LRKVConfig
from ..models.variant import AttentionConfig


@dataclass(frozen=True)
class Device:
    """An accelerator.

    Parameters
    ----------
    name
        What it is called.
    bandwidth
        Of its memory, bytes a second.
    flops
        Dense bfloat16 operations a second (a multiply-add is two).
    source
        Where the two figures come from.
    """

    name: str
    bandwidth: float
    flops: float
    source: str

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth < math.inf and 0 < self.flops < math.inf):
            raise ValueError(
                f"bandwidth and flops of {self.name} should be above zero but are {self.bandwidth} and {self.flops}"
            )


_SHEET = "datasheet, dense bf16: never reached in practice"
DEVICES = {
    device.name: device
    for device in (
        Device("h200", 4.3e12, 790e12, "measured: copy in memory, bf16 matrix products"),
        Device("h200-sheet", 4.8e12, 989e12, _SHEET),
        Device("h100", 3.35e12, 989e12, f"SXM, {_SHEET}"),
        Device("a100", 2.039e12, 312e12, f"SXM 80 GB, {_SHEET}"),
        Device("l40s", 0.864e12, 362e12, _SHEET),
        Device("mi300x", 5.3e12, 1307e12, _SHEET),
    )
}


def device_from(text: str | Device) -> Device:
    """Return a device by name, or from ``"3.35,989"``: TB/s of memory and TFLOP/s of bfloat16.

    Raises
    ------
    ValueError
        If it is neither (lists the known names).
    """
    if isinstance(text, Device):
        return text
    if text.lower() in DEVICES:
        return DEVICES[text.lower()]
    try:
        bandwidth, flops = (float(piece) * 1e12 for piece in text.split(","))
    except ValueError:
        raise ValueError(
            f"device should be one of {', '.join(DEVICES)}, or TB/s and TFLOP/s like 3.35,989, but got {text!r}"
        ) from None
    return Device(text, bandwidth, flops, "as given")


def floor_seconds(n_bytes: float, operations: float, device: Device) -> float:
    """Return the least time to read `n_bytes` and do `operations` (floating-point, a multiply-add is two)."""
    return max(n_bytes / device.bandwidth, operations / device.flops)


def bound_by(n_bytes: float, operations: float, device: Device) -> str:
    """Return which of the two sets the floor: ``"memory"`` or ``"arithmetic"``."""
    return "memory" if n_bytes / device.bandwidth >= operations / device.flops else "arithmetic"


def gain_ends_at(cache_ratio: float, arithmetic_ratio: float) -> float:
    """Return MHA's arithmetic time over memory time, ``(F/φ) / (M/β)``, from which on a variant's floor is no lower.

    A cache of ``c M`` bytes helps while reading sets MHA's floor. With `a` times the operations the gain is gone once
    ``a F / φ ≥ M / β``, at ``1 / a``; with as many it is gone once arithmetic sets MHA's floor, at 1; with fewer it
    never is (infinity). Zero where the cache is no smaller.

    Examples
    --------
    >>> round(gain_ends_at(0.485, 1.43), 3)
    0.699
    """
    if cache_ratio >= 1 and arithmetic_ratio >= 1:
        return 0.0
    return 1 / arithmetic_ratio if arithmetic_ratio >= 1 else math.inf


def queries_until_no_gain(
    attention: AttentionConfig, length: int, device: Device, *, element_bytes: int, rank_multiple: int
) -> float:
    """Return from how many query tokens a reading of the history on a variant's floor is no lower than MHA's.

    A step has one query token a request. Several tokens verified at once (speculative decoding) or requests with one
    prefix do more arithmetic on the same bytes.
    """
    dense = attention.dense_width
    cache_ratio = attention.cache_width(rank_multiple) / dense
    balance = gain_ends_at(cache_ratio, attention.decode_products(length) / (dense * length))
    # One query token of MHA: 2 operations on each element, which is read once.
    one = (2 / device.flops) / (element_bytes / device.bandwidth)
    return balance / one


def rotary_arithmetic(attention: AttentionConfig, lengths: Sequence[int]) -> float:
    """Return LRKV's arithmetic over MHA's where rotary positions make it rebuild private keys; NaN for others."""
    if not isinstance(attention, LRKVConfig):
        return math.nan
    products = sum(attention.decode_products_rotary(length) for length in lengths)
    return products / (attention.dense_width * sum(lengths))
