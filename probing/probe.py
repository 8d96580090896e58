"""The verb: generate, and look at every step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..checkpoints.opening import Source, model_of
from ..kernels import ProbeValues
from ..kernels.decode import Asked
from ..models.generation import NewTokens
from ..models.hooked import HookedModel
from ..results import source_of
from .recording import Listener, Looked, Seen, as_tokens, assemble, output_norms
from .result import Probe
from .spans import Span, parse_spans, probes_for

WITHOUT_PRIVATE = {
    "mha": "MHA keeps every head's keys and values whole: nothing is shared, so there is no private share to show.",
    "gqa": "GQA keeps each group's keys and values whole: there is no private share to show.",
    "mqa": "MQA has one key and one value for all heads: nothing is private.",
    "mla": "MLA keeps one latent for all heads: scores part into content and position, outputs do not part.",
}


def probe(
    source: Source,
    prompt: str | Sequence[int],
    *,
    spans: Sequence[str | Span] = (),
    max_new_tokens: int = 20,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    top: int = 4,
    path: Asked = "auto",
    origin: dict[str, Any] | None = None,
    on_text: Listener | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Probe:
    r"""Generate from a prompt, and record for every new token what each head looked at when it was chosen.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel` (edits and hooks on it stay in
        force), or a result: then what it was measured on.
    prompt
        Text, or tokens.
    spans
        Stretches of the prompt whose attention is wanted: `Span`, or ``"name=start:end"`` in tokens, or
        ``"name=text"``.
    max_new_tokens, temperature, top_k, top_p, seed
        As for `HookedModel.generate`.
    top
        How many of the strongest positions to keep a head and step.
    path
        Which implementation decodes.
    origin
        Where a model in memory comes from (`Checkpoint.describe`), for the record.
    on_text
        Called with each new piece of text as it comes.
    out
        Directory to save to.

    Raises
    ------
    ValueError
        If an option cannot be, a span is not in the prompt, or the prompt is empty.
    CheckpointError
        If the checkpoint cannot be loaded.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.probe("lrkv", "def add(a, b):\n    return", max_new_tokens=2, spans=["names=(a, b)"])
    >>> len(found.table) == 2 * 4 * 8  # steps, layers, heads
    True
    """
    model, origin = model_of(source, origin)
    tokens = model.tokenize(prompt)[0][0].tolist() if isinstance(prompt, str) else as_tokens(prompt)
    if not tokens:
        raise ValueError("the prompt is empty: there is nothing to go on from")
    _check_decodable(model, len(tokens) + max_new_tokens)
    text = prompt if isinstance(prompt, str) else None
    chosen = parse_spans(spans, text, tokens, model.tokenizer)
    asked = probes_for(chosen, top)
    steps = model.stream(
        torch.tensor([tokens], device=model.device),
        max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        probes=asked,
        path=path,
    )
    record = {
        "kind": "probe of a generation",
        "checkpoint": origin,
        "config": model.config.to_dict(),
        "n_ctx": model.config.n_ctx,
        "prompt": text,
        "sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
        "without_private": WITHOUT_PRIVATE.get(model.config.attention.variant, "Outputs have no private part here."),
    }
    result = assemble(_seen(model, steps), tokens, chosen, model.tokenizer, record, on_text, source_of(source))
    if out is not None:
        result.save(out)
    return result


def _check_decodable(model: HookedModel, length: int) -> None:
    """Refuse a model none of whose layers would decode in one step: there would be nothing to see."""
    found = (model.attention(layer).config.between(length) for layer in range(model.config.n_layers))
    reasons = [reason for reason in found if reason is not None]
    if len(reasons) == model.config.n_layers:
        raise ValueError(
            f"no layer can be probed: all have {' or '.join(dict.fromkeys(reasons))}, and write keys and values out; "
            "look at hook_pattern instead"
        )


def _seen(model: HookedModel, steps: Iterator[NewTokens]) -> Iterator[Seen]:
    for step in steps:
        layers = {
            layer: Looked(
                _needed(made.decoded.probes),
                made.score_parts,
                output_norms(made.summands, model.attention(layer).W_O),
                made.output_parts,
            )
            for layer, made in step.looked.items()
        }
        if not layers:
            raise ValueError(
                "no layer was decoded while looking: hooks on hook_pattern or hook_attn_scores want patterns written "
                "out; look at them there"
            )
        yield Seen(int(step.tokens[0]), layers, next(iter(step.looked.values())).decoded.path)


def _needed(values: ProbeValues | None) -> ProbeValues:
    if values is None:
        raise ValueError("a decode step came back without probes")
    return values
