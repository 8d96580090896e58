"""Errors that a caller may want to catch as a family, and the warning that something was passed over."""

from __future__ import annotations


class HeadscopeError(Exception):
    """Something about the outside world is not as headscope needs it (files, formats, missing parts).

    Examples
    --------
    >>> import headscope as hs
    >>> issubclass(hs.CheckpointError, hs.HeadscopeError)
    True
    """


class CheckpointError(HeadscopeError):
    """A checkpoint cannot be read: the message names the file, the tensor and what was expected.

    Examples
    --------
    >>> import headscope as hs
    >>> try:
    ...     hs.load("no-such-place")
    ... except hs.CheckpointError as error:
    ...     print("not loaded")
    not loaded
    """


class TokenizerError(HeadscopeError):
    """Text was given, but the model has no tokenizer (or the tokenizer lacks what is needed).

    Examples
    --------
    >>> import headscope as hs
    >>> attention = hs.GroupedConfig(n_heads=2, d_head=4)
    >>> model = hs.HookedModel(hs.ModelConfig(d_model=8, n_layers=1, d_vocab=9, n_ctx=4, attention=attention))
    >>> try:
    ...     model("text")
    ... except hs.TokenizerError as error:
    ...     print("give it tokens")
    give it tokens
    """


class HeadscopeWarning(UserWarning):
    """Something that was given was passed over: the message says what and why. The command line prints it as a note."""
