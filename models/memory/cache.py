"""A paged cache of a model's history, and the requests in it that a forward pass goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...kernels import Decoded, Pages, Probes, Problem, decode
from ...kernels.decode import Asked
from ..variant import Stream
from .form import Dense, Form
from .ledger import Ledger

if TYPE_CHECKING:
    from ..hooked import HookedModel

PAGE = 64
"""Tokens on a page: a tile of the kernels."""


class Cache:
    """What a model keeps of the tokens it has seen, on pages that all layers and streams share.

    One page table serves every layer and every stream, so the parts of a token come and go together.

    Parameters
    ----------
    model
        Whose history to keep.
    n_tokens
        Room, rounded up to whole pages.
    page_size
        Tokens on a page.
    expanded
        Keep every head's keys and values as they are, whatever the variant: what edits on them need.
    dtype
        Type to store; None: the model's.

    Examples
    --------
    >>> import torch
    >>> from headscope.models import Cache, HookedModel, LRKVConfig, ModelConfig
    >>> model = HookedModel(ModelConfig(d_model=16, n_layers=1, d_vocab=9, n_ctx=8,
    ...                                 attention=LRKVConfig(n_heads=2, d_head=8, rank=2)))
    >>> cache = Cache(model, n_tokens=64)
    >>> request = cache.add()
    >>> first = model(torch.tensor([[1, 2, 3]]), cache=cache.of(request))
    >>> second = model(torch.tensor([[4]]), cache=cache.of(request))
    >>> cache.length(request)
    4
    """

    def __init__(
        self,
        model: HookedModel,
        n_tokens: int,
        *,
        page_size: int = PAGE,
        expanded: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        if n_tokens < 1:
            raise ValueError(f"n_tokens should be >= 1 but got {n_tokens}")
        self.model = model
        attentions = [block.attn for block in model.layers]
        self.forms: list[Form] = [Dense(attn) if expanded else attn.form() for attn in attentions]
        self.ledger = Ledger(-(-n_tokens // page_size), page_size)
        self._tokens: dict[int, list[int]] = {}
        kind = dtype or model.embed.weight.dtype
        self.stored: list[dict[str, Tensor]] = [
            {
                stream.name: torch.zeros(
                    stream.groups,
                    self.ledger.n_pages,
                    page_size,
                    stream.padded,
                    dtype=kind,
                    device=model.device,
                )
                for stream in form.streams
            }
            for form in self.forms
        ]

    # -- requests -----------------------------------------------------------------------------------------------------

    def add(self, reserve: int = 0) -> int:
        """Return a new request, empty, with pages for `reserve` tokens set aside; OutOfPages if there are too few."""
        request = self.ledger.add(reserve)
        self._tokens[request] = []
        return request

    def fork(self, request: int) -> int:
        """Return a new request with the same history, on the same pages until either grows into a shared one."""
        twin = self.ledger.fork(request)
        self._tokens[twin] = list(self._tokens[request])
        return twin

    def free(self, request: int) -> None:
        """Forget a request."""
        self.ledger.free(request)
        del self._tokens[request]

    def length(self, request: int) -> int:
        """Return how many tokens a request has."""
        return self.ledger.length(request)

    def tokens(self, request: int) -> list[int]:
        """Return the tokens of a request's history."""
        self.ledger.length(request)
        return list(self._tokens[request])

    def of(self, *requests: int, probes: Probes | None = None, path: Asked = "auto") -> Requests:
        """Return requests for a forward pass to go on with, a row each.

        Parameters
        ----------
        requests
            Which; each once.
        probes
            What to look at while single tokens attend.
        path
            Which implementation decodes.
        """
        if not requests:
            raise ValueError("a forward pass needs at least one request")
        if len(set(requests)) < len(requests):
            raise ValueError(f"each request can be there once, but got {list(requests)}")
        for request in requests:
            self.ledger.length(request)
        return Requests(self, requests, probes, path)

    def read(self, layer: int, request: int) -> dict[str, Float[Tensor, "pos group width"]]:
        """Return a copy of what one layer keeps of a request, by stream, without padding."""
        table = torch.tensor(self.ledger.pages(request), dtype=torch.long)
        length = self.ledger.length(request)
        widths = {stream.name: stream.width for stream in self.forms[layer].streams}
        return {
            name: rows[:, table].flatten(1, 2)[:, :length, : widths[name]].transpose(0, 1).clone()
            for name, rows in self.stored[layer].items()
        }

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def bytes_allocated(self) -> int:
        """Bytes of all pages."""
        return sum(rows.nbytes for layer in self.stored for rows in layer.values())

    def bytes_used(self, *, padded: bool = True) -> int:
        """Return the bytes of the tokens there are (shared ones once a request), with ranks padded or as they are."""
        tokens = sum(self.ledger.length(request) for request in self.ledger.requests)
        return tokens * sum(
            stream.groups * (stream.padded if padded else stream.width) * layer[stream.name].element_size()
            for layer, form in zip(self.stored, self.forms, strict=True)
            for stream in form.streams
        )


@dataclass(frozen=True, eq=False)
class Step:
    """One layer's decode step.

    Parameters
    ----------
    decoded
        What came of attending: which path ran, and what was looked at.
    summands
        The parts of each head's output; their sum is ``z``.
    score_parts, output_parts
        Names of the summands of scores and of outputs.
    """

    decoded: Decoded
    summands: Float[Tensor, "batch head part d_value"]
    score_parts: tuple[str, ...]
    output_parts: tuple[str, ...]


@dataclass
class Requests:
    """Requests that a forward pass goes on with, a row each.

    Parameters
    ----------
    cache, requests, probes, path
        As for `Cache.of`.
    steps
        The last pass's decode step of each layer; none where several tokens came at once or the pattern was written
        out.
    """

    cache: Cache
    requests: tuple[int, ...]
    probes: Probes | None = None
    path: Asked = "auto"
    steps: dict[int, Step] = field(default_factory=dict)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each request."""
        return [self.cache.length(request) for request in self.requests]

    @property
    def tokens(self) -> list[list[int]]:
        """Tokens of each request's history."""
        return [self.cache.tokens(request) for request in self.requests]

    @contextmanager
    def extended(self, tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"]) -> Iterator[Extension]:
        """Make room for new tokens; if the ``with`` block raises, they are forgotten again.

        Parameters
        ----------
        tokens
            The tokens, a row for each request.
        valid
            Which of them are no pads.

        Raises
        ------
        OutOfPages
            If there are too few pages; the cache is as it was.
        """
        ledger, before = self.cache.ledger, self.lengths
        counts = valid.sum(1).tolist()
        copies = ledger.extend(dict(zip(self.requests, counts, strict=True)))
        for source, target in copies:
            for layer in self.cache.stored:
                for rows in layer.values():
                    rows[:, target] = rows[:, source]
        self.steps = {}
        try:
            yield Extension.of(self, before, counts, valid)
        except BaseException:
            for request, length in zip(self.requests, before, strict=True):
                ledger.shorten(request, length)
            raise
        for request, row, real in zip(self.requests, tokens, valid, strict=True):
            self.cache._tokens[request] += row[real].tolist()


@dataclass(frozen=True, eq=False)
class Extension:
    """New tokens of some requests, on their way through the layers.

    Parameters
    ----------
    requests
        Whose.
    before
        Length of each request before.
    valid
        Which of the new positions hold a token.
    positions
        Position of each new token in its request.
    table, lengths
        Where the requests' tokens lie, and how many there are, the new ones included.
    place
        Page and slot of each new token, in the order of `valid`.
    """

    requests: Requests
    before: list[int]
    valid: Bool[Tensor, "batch pos"]
    positions: Int[Tensor, "batch pos"]
    table: Int[Tensor, "batch block"]
    lengths: Int[Tensor, " batch"]
    place: tuple[Int[Tensor, " token"], Int[Tensor, " token"]]

    @classmethod
    def of(
        cls, requests: Requests, before: Sequence[int], counts: Sequence[int], valid: Bool[Tensor, "batch pos"]
    ) -> Extension:
        """Return the extension of `requests` by `counts` tokens, for which there is room already."""
        ledger, device = requests.cache.ledger, valid.device
        tables = [ledger.pages(request) for request in requests.requests]
        longest = max(len(table) for table in tables)
        table = torch.tensor([[*pages, *[0] * (longest - len(pages))] for pages in tables], device=device)
        start = torch.tensor(before, device=device)[:, None]
        positions = (valid.long().cumsum(1) - 1).clamp_min(0) + start
        lengths = torch.tensor(before, device=device) + torch.tensor(counts, device=device)
        block, slot = positions // ledger.page_size, positions % ledger.page_size
        page = table.gather(1, block.clamp_max(longest - 1))
        return cls(requests, list(before), valid, positions, table, lengths, (page[valid], slot[valid]))

    @cached_property
    def pages(self) -> Pages:
        """The same for a decode step, one for all layers: what is planned for one serves all."""
        return Pages(self.table, self.lengths)

    def layer(self, index: int) -> LayerMemory:
        """Return one layer's part."""
        cache = self.requests.cache
        return LayerMemory(self, index, cache.forms[index], cache.stored[index])


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """One layer's history while new tokens come in.

    Parameters
    ----------
    extension
        The new tokens.
    index
        Which layer.
    form
        How it keeps its history.
    stored
        Where that lies.
    """

    extension: Extension
    index: int
    form: Form
    stored: Mapping[str, Float[Tensor, "group page slot padded"]]

    def write(self, kept: Mapping[str, Float[Tensor, "batch pos group width"]]) -> None:
        """Store what the new tokens leave."""
        page, slot = self.extension.place
        for name, rows in kept.items():
            target = self.stored[name]
            new = rows[self.extension.valid].transpose(0, 1).to(target.dtype)
            target[:, page, slot, : new.shape[-1]] = new

    @property
    def longest(self) -> int:
        """Tokens of the longest request, the new ones included."""
        return int(self.extension.lengths.max())

    @property
    def is_first(self) -> bool:
        """Whether no request had any token before."""
        return not any(self.extension.before)

    @property
    def visible(self) -> Bool[Tensor, "batch 1 query_pos key_pos"] | None:
        """Where new tokens may look: among themselves if they are the first, else in the whole history.

        None: at themselves and all before. Pads see nothing and are not seen.
        """
        valid, positions = self.extension.valid, self.extension.positions
        if not self.is_first:
            key = torch.arange(self.longest, device=valid.device)
            return ((key <= positions[..., None]) & valid[..., None])[:, None]
        if bool(valid.all()):
            return None
        causal = torch.ones(valid.shape[1], valid.shape[1], dtype=torch.bool, device=valid.device).tril()
        return (causal & valid[:, None] & valid[..., None])[:, None]

    def history(self) -> dict[str, Float[Tensor, "batch pos group width"]]:
        """Return what is stored of the whole history, padded to the longest request."""
        table, longest = self.extension.table, self.longest
        widths: dict[str, Stream] = {stream.name: stream for stream in self.form.streams}
        return {
            name: rows[:, table].flatten(2, 3)[:, :, :longest, : widths[name].width].permute(1, 2, 0, 3)
            for name, rows in self.stored.items()
        }

    def decode(self, q: Float[Tensor, "batch head d_key"], scale: float) -> Float[Tensor, "batch head d_value"]:
        """Attend with one new token a request; what it looked at is kept with the requests."""
        requests = self.extension.requests
        keys, values = self.form.parts(q, self.stored)
        problem = Problem(keys, values, self.extension.pages, scale, self.form.row_scale(self.stored))
        found = decode(problem, requests.probes, requests.path)
        summands = self.form.expand(found.values)
        names = tuple(part.name for part in keys), tuple(part.name for part in values)
        requests.steps[self.index] = Step(found, summands, *names)
        return summands.sum(2)
