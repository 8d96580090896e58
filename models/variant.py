"""What can be chosen about attention: the base of every variant's configuration, and the registry of variants.

Configurations are plain data, checked when built; the modules that run them stand beside them in each variant's file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeVar

from .norms import JointNorm, Norm, require_eps
from .rope import Rotary

ELEMENT_BYTES = 2
"""Of a cache in bfloat16 or float16."""
RANK_MULTIPLE = 8
"""What caches pad ranks to, so that rows begin where wide loads can."""


@dataclass(frozen=True)
class QKNorm:
    """RMS norm of queries and keys.

    Parameters
    ----------
    where
        ``"before"`` the rotation (Qwen3) or ``"after"`` it.
    gain
        One learned gain a channel: shared by the heads, or with `span` ``"all"`` each head's own.
    eps
        Added to the mean square.
    span
        What is normalised together: each ``"head"`` by itself, or ``"all"`` heads of a token (OLMo-2; before the
        rotation).

    Examples
    --------
    >>> from headscope import GroupedConfig, QKNorm
    >>> GroupedConfig(n_heads=4, d_head=8, qk_norm=QKNorm("before")).qk_norm.where
    'before'
    """

    where: Literal["before", "after"] = "before"
    gain: bool = True
    eps: float = 1e-6
    span: Literal["head", "all"] = "head"

    def __post_init__(self) -> None:
        if self.span not in ("head", "all"):
            raise ValueError(f"qk_norm.span should be 'head' or 'all' but got {self.span!r}")
        if self.span == "all" and self.where == "after":
            raise ValueError("qk_norm.span 'all' stands before the rotation: qk_norm.where should be 'before'")
        if self.where not in ("before", "after"):
            raise ValueError(f"qk_norm.where should be 'before' or 'after' but got {self.where!r}")
        require_eps("qk_norm.eps", self.eps)

    def build(self, width: int, heads: int) -> Norm:
        """Return the module for `heads` heads (or groups) of `width`."""
        if self.span == "all":
            return JointNorm(heads * width, self.eps, gain=self.gain)
        return Norm(width, self.eps, gain=self.gain)


@dataclass(frozen=True)
class Stream:
    """One kind of row that a token leaves in a layer's cache.

    Parameters
    ----------
    name
        What it is.
    groups
        Rows a token; 1: one for all heads.
    width
        Elements of a row (logical).
    stored
        Elements that are stored (physical); None: as many.
    """

    name: str
    groups: int
    width: int
    stored: int | None = None

    @property
    def padded(self) -> int:
        """Elements of a row as stored."""
        return self.width if self.stored is None else self.stored

    @property
    def elements(self) -> int:
        """Elements that are stored a token and layer."""
        return self.groups * self.padded


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(ABC):
    """What every variant's configuration has.

    Parameters
    ----------
    n_heads
        Query heads.
    bias
        Biases on queries, keys and values.
    output_bias
        Bias on the output projection.
    scale
        Factor on the scores; None: ``1 / sqrt(key width)``.
    softcap
        Scores are squeezed to within ±`softcap` by a tanh (Gemma 2); None: they are not.
    window
        Keys that a query sees, itself and those right before it; None: all before it.
    slopes
        ALiBi: what a head's score loses with each token of distance, one slope a head; None: nothing.
    """

    n_heads: int
    bias: bool = False
    output_bias: bool = False
    scale: float | None = None
    softcap: float | None = None
    window: int | None = None
    slopes: tuple[float, ...] | None = None

    variants: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        require_positive("n_heads", self.n_heads)
        for name in ("scale", "softcap"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"attention.{name} should be finite and > 0 but got {value}")
        if self.window is not None:
            require_positive("window", self.window)
        if self.slopes is not None:
            object.__setattr__(self, "slopes", tuple(self.slopes))
            if len(self.slopes) != self.n_heads or not all(math.isfinite(slope) for slope in self.slopes):
                raise ValueError(
                    f"attention.slopes should be {self.n_heads} finite numbers, one a head, but got {self.slopes}"
                )

    @property
    @abstractmethod
    def variant(self) -> str:
        """Name of the variant, one of `variants`."""

    @property
    @abstractmethod
    def n_groups(self) -> int:
        """Distinct keys (and values) a token, counted in heads."""

    @property
    @abstractmethod
    def d_key(self) -> int:
        """Width of a head's query and key."""

    @property
    @abstractmethod
    def d_value(self) -> int:
        """Width of a head's value."""

    @property
    @abstractmethod
    def rotary_width(self) -> int | None:
        """Columns of a key that rotary positions must turn; None: free to choose, up to `d_key`."""

    @abstractmethod
    def streams(self, rank_multiple: int = RANK_MULTIPLE) -> tuple[Stream, ...]:
        """Return what a token leaves in one layer's cache: keys and values, or what they are made from.

        Parameters
        ----------
        rank_multiple
            What ranks are padded to where they are stored. Variants without ranks take no notice.
        """

    def cache_width(self, rank_multiple: int = 1) -> int:
        """Return the elements that a token leaves in one layer's cache.

        Parameters
        ----------
        rank_multiple
            What ranks are padded to; 1 counts them as they are (logical), 8 as caches store them (physical).
        """
        return sum(stream.elements for stream in self.streams(rank_multiple))

    @property
    def dense_width(self) -> int:
        """Elements that a token would leave if every head kept a key and a value of its own (MHA).

        MLA's rotary channel is left out: heads of their own would turn columns of their content keys.
        """
        return self.n_heads * (self.d_key - (self.rotary_width or 0) + self.d_value)

    @abstractmethod
    def decode_products(self, length: int) -> int:
        """Return the multiply-adds of one query token in one layer: scores and values over a history of `length`.

        Counted is the cheapest exact order for a long history (what is compressed is never expanded); left out is what
        all variants do alike or once a token: projections of the token, mask, softmax, output.
        """

    def between(self, longest: int) -> str | None:
        """Return what stands between product and softmax for queries that see `longest` keys at most; None: nothing."""
        if self.softcap is not None:
            return "caps on scores"
        if self.slopes is not None:
            return "ALiBi's slopes"
        if self.window is not None and longest > self.window:
            return f"a window of {self.window} tokens, shorter than the history of {longest}"
        return None

    @abstractmethod
    def kv_parameters(self, d_model: int) -> int:
        """Return the weights that make one layer's keys and values (biases and norms left out)."""

    @property
    def head_to_group(self) -> list[int]:
        """Group of each query head, ``[0, 0, 1, 1]`` for 4 heads in 2 groups."""
        return [head // (self.n_heads // self.n_groups) for head in range(self.n_heads)]

    def rotated_columns(self, rotary: Rotary | None) -> slice:
        """Return the columns of a query or key that `rotary` turns (an empty slice without it)."""
        if rotary is None:
            return slice(0, 0)
        if self.rotary_width == 0:
            raise ValueError("positions are rotary but attention.d_rope is 0: give it a rotary channel or no positions")
        width = rotary.width or self.rotary_width or self.d_key
        if self.rotary_width is not None and width != self.rotary_width:
            raise ValueError(
                f"positions.width should be {self.rotary_width} (the rotary channel of {self.variant}) or None "
                f"but got {width}"
            )
        if width > self.d_key or width % 2:
            raise ValueError(f"positions.width should be even and at most the key width {self.d_key} but got {width}")
        # MLA's rotary channel stands behind its content channel; partial rotary turns the leading columns.
        return slice(self.d_key - width, self.d_key) if self.rotary_width is not None else slice(0, width)

    def score_scale(self, rotary: Rotary | None) -> float:
        """Return the factor on the scores: `scale`, or ``1 / sqrt(key width)``."""
        return self.scale if self.scale is not None else self.d_key**-0.5

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description, with the variant's name."""
        return {"variant": self.variant, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PlainHeads(AttentionConfig):
    """What variants have whose queries, keys and values are all `d_head` wide.

    Parameters
    ----------
    d_head
        Width of queries, keys and values.
    qk_norm
        RMS norm of queries and keys.
    """

    d_head: int
    qk_norm: QKNorm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("d_head", self.d_head)
        if self.qk_norm is not None and not isinstance(self.qk_norm, QKNorm):
            raise ValueError(f"attention.qk_norm should be a QKNorm or None but got {self.qk_norm!r}")

    @property
    def d_key(self) -> int:
        """Width of queries and keys."""
        return self.d_head

    @property
    def d_value(self) -> int:
        """Width of values."""
        return self.d_head

    @property
    def rotary_width(self) -> None:
        """Free to choose."""
        return


def require_positive(name: str, value: int) -> None:
    """Raise ValueError unless `value` is an integer above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ValueError(f"attention.{name} should be an integer > 0 but got {value!r}")


Variant = TypeVar("Variant", bound=AttentionConfig)

VARIANTS: dict[str, Callable[[dict[str, Any]], AttentionConfig]] = {}


def register(cls: type[Variant]) -> type[Variant]:
    """Class decorator: make a variant's configuration known by each of its names."""
    for name in cls.variants:
        if name in VARIANTS:
            raise ValueError(f"variant {name!r} is registered twice")
        VARIANTS[name] = lambda fields: cls(**fields)
    return cls


def attention_from_dict(data: dict[str, Any]) -> AttentionConfig:
    """Build a configuration from `AttentionConfig.to_dict`'s description.

    Raises
    ------
    ValueError
        If the variant is unknown (lists the known ones), a field is unknown or missing, or the fields describe another
        variant than the one named.
    """
    fields = dict(data)
    variant = fields.pop("variant", None)
    if variant not in VARIANTS:
        raise ValueError(f"attention.variant should be one of {sorted(VARIANTS)} but got {variant!r}")
    try:
        if isinstance(fields.get("slopes"), list):
            fields["slopes"] = tuple(fields["slopes"])
        if isinstance(fields.get("qk_norm"), dict):
            fields["qk_norm"] = QKNorm(**fields["qk_norm"])
        config = VARIANTS[variant](fields)
    except TypeError as error:
        raise ValueError(f"attention of variant {variant!r}: {error}") from error
    if config.variant != variant:
        raise ValueError(f"attention.variant is {variant!r} but its fields describe {config.variant!r}")
    return config
