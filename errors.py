"""Errors that a caller may want to catch as a family."""

from __future__ import annotations


class HeadscopeError(Exception):
    """Something about the outside world is not as headscope needs it (files, formats, missing parts)."""


class CheckpointError(HeadscopeError):
    """A checkpoint cannot be read: the message names the file, the tensor and what was expected."""


class TokenizerError(HeadscopeError):
    """Text was given, but the model has no tokenizer (or the tokenizer lacks what is needed)."""
