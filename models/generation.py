"""Going on from a prompt: greedy or sampled, with the cache or without; token by token for whoever wants to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..kernels import Probes
from ..kernels.decode import Asked
from .memory import Cache, Requests
from .memory.cache import PAGE, Step

if TYPE_CHECKING:
    from .hooked import HookedModel


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Parameters
    ----------
    temperature
        0: the likeliest token. Above: sampled, logits divided by it.
    top_k
        Only among the so many likeliest; None: no such limit.
    top_p
        Only among the likeliest that together have this probability; None: no such limit.
    seed
        Of the draws; each row draws from a generator of its own, whatever else is in the batch.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature should be finite and >= 0 but got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k should be >= 1 but got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p should be in the interval (0, 1] but got {self.top_p}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p is not None):
            raise ValueError("top_k and top_p need a temperature above 0: without one the likeliest token is taken")

    def chooser(self, rows: int) -> Chooser:
        """Return what chooses for a batch of `rows`."""
        return Chooser(self, [torch.Generator().manual_seed(_row_seed(self.seed, row)) for row in range(rows)])


def _row_seed(seed: int, row: int) -> int:
    return (seed * 1_000_003 + row) % 2**63


@dataclass(frozen=True)
class Chooser:
    """A way to choose with its generators, one a row."""

    sampling: Sampling
    generators: Sequence[torch.Generator]

    def choose(self, logits: Float[Tensor, "batch d_vocab"]) -> Int[Tensor, " batch"]:
        """Return the next token of each row."""
        how = self.sampling
        if how.temperature == 0:
            return logits.argmax(-1)
        from transformers import TopKLogitsWarper, TopPLogitsWarper

        scores: Any = logits.float().cpu() / how.temperature
        no_tokens: Any = None  # neither rule looks at what came before
        if how.top_k is not None:
            scores = TopKLogitsWarper(how.top_k)(no_tokens, scores)
        if how.top_p is not None:
            scores = TopPLogitsWarper(how.top_p)(no_tokens, scores)
        chances = scores.softmax(-1)
        drawn = [torch.multinomial(row, 1, generator=g) for row, g in zip(chances, self.generators, strict=True)]
        return torch.cat(drawn).to(logits.device)


@dataclass(frozen=True, eq=False)
class NewTokens:
    """One step of a generation.

    Parameters
    ----------
    index
        0 for the first new token.
    tokens
        The new token of each row; of no meaning where `running` is false.
    running
        Rows that had not ended before.
    looked
        By layer, the decode step of the query that chose these tokens; empty where none was made (without probes the
        first token comes with the prompt; without a cache none ever is).
    """

    index: int
    tokens: Int[Tensor, " batch"]
    running: Bool[Tensor, " batch"]
    looked: dict[int, Step] = field(default_factory=dict)


def stream(
    model: HookedModel,
    tokens: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    max_new_tokens: int,
    sampling: Sampling,
    *,
    eos: frozenset[int] = frozenset(),
    use_cache: bool = True,
    probes: Probes | None = None,
    path: Asked = "auto",
) -> Iterator[NewTokens]:
    """Yield new tokens step by step, until every row has ended.

    The parameters are those of `Generating.stream`, prompts as tokens with a mask.
    """
    if not bool(mask.any(1).all()):
        raise ValueError(f"row {int((~mask.any(1)).nonzero()[0])} has no token to go on from")
    chooser = sampling.chooser(len(tokens))
    history = _Cached(model, tokens, mask, max_new_tokens, probes, path) if use_cache else _Again(model, tokens, mask)
    running = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    for index in range(max_new_tokens):
        with torch.no_grad():
            logits = history.next_logits()
        new = chooser.choose(logits)
        yield NewTokens(index, new, running.clone(), history.looked)
        running = running & ~torch.isin(new, torch.tensor(sorted(eos), dtype=new.dtype, device=new.device))
        if not bool(running.any()):
            return
        history.append(new)


class _Cached:
    """Prompts once, then token by token. Rows that have ended go along, so that a batch stays what it is."""

    def __init__(
        self,
        model: HookedModel,
        tokens: Tensor,
        mask: Tensor,
        max_new_tokens: int,
        probes: Probes | None,
        path: Asked,
    ) -> None:
        self.model = model
        lengths = mask.sum(1).tolist()
        reserves = [length + max_new_tokens for length in lengths]
        room = sum(-(-reserve // PAGE) * PAGE for reserve in reserves)
        cache = Cache(model, room, expanded=needs_expanded(model))
        self.requests: Requests = cache.of(*map(cache.add, reserves), probes=probes, path=path)
        last = mask.long().cumsum(1).argmax(1)
        self._last = last
        self._tokens, self._mask = tokens, mask
        if probes is not None:  # the last token of each prompt attends alone, so that it can be looked at
            rows = torch.arange(len(tokens), device=tokens.device)
            before = mask.clone()
            before[rows, last] = False
            if bool(before.any()):
                self.model(tokens, attention_mask=before, cache=self.requests, return_type=None)
            self._tokens, self._mask = tokens[rows, last][:, None], torch.ones_like(mask[:, :1])
            self._last = torch.zeros_like(last)

    def next_logits(self) -> Float[Tensor, "batch d_vocab"]:
        logits = self.model(self._tokens, attention_mask=self._mask, cache=self.requests)
        return logits[torch.arange(len(logits), device=logits.device), self._last]

    def append(self, new: Tensor) -> None:
        self._tokens, self._mask = new[:, None], torch.ones_like(self._mask[:, :1])
        self._last = torch.zeros_like(new)

    @property
    def looked(self) -> dict[int, Step]:
        return self.requests.steps


class _Again:
    """Everything again at every step."""

    looked: dict[int, Step] = {}  # noqa: RUF012 (never written to)

    def __init__(self, model: HookedModel, tokens: Tensor, mask: Tensor) -> None:
        self.model, self._tokens, self._mask = model, tokens, mask

    def next_logits(self) -> Float[Tensor, "batch d_vocab"]:
        logits = self.model(self._tokens, attention_mask=self._mask)
        last = self._mask.long().cumsum(1).argmax(1)
        return logits[torch.arange(len(logits), device=logits.device), last]

    def append(self, new: Tensor) -> None:
        self._tokens = torch.cat((self._tokens, new[:, None]), dim=1)
        self._mask = torch.cat((self._mask, torch.ones_like(self._mask[:, :1])), dim=1)


def needs_expanded(model: HookedModel) -> bool:
    """Whether something is hooked that the layers' own ways of keeping history never write out."""
    return any(
        point is not None and point.has_hooks()
        for block in model.layers
        for point in (getattr(block.attn, name, None) for name in block.attn.form().skipped)
    )


class Generating:
    """Generation as methods of a model with a text interface."""

    def generate(
        self: Any,
        input: str | list[str] | Int[Tensor, "batch pos"] | Int[Tensor, " pos"],
        max_new_tokens: int = 20,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_at_eos: bool = True,
        eos_token_id: int | Sequence[int] | None = None,
        use_cache: bool = True,
        prepend_bos: bool | None = None,
        attention_mask: Int[Tensor, "batch pos"] | Bool[Tensor, "batch pos"] | None = None,
        return_type: Literal["input", "str", "tokens"] = "input",
    ) -> str | list[str] | Int[Tensor, "batch longer"]:
        """Go on from one prompt or several, of any lengths.

        Edits and hooks stay in force at every step. With a cache an edited key or value stays as it was when it was
        stored.

        Parameters
        ----------
        input
            Text, a list of texts, or tokens ``[batch, pos]`` or ``[pos]``.
        max_new_tokens
            At most so many.
        temperature, top_k, top_p, seed
            As for `Sampling`; by default the likeliest token.
        stop_at_eos, eos_token_id
            Whether rows end at an end-of-sequence token, and which (several are possible); None: the tokenizer's.
        use_cache
            False: read everything again at every step, which gives the same tokens.
        prepend_bos
            For text: as in `tokenize`.
        attention_mask
            For tokens: 1 for a token, 0 for a pad, on either side.
        return_type
            ``"str"``, ``"tokens"``, or ``"input"``: what came in.

        Returns
        -------
        str, list of str or Tensor
            Prompt and new tokens. As tokens: pads removed, rows that ended earlier filled up on the right with the
            token they ended with.

        Raises
        ------
        ValueError
            If an option cannot be, or a row has no token.
        TokenizerError
            If text is given or asked for and there is no tokenizer.
        """
        tokens, mask = self._prompt(input, prepend_bos, attention_mask)
        if return_type not in ("input", "str", "tokens"):
            raise ValueError(f"return_type should be 'input', 'str' or 'tokens' but got {return_type!r}")
        sampling = Sampling(temperature, top_k, top_p, seed)
        eos = self._ends(stop_at_eos, eos_token_id)
        rows = [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
        steps = stream(self, tokens, mask, _count(max_new_tokens), sampling, eos=eos, use_cache=use_cache)
        for step in steps:
            for row, token, runs in zip(rows, step.tokens.tolist(), step.running.tolist(), strict=True):
                if runs:
                    row.append(token)
        if return_type == "str" or (return_type == "input" and isinstance(input, str | list)):
            found = [self._need_tokenizer().decode(row) for row in rows]
            return found[0] if isinstance(input, str) else found
        longest = max(map(len, rows))
        return torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=tokens.device)

    def stream(
        self: Any,
        input: str | list[str] | Int[Tensor, "batch pos"] | Int[Tensor, " pos"],
        max_new_tokens: int = 20,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_at_eos: bool = True,
        eos_token_id: int | Sequence[int] | None = None,
        use_cache: bool = True,
        prepend_bos: bool | None = None,
        attention_mask: Int[Tensor, "batch pos"] | Bool[Tensor, "batch pos"] | None = None,
        probes: Probes | None = None,
        path: Asked = "auto",
    ) -> Iterator[NewTokens]:
        """Yield new tokens step by step, with what every layer's heads looked at when they chose them.

        Parameters
        ----------
        input, max_new_tokens, temperature, top_k, top_p, seed, stop_at_eos, eos_token_id, use_cache, prepend_bos
            As for `generate`.
        attention_mask
            As for `generate`.
        probes
            What to look at; None: nothing. Positions count from each row's first token.
        path
            Which implementation decodes.

        Raises
        ------
        ValueError
            As for `generate`; or if probes are asked for without a cache.
        """
        if probes is not None and not use_cache:
            raise ValueError("probes look at decode steps, and without a cache there are none: use_cache=True")
        tokens, mask = self._prompt(input, prepend_bos, attention_mask)
        sampling = Sampling(temperature, top_k, top_p, seed)
        eos = self._ends(stop_at_eos, eos_token_id)
        count = _count(max_new_tokens)
        return stream(self, tokens, mask, count, sampling, eos=eos, use_cache=use_cache, probes=probes, path=path)

    def _prompt(
        self: Any, input: Any, prepend_bos: bool | None, mask: Tensor | None
    ) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
        if isinstance(input, list) and not (input and all(isinstance(one, str) for one in input)):
            raise ValueError("a list should hold texts, one or more; tokens come as a tensor")
        if isinstance(input, str | list):
            if mask is not None:
                raise ValueError("attention_mask goes with tokens: text is padded here")
            tokens, mask = self._padded(input, prepend_bos)
        elif not isinstance(input, Tensor):
            raise ValueError(
                f"the input should be text, a list of texts, or tokens as a tensor, but is {type(input).__name__}"
            )
        else:
            tokens = (input[None] if input.ndim == 1 else input).to(self.device)
        return tokens, self._mask(mask, tokens)

    def _padded(self: Any, text: str | list[str], prepend_bos: bool | None) -> tuple[Tensor, Tensor]:
        """Return texts as tokens, padded on the right with any token: the mask says what counts."""
        found = [
            self.tokenize(one, prepend_bos=prepend_bos)[0][0] for one in ([text] if isinstance(text, str) else text)
        ]
        longest = max((len(row) for row in found), default=0)
        tokens = torch.zeros(len(found), longest, dtype=torch.long, device=self.device)
        mask = torch.zeros_like(tokens)
        for i, row in enumerate(found):
            tokens[i, : len(row)], mask[i, : len(row)] = row, 1
        return tokens, mask

    def _ends(self: Any, stop: bool, eos: int | Sequence[int] | None) -> frozenset[int]:
        if not stop:
            return frozenset()
        if eos is None:
            eos = None if self.tokenizer is None else self.tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)


def _count(max_new_tokens: int) -> int:
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens should be an integer >= 1 but got {max_new_tokens!r}")
    return max_new_tokens
