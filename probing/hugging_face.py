"""The same probes in transformers' own models, through its attention interface.

`register` makes ``attn_implementation="headscope"`` known to transformers: single queries are decoded by headscope, and
whole prompts by transformers' ``sdpa``. Inside `watching` each pass's last query is looked at, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..kernels import Decoded, KeyPart, Pages, Probes, Problem, ValuePart, decode
from ..models.generation import Sampling
from ..results import Result, source_of
from .recording import Listener, Looked, Seen, as_tokens, assemble
from .result import Probe
from .spans import Span, parse_spans, probes_for

NAME = "headscope"
WITHOUT_PRIVATE = (
    "transformers hands over whole keys and values: what is shared and what is private cannot be told apart there. "
    "Convert or load the model into headscope's own wrapper for that."
)


@dataclass
class _Watch:
    """What is looked at while a ``with watching`` block is open: by layer, the last pass's query.

    `length` is how many tokens that query ends, where it is known: a layer with a window keeps and sees fewer keys.
    """

    probes: Probes
    layers: dict[int, Decoded] = field(default_factory=dict)
    length: int | None = None

    def before(self, keys: int) -> int:
        """Return how many tokens stand before the `keys` that a query sees."""
        return 0 if self.length is None else self.length - keys


_open: list[_Watch] = []


def register() -> None:
    """Make ``attn_implementation="headscope"`` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def watching(model: Any, probes: Probes) -> Iterator[_Watch]:
    """Let a transformers model attend by headscope for the length of a ``with`` block.

    Parameters
    ----------
    model
        Any of transformers' models whose attention goes through its attention interface.
    probes
        What to look at.

    Yields
    ------
    object
        Its ``layers``: what the last query of the last forward pass looked at. Positions count from the first key that
        a layer sees, or, where ``length`` is set to the number of tokens before each pass, from the first token.

    Raises
    ------
    ValueError
        If the model does not take attention from the interface.
    """
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        raise ValueError(
            f"{type(model).__name__} takes no attention from transformers' interface: it cannot be watched"
        )
    watch = _Watch(probes)
    _open.append(watch)
    try:
        yield watch
    finally:
        _open.remove(watch)
        model.set_attn_implementation(before)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' interface wants it: ``[batch, head, pos, width]`` in, ``[batch, pos, head, width]`` out.

    Raises
    ------
    ValueError
        If scores are capped or biased by position, which a decode step does not do.
    """
    for name in ("softcap", "position_bias"):
        if options.get(name) is not None:
            raise ValueError(f"{type(module).__name__} wants {name}, which headscope's decode step does not have")
    watch = _open[-1] if _open else None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.shape[2] == 1 or watch is not None:
        mask = None if attention_mask is None else attention_mask[:, :, -1]
        found = _decode(query[:, :, -1], key, value, mask, scale, watch)
        if watch is not None:
            watch.layers[int(module.layer_idx)] = found  # pyright: ignore[reportArgumentType]
        if query.shape[2] == 1:
            return found.values[0].to(query.dtype)[:, None], None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )  # pyright: ignore[reportReturnType]


def _decode(q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, watch: _Watch | None) -> Decoded:
    """Decode with each request's keys as one page; what a mask hides may only stand before or behind the rest."""
    batch, first, last = len(q), 0, key.shape[2]
    if mask is not None:
        seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
        if mask.dtype != torch.bool and bool((mask[:, 0][~seen] > torch.finfo(mask.dtype).min / 2).any()):
            raise ValueError("the mask adds biases to scores, which headscope's decode step does not have")
        places = seen[0].nonzero()[:, 0]
        first, last = int(places[0]), int(places[-1]) + 1
        run = torch.zeros_like(seen)
        run[:, first:last] = True
        if not torch.equal(seen, run):
            raise ValueError("prompts of different lengths in one batch cannot be attended to: give them one by one")
    rows = (key[:, :, first:last].transpose(0, 1), value[:, :, first:last].transpose(0, 1))
    pages = Pages(torch.arange(batch, device=q.device)[:, None], torch.full((batch,), last - first, device=q.device))
    problem = Problem((KeyPart("all", q, rows[0]),), (ValuePart("all", rows[1]),), pages, scale)
    if watch is None:
        return decode(problem)
    before, asked = watch.before(last - first), watch.probes
    spans = None if asked.spans is None else (asked.spans - before).clamp_min(0)
    found = decode(problem, replace(asked, spans=spans))
    if found.probes is None:
        return found
    places = found.probes.top_positions
    return replace(found, probes=replace(found.probes, top_positions=places.where(places < 0, places + before)))


def probe_transformers(
    source: str | os.PathLike[str] | Result | Any,
    prompt: str | Sequence[int],
    *,
    spans: Sequence[str | Span] = (),
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    top: int = 4,
    tokenizer: Any | None = None,
    on_text: Listener | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Probe:
    """Generate with a model of transformers', and record what each head looked at when each token was chosen.

    Tokens are those that the model chooses with ``sdpa``. Keys and values come whole, so there are no private parts.

    Parameters
    ----------
    source
        Directory of a Hugging Face checkpoint (nothing is fetched), or a causal language model of transformers'.
    prompt, spans, max_new_tokens, temperature, top_k, top_p, seed, top, on_text, out
        As for `probe`.
    tokenizer
        For a model in memory; a directory brings its own.

    Raises
    ------
    ValueError
        If an option cannot be, or the model cannot be watched.
    CheckpointError
        If the directory cannot be loaded by transformers.
    """
    source = source_of(source)
    model, known, origin = _opened(source, tokenizer)
    if isinstance(prompt, str) and known is None:
        raise ValueError("the prompt is text, and the model has no tokenizer: give tokens, or a tokenizer")
    tokens = known(prompt)["input_ids"] if isinstance(prompt, str) else as_tokens(prompt)
    if not tokens:
        raise ValueError("the prompt is empty: there is nothing to go on from")
    text = prompt if isinstance(prompt, str) else None
    chosen = parse_spans(spans, text, tokens, known)
    asked = probes_for(chosen, top)
    sampling = Sampling(temperature, top_k, top_p, seed)
    record = {
        "kind": "probe of a generation, by transformers",
        "checkpoint": origin,
        "config": model.config.to_diff_dict(),
        "prompt": text,
        "sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
        "without_private": WITHOUT_PRIVATE,
    }
    steps = _steps(model, tokens, max_new_tokens, sampling, asked, None if known is None else known.eos_token_id)
    result = assemble(steps, tokens, chosen, known, record, on_text, source)
    if out is not None:
        result.save(out)
    return result


def _opened(source: Any, tokenizer: Any) -> tuple[Any, Any, dict[str, Any]]:
    if not isinstance(source, str | os.PathLike):
        return source.eval(), tokenizer, {"path": None, "family": source.config.model_type}
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not os.path.isdir(source):
        raise CheckpointError(f"{source} is no directory: transformers' own models are opened from one")
    try:
        model = AutoModelForCausalLM.from_pretrained(source, local_files_only=True).eval()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source}: transformers cannot open it: {error}") from error
    if tokenizer is None and os.path.exists(os.path.join(source, "tokenizer_config.json")):
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    return model, tokenizer, {"path": str(source), "family": model.config.model_type}


@torch.no_grad()
def _steps(
    model: Any, prompt: Sequence[int], count: int, sampling: Sampling, probes: Probes, eos: int | None
) -> Iterator[Seen]:
    chooser = sampling.chooser(1)
    new, past = torch.tensor([list(prompt)], device=model.device), None
    with watching(model, probes) as watch:
        for done in range(count):
            watch.length = len(prompt) + done
            found = model(input_ids=new, past_key_values=past, use_cache=True)
            past, new = found.past_key_values, chooser.choose(found.logits[:, -1])[:, None]
            looked = {
                layer: Looked(seen.probes, ("all",))
                for layer, seen in sorted(watch.layers.items())
                if seen.probes is not None
            }
            yield Seen(int(new), looked, next(iter(watch.layers.values())).path)
            if int(new) == eos:
                return
