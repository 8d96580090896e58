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
        self,
        text: str | list[str],
        padding_side: Literal["left", "right"] = "right",
        prepend_bos: bool | None = None,
    ) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
        """Return tokens and their mask (1 for a token, 0 for a pad), padded to the longest text.

        Special tokens are added as the tokenizer itself does. `prepend_bos` asks for the beginning-of-sequence token in
        front (True) or not there (False) whatever the tokenizer does; None leaves it to the tokenizer.

        Raises
        ------
        TokenizerError
            If there is no tokenizer, or texts of different lengths need a pad token that it lacks.
        """
        tokenizer = self._need_tokenizer()
        rows = [self._with_bos(tokenizer.encode(t), prepend_bos) for t in ([text] if isinstance(text, str) else text)]
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

    def _with_bos(self, row: list[int], prepend_bos: bool | None) -> list[int]:
        if prepend_bos is None:
            return row
        bos = self._need_tokenizer().bos_token_id
        if bos is None:
            raise TokenizerError("prepend_bos was given, but the tokenizer has no beginning-of-sequence token")
        bare = row[1:] if row[:1] == [bos] else row
        return [bos, *bare] if prepend_bos else bare

    def to_tokens(
        self,
        input: str | list[str],
        prepend_bos: bool | None = None,
        padding_side: Literal["left", "right"] = "right",
    ) -> Int[Tensor, "batch pos"]:
        """Return the tokens of a text or of several, padded to the longest; see `tokenize`."""
        return self.tokenize(input, padding_side, prepend_bos)[0]

    def to_string(
        self, tokens: list[int] | Int[Tensor, "batch pos"] | Int[Tensor, " pos"] | Int[Tensor, ""]
    ) -> str | list[str]:
        """Return the text of tokens; a list for a batch."""
        tokenizer = self._need_tokenizer()
        tokens = torch.as_tensor(tokens)
        if tokens.ndim == 2:
            return [tokenizer.decode(row) for row in tokens]
        return tokenizer.decode(tokens)

    def to_str_tokens(
        self, input: str | Int[Tensor, " pos"] | Int[Tensor, "1 pos"], prepend_bos: bool | None = None
    ) -> list[str]:
        """Return each token of one text as a string."""
        tokens = self.to_tokens(input, prepend_bos)[0] if isinstance(input, str) else input
        if tokens.ndim == 2:
            if len(tokens) != 1:
                raise ValueError(f"to_str_tokens takes one text but got a batch of {len(tokens)}")
            tokens = tokens[0]
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
