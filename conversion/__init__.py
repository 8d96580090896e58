"""A trained model into another attention variant: the best split on inputs, bases brought together first."""

from .convert import convert
from .result import Conversion

__all__ = ["Conversion", "convert"]
