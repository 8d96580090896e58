"""Text in and out of a model: what TransformerLens's users call `to_tokens`, `to_string` and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import TokenizerError


class TextInterface:
    """Mixin for a model with a `_tokenizer` (or a function that returns one), a `device` and an unembedding `W_U`."""

    _tokenizer: Any | Callable[[], Any] | None

    @property
    def device(self) -> torch.device:
        """Device that tokens are put on; the model says which."""
        raise AttributeError("a model with a text interface needs a device")

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """Unembedding; the model says which."""
        raise AttributeError("a model with a text interface needs an unembedding W_U")

    @property
    def tokenizer(self) -> Any | None:
        """The Hugging Face tokenizer, None if there is none; loaded when first asked for."""
        if callable(self._tokenizer) and not hasattr(self._tokenizer, "decode"):
            self._tokenizer = self._tokenizer()
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, value: Any | Callable[[], Any] | None) -> None:
        self._tokenizer = value

    def _need_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise TokenizerError("this model has no tokenizer: pass tokens, or set model.tokenizer")
        return self.tokenizer

    def tokenize(
        self, text: str | list[str], padding_side: Literal["left", "right"] = "right"
    ) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
        """Return tokens and their mask (1 for a token, 0 for a pad), padded to the longest text.

        Special tokens are added as the tokenizer itself does.

        Raises
        ------
        TokenizerError
            If there is no tokenizer, or texts of different lengths need a pad token that it lacks.
        """
        tokenizer = self._need_tokenizer()
        rows = [tokenizer.encode(t) for t in ([text] if isinstance(text, str) else text)]
        longest = max((len(row) for row in rows), default=0)
        pad = tokenizer.pad_token_id
        if pad is None and any(len(row) < longest for row in rows):
            raise TokenizerError(
                "the texts differ in length and the tokenizer has no pad token: set model.tokenizer.pad_token "
                "(for example to its eos_token), or pass one text at a time"
            )
        tokens = torch.full((len(rows), longest), 0 if pad is None else pad, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for i, row in enumerate(rows):
            where = slice(longest - len(row), longest) if padding_side == "left" else slice(0, len(row))
            tokens[i, where] = torch.tensor(row, dtype=torch.long)
            mask[i, where] = 1
        return tokens.to(self.device), mask.to(self.device)

    def to_tokens(self, input: str | list[str]) -> Int[Tensor, "batch pos"]:
        """Return the tokens of a text or of several, padded on the right."""
        return self.tokenize(input)[0]

    def to_string(self, tokens: Int[Tensor, "batch pos"] | Int[Tensor, " pos"] | Int[Tensor, ""]) -> str | list[str]:
        """Return the text of tokens; a list for a batch."""
        tokenizer = self._need_tokenizer()
        if tokens.ndim == 2:
            return [tokenizer.decode(row) for row in tokens]
        return tokenizer.decode(tokens)

    def to_str_tokens(self, input: str | Int[Tensor, " pos"]) -> list[str]:
        """Return each token of one text as a string."""
        tokens = self.to_tokens(input)[0] if isinstance(input, str) else input.flatten()
        tokenizer = self._need_tokenizer()
        return [tokenizer.decode(token) for token in tokens]

    def to_single_token(self, string: str) -> int:
        """Return the one token of a string; ValueError if it is not exactly one."""
        tokens = self._need_tokenizer().encode(string, add_special_tokens=False)
        if len(tokens) != 1:
            raise ValueError(f"{string!r} should be a single token but is {len(tokens)}")
        return tokens[0]

    def tokens_to_residual_directions(self, tokens: str | int | Int[Tensor, "*batch"]) -> Float[Tensor, "... d_model"]:
        """Return each token's unembedding vector, whose dot product with the normed residual is the token's logit."""
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        index = torch.as_tensor(tokens, device=self.device)
        if index.numel() == 1:
            index = index.reshape(())
        return self.W_U.T[index]
