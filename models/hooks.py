"""TransformerLens's `HookedRootModule`, with its sharp edges taken off.

What differs from the original, all of it in the user's favour:

- `run_with_cache` returns an `ActivationCache`, and a ``names_filter`` that matches nothing is a KeyError;
- a hook name that does not exist is a KeyError that suggests the nearest ones;
- leaving `hooks()` removes the hooks that it added and no others, also when the forward pass raises: hooks kept by
  ``reset_hooks_end=False`` stay until `reset_hooks()`;
- ``pos_slice`` cuts the position axis of every hook point, whatever its shape.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.hook_points import HookPoint, LensHandle
from transformer_lens.utilities.slice import Slice, SliceInput

NamesFilter = str | Sequence[str] | Callable[[str], bool] | None
HookSpec = tuple[str | Callable[[str], bool], Callable[..., Any]]


class HookedRoot(HookedRootModule):
    """Root module with TransformerLens's hook interface."""

    use_attn_result: bool = False

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        """Whether a cache of everything includes ``hook_result`` (as wide as all heads' residual streams together)."""
        self.use_attn_result = use_attn_result

    def hook_names(self, names: NamesFilter) -> list[str]:
        """Return the hook names that a filter selects, in the order of the forward pass's modules.

        Raises
        ------
        KeyError
            If a name does not exist (suggests near ones) or a predicate selects nothing.
        """
        if names is None:
            return [n for n in self.hook_dict if self.use_attn_result or not n.endswith(".hook_result")]
        if callable(names):
            chosen = [name for name in self.hook_dict if names(name)]
            if not chosen:
                raise KeyError("names_filter matches no hook point; list them with model.hook_dict")
            return chosen
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            if name not in self.hook_dict:
                near = difflib.get_close_matches(name, self.hook_dict, n=3)
                hint = f"; did you mean {' or '.join(near)}?" if near else "; list them with model.hook_dict"
                raise KeyError(f"no hook point {name!r}{hint}")
        if not wanted:
            raise KeyError("names_filter is empty: it matches no hook point")
        return wanted

    def add_hook(
        self,
        name: str | Callable[[str], bool],
        hook: Callable[..., Any],
        dir: Literal["fwd", "bwd"] = "fwd",
        is_permanent: bool = False,
        level: int | None = None,
        prepend: bool = False,
    ) -> None:
        """Add a hook at every point that `name` selects; it stays until `reset_hooks`."""
        for point in self.hook_names(name):
            self.hook_dict[point].add_hook(hook, dir=dir, is_permanent=is_permanent, level=level, prepend=prepend)

    @contextmanager
    def hooks(
        self,
        fwd_hooks: Sequence[HookSpec] = (),
        bwd_hooks: Sequence[HookSpec] = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> Iterator[HookedRoot]:
        """Add hooks for the length of a ``with`` block; on leaving it, remove these and no others.

        Parameters
        ----------
        fwd_hooks, bwd_hooks
            Pairs of (hook name or predicate on names, function ``f(tensor, hook)``).
        reset_hooks_end
            False: the hooks stay until `reset_hooks`.
        clear_contexts
            Empty every hook point's ``ctx`` on leaving.

        Raises
        ------
        KeyError
            If a name does not exist or a predicate selects nothing; no hook is added then.
        """
        plan = [*self._resolve(fwd_hooks, "fwd"), *self._resolve(bwd_hooks, "bwd")]
        added: list[tuple[HookPoint, LensHandle]] = []
        self.context_level += 1
        try:
            for point, hook, direction in plan:
                added.append((point, point.add_hook(hook, dir=direction, level=self.context_level)))
            yield self
        finally:
            self.context_level -= 1
            if reset_hooks_end:
                for point, handle in added:
                    remove_hook(point, handle)
            if clear_contexts:
                self.clear_contexts()

    def _resolve(
        self, specs: Sequence[HookSpec], direction: Literal["fwd", "bwd"]
    ) -> list[tuple[HookPoint, Callable[..., Any], Literal["fwd", "bwd"]]]:
        return [(self.hook_dict[point], hook, direction) for name, hook in specs for point in self.hook_names(name)]

    def get_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: torch.device | str | None = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
        pos_slice: Slice | SliceInput | None = None,
    ) -> tuple[dict[str, Tensor], list[HookSpec], list[HookSpec]]:
        """Return an empty cache and the forward and backward hooks that fill it.

        Parameters
        ----------
        names_filter
            A name, a list of names, or a predicate; None: everything (``hook_result`` only after
            `set_use_attn_result`).
        incl_bwd
            Also store gradients, under ``name + "_grad"``.
        device
            Where to store; None: where the activation is.
        remove_batch_dim
            Drop the batch axis (the batch must be 1).
        cache
            Dictionary to fill.
        pos_slice
            Positions to keep, along each hook point's own position axis.

        Raises
        ------
        KeyError
            If the filter matches nothing.
        """
        store: dict[str, Tensor] = {} if cache is None else cache
        cut = Slice.unwrap(pos_slice)

        def save(tensor: Tensor, hook: HookPoint, suffix: str = "") -> None:
            kept = cut.apply(tensor.detach(), dim=1 if hook.pos_dim is None else hook.pos_dim)
            if remove_batch_dim:
                if kept.shape[0] != 1:
                    raise ValueError(f"remove_batch_dim needs a batch of 1 but {hook.name} has {kept.shape[0]}")
                kept = kept[0]
            # A copy: a later hook that writes into its tensor must not reach what was captured before it.
            store[f"{hook.name}{suffix}"] = kept.to(device, copy=True)

        names = self.hook_names(names_filter)
        fwd: list[HookSpec] = [(name, save) for name in names]
        bwd: list[HookSpec] = [(name, partial(save, suffix="_grad")) for name in names] if incl_bwd else []
        return store, fwd, bwd

    def add_caching_hooks(
        self,
        names_filter: NamesFilter = None,
        incl_bwd: bool = False,
        device: torch.device | str | None = None,
        remove_batch_dim: bool = False,
        cache: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Add hooks that fill the returned dictionary on every run, until `reset_hooks`."""
        store, fwd, bwd = self.get_caching_hooks(names_filter, incl_bwd, device, remove_batch_dim, cache)
        for name, hook in fwd:
            self.add_hook(name, hook)
        for name, hook in bwd:
            self.add_hook(name, hook, dir="bwd")
        self.is_caching = True
        return store

    def run_with_cache(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        *model_args: Any,
        names_filter: NamesFilter = None,
        device: torch.device | str | None = None,
        remove_batch_dim: bool = False,
        incl_bwd: bool = False,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        pos_slice: Slice | SliceInput | None = None,
        return_cache_object: bool = True,
        **model_kwargs: Any,
    ) -> tuple[Any, ActivationCache | dict[str, Tensor]]:
        """Run the model and return its output and what the chosen hook points saw.

        Parameters
        ----------
        names_filter, device, remove_batch_dim, incl_bwd, pos_slice
            As in `get_caching_hooks`. With `incl_bwd` the output must be a scalar (``return_type="loss"``), and the
            gradients are left on the parameters too.
        return_cache_object
            False: a plain dictionary.

        Raises
        ------
        KeyError
            If `names_filter` matches nothing.
        ValueError
            If `remove_batch_dim` is asked of a batch larger than 1.
        """
        store, fwd, bwd = self.get_caching_hooks(
            names_filter, incl_bwd, device, remove_batch_dim=remove_batch_dim, pos_slice=pos_slice
        )
        with self.hooks(fwd, bwd, reset_hooks_end, clear_contexts):
            output = self(*model_args, **model_kwargs)
            if incl_bwd:
                output.backward()
        if not return_cache_object:
            return output, store
        return output, ActivationCache(store, self, has_batch_dim=not remove_batch_dim)  # pyright: ignore[reportArgumentType]


def remove_hook(point: HookPoint, handle: LensHandle) -> None:
    """Remove one hook, whether or not something else removed it meanwhile."""
    handle.hook.remove()
    point.fwd_hooks = [kept for kept in point.fwd_hooks if kept is not handle]
    point.bwd_hooks = [kept for kept in point.bwd_hooks if kept is not handle]
