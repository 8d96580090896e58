"""Rotary positions: which columns of a head turn, at what frequency, and how the frequencies were scaled.

A rotary plane is a pair of columns ``(a, b)`` of a head. At position ``p`` the pair is turned by ``p * theta``:
``(a, b) -> (a cos - b sin, b cos + a sin)``, that is, ``a + ib`` is multiplied by ``exp(i p theta)``.
Two layouts of the pairs are in use: half-split (``a`` in the first half of the rotated columns, ``b`` in the second;
Llama, NeoX) and interleaved (``a, b`` neighbours; GPT-J, DeepSeek).

Frequencies are computed in float32 on purpose: released models were trained with the float32 numbers, and at
position 10,000 their rounding already moves an angle by 1e-3.

References
----------
Su et al., RoFormer (arXiv 2104.09864). Peng et al., YaRN (arXiv 2309.00071).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor


class RopeScaling(ABC):
    """A rule that stretches rotary frequencies to longer contexts; see the subclasses."""

    kind: ClassVar[str]

    @abstractmethod
    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return the scaled frequencies, radians a position."""

    @property
    def amplitude(self) -> float:
        """Factor on the rotated columns (YaRN's attention factor); 1 for every other rule."""
        return 1.0

    @property
    def softmax_factor(self) -> float:
        """Factor on the score scale of latent attention (YaRN with `mscale_all_dim`); 1 for every other rule."""
        return 1.0


def _require_positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{owner}.{name} should be finite and > 0 but got {value}")


@dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Position interpolation: every frequency divided by `factor`."""

    factor: float
    kind: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        _require_positive("LinearScaling", factor=self.factor)

    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return ``theta / factor``."""
        return theta / self.factor


@dataclass(frozen=True)
class FrequencyFactors(RopeScaling):
    """One divisor a plane, as GGUF files store them (``rope_freqs.weight``) and LongRoPE has them.

    `attention_factor` multiplies the rotated columns (LongRoPE, arXiv 2402.13753).
    """

    factors: tuple[float, ...]
    attention_factor: float = 1.0
    kind: ClassVar[str] = "factors"

    def __post_init__(self) -> None:
        for index, factor in enumerate(self.factors):
            _require_positive("FrequencyFactors", **{f"factors[{index}]": factor})
        _require_positive("FrequencyFactors", attention_factor=self.attention_factor)

    @property
    def amplitude(self) -> float:
        """Factor on the rotated columns of queries and keys alike."""
        return self.attention_factor

    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return ``theta / factors``; the number of factors must be the number of planes."""
        if len(self.factors) != len(theta):
            raise ValueError(
                f"FrequencyFactors.factors should have one value a plane ({len(theta)}) but has {len(self.factors)}"
            )
        return theta / torch.tensor(self.factors, dtype=theta.dtype)


@dataclass(frozen=True)
class Llama3Scaling(RopeScaling):
    """Llama 3.1's rule: long wavelengths divided by `factor`, short ones kept, a linear ramp between."""

    factor: float
    original_context: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    kind: ClassVar[str] = "llama3"

    def __post_init__(self) -> None:
        _require_positive("Llama3Scaling", factor=self.factor, original_context=self.original_context)
        if not self.high_freq_factor > self.low_freq_factor > 0:
            raise ValueError(
                "Llama3Scaling needs 0 < low_freq_factor < high_freq_factor but got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )

    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return the frequencies, blended by how many turns a plane makes in the original context."""
        turns = self.original_context * theta / (2 * math.pi)
        ramp = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = ramp.clamp(0, 1)
        return keep * theta + (1 - keep) * theta / self.factor


@dataclass(frozen=True)
class YarnScaling(RopeScaling):
    """YaRN: planes that turn seldom are interpolated, fast ones kept, and the rotated columns amplified.

    `mscale` and `mscale_all_dim` are DeepSeek's: their ratio is the amplitude of the rotated columns, and
    `softmax_factor` multiplies the score scale.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    kind: ClassVar[str] = "yarn"

    def __post_init__(self) -> None:
        optional = {"attention_factor": self.attention_factor} if self.attention_factor is not None else {}
        _require_positive(
            "YarnScaling",
            factor=self.factor,
            original_context=self.original_context,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            **optional,
        )

    def _mscale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    @property
    def amplitude(self) -> float:
        """Factor on the rotated columns of queries and keys alike."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1.0)

    @property
    def softmax_factor(self) -> float:
        """DeepSeek's ``m**2`` on the score scale, ``m = 0.1 mscale_all_dim ln(factor) + 1``."""
        return self._mscale(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return the frequencies, blended along the plane's index as YaRN's reference does."""
        planes = len(theta)

        def plane_of(rotations: float) -> float:
            span = self.original_context / (rotations * 2 * math.pi)
            return planes * math.log(span) / math.log(base)

        low, high = plane_of(self.beta_fast), plane_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * planes - 1)
        if low == high:
            high += 0.001
        index = torch.arange(planes, dtype=torch.float32)
        keep = 1 - ((index - low) / (high - low)).clamp(0, 1)
        return theta / self.factor * (1 - keep) + theta * keep


@dataclass(frozen=True)
class ProportionalScaling(RopeScaling):
    """Gemma 4's rule: only the fastest `share` of the planes turn, at the frequencies that all would have.

    Every frequency is then divided by `factor`.
    """

    share: float
    factor: float = 1.0
    kind: ClassVar[str] = "proportional"

    def __post_init__(self) -> None:
        _require_positive("ProportionalScaling", share=self.share, factor=self.factor)
        if self.share > 1:
            raise ValueError(f"ProportionalScaling.share should be at most 1 but got {self.share}")

    def scale(self, theta: Float[Tensor, " plane"], base: float) -> Float[Tensor, " plane"]:
        """Return the frequencies, zero for the planes that stand still."""
        turning = torch.arange(len(theta)) < int(self.share * 2 * len(theta) // 2)
        return torch.where(turning, theta / self.factor, 0.0)


_SCALINGS: dict[str, type[RopeScaling]] = {
    cls.kind: cls for cls in (LinearScaling, Llama3Scaling, YarnScaling, FrequencyFactors, ProportionalScaling)
}


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of a model.

    Parameters
    ----------
    base
        Base of the frequencies, ``theta_m = base ** (-2m / width)``.
    width
        Number of rotated columns a head (even); None: all of them (MLA: its rotary channel).
    interleaved
        Pairs are neighbours instead of halves.
    scaling
        Rule for longer contexts.
    """

    base: float = 10000.0
    width: int | None = None
    interleaved: bool = False
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not (self.base > 1 and math.isfinite(self.base)):
            raise ValueError(f"Rotary.base should be finite and > 1 but got {self.base}")
        if self.width is not None and (not isinstance(self.width, int) or self.width <= 0 or self.width % 2):
            raise ValueError(f"Rotary.width should be an even integer > 0 but got {self.width}")

    def frequencies(self, width: int) -> Float[Tensor, " plane"]:
        """Return the ``width / 2`` plane frequencies in radians a position, float32."""
        exponent = torch.arange(0, width, 2, dtype=torch.int64).float() / width
        theta = 1.0 / (self.base**exponent)
        return theta if self.scaling is None else self.scaling.scale(theta, self.base)

    @property
    def amplitude(self) -> float:
        """Factor on the rotated columns of queries and keys alike."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    @property
    def softmax_factor(self) -> float:
        """Factor on the score scale of latent attention."""
        return 1.0 if self.scaling is None else self.scaling.softmax_factor

    def planes(self, width: int) -> tuple[slice, slice]:
        """Return the columns ``a`` and the columns ``b`` of the planes within `width` rotated columns."""
        return column_pairs(0, width, self.interleaved)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description; `from_dict` reads it back."""
        scaling = None if self.scaling is None else {"kind": self.scaling.kind, **asdict(self.scaling)}  # pyright: ignore[reportArgumentType]
        return {"base": self.base, "width": self.width, "interleaved": self.interleaved, "scaling": scaling}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Rotary:
        """Build from `to_dict`'s description; an unknown scaling is a ValueError that lists the known ones."""
        fields = dict(data)
        scaling = fields.pop("scaling", None)
        if scaling is not None:
            options = dict(scaling)
            kind = options.pop("kind", None)
            if kind not in _SCALINGS:
                raise ValueError(f"rope scaling should be one of {sorted(_SCALINGS)} but got {kind!r}")
            if "factors" in options:
                options["factors"] = tuple(options["factors"])
            scaling = _SCALINGS[kind](**options)
        return cls(**fields, scaling=scaling)


def column_pairs(start: int, stop: int, interleaved: bool) -> tuple[slice, slice]:
    """Return the columns ``a`` and ``b`` of the planes that fill the columns from `start` to before `stop`."""
    if interleaved:
        return slice(start, stop, 2), slice(start + 1, stop, 2)
    middle = (start + stop) // 2
    return slice(start, middle), slice(middle, stop)


def rotate(
    x: Float[Tensor, "batch pos head width"], positions: Int[Tensor, "batch pos"], rotary: Rotary
) -> Float[Tensor, "batch pos head width"]:
    """Turn every column pair of `x` by ``position * theta`` (and apply the amplitude)."""
    width = x.shape[-1]
    theta = rotary.frequencies(width).to(x.device)
    angle = positions[..., None].float() * theta
    cos = (angle.cos() * rotary.amplitude).to(x.dtype)[:, :, None]
    sin = (angle.sin() * rotary.amplitude).to(x.dtype)[:, :, None]
    first, second = rotary.planes(width)
    a, b = x[..., first], x[..., second]
    turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
    if rotary.interleaved:
        return torch.stack((turned_a, turned_b), dim=-1).flatten(-2)
    return torch.cat((turned_a, turned_b), dim=-1)
