"""A trained model into another attention variant: the best split on inputs, bases brought together first."""

from .convert import convert
from .result import Conversion
from .spans import closure_violation

__all__ = ["Conversion", "closure_violation", "convert"]
