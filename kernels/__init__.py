"""Decoding: one query step over a paged cache, without writing full keys and values out, and what it looked at."""

from .decode import decode
from .operands import KeyPart, Pages, Problem, Turn, ValuePart
from .probes import Probes, ProbeValues
from .result import Decoded

__all__ = ["Decoded", "KeyPart", "Pages", "ProbeValues", "Probes", "Problem", "Turn", "ValuePart", "decode"]
