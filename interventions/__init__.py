"""Edits of what a head reads, looks at or brings, as values that leave the model as it was."""

from .edits import PATHS, Edit, Scale, Zero, apply

__all__ = ["PATHS", "Edit", "Scale", "Zero", "apply"]
