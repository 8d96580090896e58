"""From a generation's steps to tables: one row per step, layer and head, and one per strongest position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels import ProbeValues
from ..results import versions
from .result import Probe
from .spans import Span

Listener = Callable[[str], None]
"""Called with each new piece of text."""


@dataclass(frozen=True, eq=False)
class Looked:
    """What the query of one step looked at in one layer.

    Parameters
    ----------
    values
        The probes, of a batch of one.
    score_parts
        Names of the summands of the score.
    output_norms
        Length of each summand of the heads' outputs, in the residual stream; none where outputs have no parts.
    output_parts
        Their names.
    """

    values: ProbeValues
    score_parts: tuple[str, ...]
    output_norms: Float[Tensor, "head part"] | None = None
    output_parts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Seen:
    """One step of a generation.

    Parameters
    ----------
    token
        The token it chose.
    layers
        What each layer's heads looked at.
    path
        Which implementation looked.
    """

    token: int
    layers: Mapping[int, Looked]
    path: str


def assemble(
    steps: Iterable[Seen],
    prompt: Sequence[int],
    spans: Sequence[Span],
    tokenizer: Any,
    record: dict[str, Any],
    on_text: Listener | None = None,
    source: Any = None,
) -> Probe:
    """Go through a generation's steps and return what was seen, with the new text told as it comes."""
    tokens, heads, strongest, path = list(prompt), [], [], ""
    told = ""
    for index, step in enumerate(steps):
        heads += head_rows(index, len(tokens) - 1, step.layers, spans)
        strongest += strongest_rows(index, step.layers, tokens)
        tokens.append(step.token)
        path = step.path
        new = _decode(tokenizer, tokens[len(prompt) :])
        if on_text is not None and not new.endswith("\ufffd"):  # the first bytes of a character that is not whole yet
            on_text(new[len(told) :])
            told = new
    texts = [_decode(tokenizer, [token]) for token in tokens]
    table = pd.DataFrame({"position": range(len(tokens)), "token": tokens, "text": texts})
    places = pd.DataFrame([{**row, "text": texts[row["key_pos"]]} for row in strongest])
    return Probe(
        table=pd.DataFrame(heads),
        strongest=places,
        tokens=table.assign(new=table["position"] >= len(prompt)),
        record={
            **record,
            "path": path,
            "prompt_tokens": len(prompt),
            "new_tokens": len(tokens) - len(prompt),
            "generated": _decode(tokenizer, tokens[len(prompt) :]),
            "spans": [asdict(span) for span in spans],
            "versions": versions("torch", "transformers"),
        },
        source=source,
    )


def as_tokens(prompt: Any) -> list[int]:
    """Return a prompt's tokens; ValueError if it is neither a row of numbers nor a tensor of one."""
    row = prompt.flatten().tolist() if isinstance(prompt, Tensor) and prompt.numel() == prompt.shape[-1] else prompt
    if isinstance(row, Tensor) or not all(isinstance(token, int) and not isinstance(token, bool) for token in row):
        raise ValueError("the prompt should be one text, or the tokens of one as numbers")
    return list(row)


def _decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens)) if tokenizer is None else tokenizer.decode(list(tokens))


def head_rows(step: int, position: int, layers: Mapping[int, Looked], spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Return a step's rows, one per layer and head."""
    found = []
    for layer, looked in layers.items():
        values = looked.values
        lift = (values.score - values.score_everywhere)[0]
        columns: dict[str, Tensor] = {"entropy": values.entropy[0], "distance": values.distance[0]}
        columns |= {f"lift_{name}": lift[:, i] for i, name in enumerate(looked.score_parts)}
        if looked.output_norms is not None:
            norms = looked.output_norms
            columns |= {f"output_{name}": norms[:, i] for i, name in enumerate(looked.output_parts)}
            if looked.output_parts == ("shared", "private"):
                columns["private_share"] = norms[:, 1] / norms.sum(1)
        columns |= {f"mass_{span.name}": values.span_mass[0, :, i] for i, span in enumerate(spans)}
        if values.top_weights.shape[-1]:
            columns |= {"top_position": values.top_positions[0, :, 0], "top_weight": values.top_weights[0, :, 0]}
        plain = {name: column.tolist() for name, column in columns.items()}
        found += [
            {"step": step, "query_pos": position, "layer": layer, "head": head}
            | {name: column[head] for name, column in plain.items()}
            for head in range(values.entropy.shape[1])
        ]
    return found


def strongest_rows(step: int, layers: Mapping[int, Looked], tokens: Sequence[int]) -> list[dict[str, Any]]:
    """Return a step's strongest positions, one row per layer, head and place."""
    found = []
    for layer, looked in layers.items():
        places, weights = looked.values.top_positions[0].tolist(), looked.values.top_weights[0].tolist()
        for head, (row, mass) in enumerate(zip(places, weights, strict=True)):
            found += [
                {"step": step, "layer": layer, "head": head, "place": place}
                | {"key_pos": key, "token": tokens[key], "weight": weight}
                for place, (key, weight) in enumerate(zip(row, mass, strict=True))
                if key >= 0
            ]
    return found


def output_norms(summands: Float[Tensor, "1 head part d_value"], out: Float[Tensor, "head d_value d_model"]) -> Tensor:
    """Return the length of what each part of each head's output adds to the residual stream, ``[head, part]``."""
    return torch.einsum("hpd,hdm->hpm", summands[0], out.to(summands.dtype)).norm(dim=-1)
