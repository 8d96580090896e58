"""Edits in a running model, for the length of a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from ..models.hooked import HookedModel
from ..models.hooks import remove_hook
from ..models.memory import Requests
from .edits import Edit, Rows
from .paths import View, view
from .site import Site

Model = TypeVar("Model", bound=nn.Module)
Reference = tuple[Tensor, Bool[Tensor, "row pos"]]


@contextmanager
def apply(model: Model, *edits: Edit, samples: Sequence[int] | None = None) -> Iterator[Model]:
    """Apply edits to a model for the length of a ``with`` block, in the order given.

    What is hooked on entering is unhooked on leaving, also when the forward pass raises; weights are never touched, and
    other people's hooks stay.

    Parameters
    ----------
    model
        The wrapper, or TransformerLens's bridge around any model.
    edits
        What to change.
    samples
        Number of each row's sample, which random choices depend on; None: 0, 1, 2 … in the order of the batch.

    Raises
    ------
    ValueError
        If the model's variant has no such path (names the variant and, for MQA, says why), or `samples` does not fit
        the batch.
    IndexError
        If a layer, head or position does not exist; names the range.

    Examples
    --------
    >>> import torch
    >>> from headscope.interventions import Zero, apply
    >>> from headscope.models import HookedModel, LRKVConfig, ModelConfig
    >>> model = HookedModel(ModelConfig(d_model=16, n_layers=1, d_vocab=9, n_ctx=8,
    ...                                 attention=LRKVConfig(n_heads=2, d_head=8, rank=2)))
    >>> with apply(model, Zero(path="k_private", layers=(0,), heads=(1,))):
    ...     logits = model(torch.tensor([[1, 2, 3]]))
    """
    plan = [(edit, layer, view(model, edit.path, layer, rotated=edit.rotated)) for edit, layer in _places(model, edits)]
    held = measure(model, [(edit.reference_rows, found) for edit, _, found in plan])
    batch = _Batch(model, None if samples is None else tuple(samples))
    added: list[tuple[HookPoint, Any]] = []
    watch = model.register_forward_pre_hook(batch.see, with_kwargs=True)
    try:
        for (edit, layer, found), reference in zip(plan, held, strict=True):
            point: Any = model.hook_dict[found.hook]  # pyright: ignore[reportIndexIssue, reportArgumentType]
            batch.waiting.add(found.hook)
            added.append((point, point.add_hook(_hook(edit, layer, found, reference, batch))))
        yield model
        if batch.ran and batch.waiting:
            raise ValueError(f"{min(batch.waiting)} was never reached by the forward pass: the edit changed nothing")
    finally:
        watch.remove()
        for point, handle in added:
            remove_hook(point, handle)


def _places(model: Any, edits: Sequence[Edit]) -> list[tuple[Edit, int]]:
    count = model.config.n_layers if isinstance(model, HookedModel) else model.cfg.n_layers
    return [(edit, layer) for edit in edits for layer in (range(count) if edit.layers is None else edit.layers)]


def _hook(edit: Edit, layer: int, found: View, reference: Reference | None, batch: _Batch) -> Any:
    def hook(tensor: Tensor, hook: HookPoint) -> Tensor:
        batch.waiting.discard(found.hook)
        site = batch.site(edit, layer, tensor, reference)
        part = found.read(tensor, site)
        return found.write(tensor, edit.edited(part, site), site)

    return hook


class _Batch:
    """What the model was last called with."""

    def __init__(self, model: nn.Module, samples: tuple[int, ...] | None) -> None:
        self._model, self._samples = model, samples
        self._tokens: Tensor | None = None
        self._mask: Tensor | None = None
        self._positions: Tensor | None = None
        self._past: tuple[tuple[int, ...], ...] | None = None
        self.waiting: set[str] = set()
        self.ran = False

    def see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("input", kwargs.get("input_ids"))
        mask, self._tokens = kwargs.get("attention_mask"), None
        if isinstance(given, str | list):
            if not isinstance(self._model, HookedModel):
                raise ValueError("edits in a bridge need tokens, and attention_mask by name: text hides its pads")
            given, from_text = self._model.tokenize(given, prepend_bos=kwargs.get("prepend_bos"))
            mask = from_text if mask is None else mask
        if isinstance(given, Tensor) and not given.is_floating_point():
            self._tokens = given if given.ndim == 2 else given[None]
        self._mask, self._positions = mask, kwargs.get("positions")
        history = kwargs.get("cache")
        self._past = tuple(map(tuple, history.tokens)) if isinstance(history, Requests) else None
        whole = kwargs.get("start_at_layer") is None and kwargs.get("stop_at_layer") is None
        self.ran = self.ran or whole  # a part of the model need not reach every edit

    def site(self, edit: Edit, layer: int, tensor: Tensor, reference: Reference | None) -> Site:
        rows, count = tensor.shape[0], tensor.shape[2 if edit.path == "pattern" else 1]
        samples = tuple(range(rows)) if self._samples is None else self._samples
        if len(samples) != rows:
            raise ValueError(f"samples should have a number for each of the batch's {rows} rows but has {len(samples)}")
        known = self._tokens is not None and self._tokens.shape == (rows, count)
        mask = torch.ones(rows, count, dtype=torch.bool) if self._mask is None else self._mask.bool()
        if mask.shape != (rows, count):  # a step of generation: the mask is of everything so far
            mask = mask[:, -count:]
        positions = self._positions
        if positions is None or positions.shape != (rows, count):
            positions = counted(mask)
            if self._past is not None:
                positions = positions + torch.tensor([len(row) for row in self._past])[:, None].to(positions)
        tokens = self._tokens if known else None
        return Site(layer, samples, mask.cpu(), positions.to(tensor.device), tokens, self._past, reference)


@torch.no_grad()
def measure(model: Any, wanted: Sequence[tuple[Rows | None, View]], batch_size: int = 16) -> list[Reference | None]:
    """Return for each (rows, view) what the path holds on those rows as the model is now, or None without rows.

    Rows are run once for all views that ask for the same ones.
    """
    found: list[Reference | None] = [None] * len(wanted)
    device = next(model.parameters()).device
    # Behind the last layer that is asked for nothing needs to run.
    last = max((int(asked_view.hook.split(".")[1]) for rows, asked_view in wanted if rows is not None), default=0)
    stop = {"stop_at_layer": last + 1} if isinstance(model, HookedModel) else {}
    for rows in dict.fromkeys(rows for rows, _ in wanted if rows is not None):
        mine = {i: asked_view for i, (asked, asked_view) in enumerate(wanted) if asked == rows}
        tokens, valid = padded(rows)
        parts: dict[int, list[Tensor]] = {i: [] for i in mine}
        for start in range(0, len(rows), batch_size):
            here = slice(start, start + batch_size)
            site = Site(0, tuple(range(len(rows))[here]), valid[here], counted(valid[here]).to(device), tokens[here])
            # One hook a view: a bridge's hook points may go by another name than the one they were asked for.
            added = []
            for i, asked_view in mine.items():
                point = model.hook_dict[asked_view.hook]
                added.append((point, point.add_hook(_keeper(asked_view, site, parts[i]))))
            try:
                model(tokens[here].to(device), attention_mask=valid[here].long().to(device), **stop)
            finally:
                for point, handle in added:
                    remove_hook(point, handle)
        for i, held in parts.items():
            found[i] = torch.cat(held), valid
    return found


def _keeper(found: View, site: Site, held: list[Tensor]) -> Any:
    def hook(tensor: Tensor, hook: HookPoint) -> None:
        held.append(found.read(tensor, site).detach().clone())

    return hook


def padded(rows: Rows) -> tuple[Int[Tensor, "row pos"], Bool[Tensor, "row pos"]]:
    """Return rows of tokens as one tensor, padded on the right with token 0, and which positions are tokens."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(width) < lengths[:, None]


def counted(valid: Bool[Tensor, "row pos"]) -> Int[Tensor, "row pos"]:
    """Return each token's position, counted from the first that is no pad."""
    return (valid.long().cumsum(-1) - 1).clamp_min(0)
