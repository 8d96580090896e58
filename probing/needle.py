"""A needle at different depths: a key's value is asked for again, and heads are watched for who finds it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from ..checkpoints.opening import Source, model_of
from ..interventions.statistics import effects
from ..interventions.tasks import Sample, retrieval
from ..kernels import Probes
from ..models.generation import Sampling, stream
from ..models.hooked import HookedModel
from ..plots import effect_map
from ..plots.panels import OnAxes, figure_of
from ..plots.terminal import needle_table
from ..results import Picture, Result, source_of, versions
from ..training.corpus import documents

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Progress = Callable[[int, int, str], None]
SHOWN = 8
"""Heads that a terminal shows."""
DISTRACTORS = 4
"""Other pairs beside the needle."""
Q = 0.05
MEANING = {
    "distance": "tokens between the needle and the repeated key",
    "layer": "which layer",
    "head": "which head",
    "mass": "attention to the needle when the answer is chosen, mean over samples",
    "even": "what attention to all positions alike would give it",
    "effect": "mass minus even",
    "low": "lower end of the effect's 95 % interval",
    "high": "upper end of the effect's 95 % interval",
    "n": "samples",
    "p": "chance of an effect as large from even attention (sign-flip test)",
    "q": "p after Benjamini and Hochberg's correction over the heads of a distance",
    "status": "ok, or what is to be known about the test",
    "significant": f"q below {Q:g}, and more than even attention: the head finds the needle",
    "samples": "needles at this distance",
    "right": "how often the answer is better than the other values",
    "chance": "how often it would be by chance",
}
"""Column -> what it holds."""
_CAPTION = (
    "Layers down, heads across. Colour is the attention to the needle above what even attention to all positions would "
    f"give it; a dot marks heads whose attention is above that beyond chance (q < {Q:g})."
)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Needle(Result):
    """Who looks at the needle, by how far back it lies.

    Parameters
    ----------
    table
        One row per distance, layer and head, when the answer is chosen: ``mass``, mean attention to the needle over
        samples; ``even``, what attention to all positions alike would give it; ``effect``, the difference, with a 95 %
        BCa interval (``low``, ``high``), ``p`` of a sign-flip test and ``q`` after Benjamini and Hochberg's correction
        over the heads of a distance.
    answers
        One row per distance: samples, how many of them the model answers right, how many by chance.
    record
        What was run.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.needle("lrkv", distances=(8,), samples=4)
    >>> len(found.table), found.answers["distance"].tolist()
    (32, [8])
    """

    answers: pd.DataFrame

    stem: ClassVar[str] = "needle"

    def title(self) -> str:
        """Return whose needles these are."""
        return f"Needles in {self.record['checkpoint']['path'] or 'a model in memory'}"

    def summary(self) -> str:
        """Return how often the answer was right, a line a distance."""
        return "\n".join(
            f"{row['distance']} tokens back: {row['right']} of {row['samples']} answered right "
            f"(better than the other values; by chance {row['chance']:.1f})."
            for row in self.answers.to_dict("records")
        )

    def reading(self) -> str:
        """Return which heads find the needle at every distance."""
        finds = self.table.assign(finds=self.table["significant"])
        by_head: dict[tuple[int, int], list[dict[Any, Any]]] = {}
        for row in finds.to_dict("records"):
            by_head.setdefault((row["layer"], row["head"]), []).append(row)
        always = {
            head: float(np.mean([row["mass"] for row in rows]))
            for head, rows in by_head.items()
            if all(row["finds"] for row in rows)
        }
        ranked = sorted(always.items(), key=lambda item: -item[1])
        names = [f"L{layer}H{head} ({100 * mass:.0f} %)" for (layer, head), mass in ranked]
        if not names:
            return f"No head gives the needle more than even attention would at every distance (q < {Q:g})."
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        return f"Heads that give the needle more than even attention would, at every distance (q < {Q:g}): {shown}."

    def measured(self) -> list[str]:
        """Return how many needles there were among what."""
        record = self.record
        lines = [f"{record['samples']} sequences, each with {record['distractors']} other pairs beside the needle."]
        return lines + ([record["note"]] if record["note"] else [])

    def meaning(self) -> dict[str, str]:
        """Return what the columns hold."""
        return MEANING

    def main_rows(self) -> tuple[pd.DataFrame, str]:
        """Return the heads that look at the needle most."""
        return self.table.sort_values("effect", ascending=False, kind="stable"), "most attention above even first"

    def terminal(self) -> tuple[list[Table], list[str]]:
        """Return the heads that look at it most, and what they show."""
        return [needle_table(self.table, SHOWN)], [*self.summary().splitlines(), self.reading()]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the table and the answers."""
        return {self.stem: self.table, "answers": self.answers}

    def pictures(self) -> dict[str, Picture]:
        """Return a map of layers and heads a distance."""
        return {
            f"needle-{distance}.png": Picture(lambda distance=distance: self.plot(distance), _CAPTION)
            for distance in sorted(set(self.table["distance"]))
        }

    def plot(self, distance: int, *, ax: OnAxes = None) -> Figure:
        """Draw who looks at a needle so many tokens back."""
        rows = pd.DataFrame(self.table[self.table["distance"] == distance])
        title = f"{self.title()}, {distance} tokens back"
        return figure_of(effect_map(rows, title=title, unit="share", name="attention above even", ax=ax))


def needle(
    source: Source,
    *,
    distances: Sequence[int] = (8, 32, 96),
    samples: int = 64,
    text: str | os.PathLike[str] | None = None,
    seed: int = 0,
    origin: dict[str, Any] | None = None,
    progress: Progress | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Needle:
    """Hide a pair of key and value at different depths, ask for the value, and measure who looks at it.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, or a result: then what it was
        measured on.
    distances
        Tokens between the pair and the repeated key.
    samples
        Sequences, spread over distances.
    text
        Where tokens are drawn from: a file or folder; None: Python's standard library.
    seed
        Of the sequences.
    origin
        Where a model in memory comes from, for the record.
    progress
        Called with (samples done, samples in all, which distance).
    out
        Directory to save to.

    Raises
    ------
    ValueError
        If no distance fits the model's context, or there are fewer than 2 samples a distance.

    Examples
    --------
    >>> import headscope as hs
    >>> found = hs.needle("lrkv", distances=(8, 32), samples=4)
    >>> found.table["distance"].unique().tolist()
    [8, 32]
    >>> list(found.answers["samples"])
    [2, 2]
    """
    model, origin = model_of(source, origin)
    if samples < 2 * len(distances):
        raise ValueError(f"samples should be at least 2 a distance, {2 * len(distances)}, but got {samples}")
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError("needles are drawn from text: the model needs a tokenizer")
    encoded = tokenizer.backend_tokenizer.encode_batch(documents(text), add_special_tokens=False)
    row = torch.tensor([token for found in encoded for token in found.ids])
    task = retrieval(row, model.config.n_ctx, samples, seed, tuple(distances), (DISTRACTORS,))
    masses: dict[int, list[np.ndarray]] = {}
    right: dict[int, list[bool]] = {}
    lengths: dict[int, list[int]] = {}
    for done, sample in enumerate(task.samples):
        distance = int(sample.factors["distance"])
        mass, answered = _one(model, sample)
        masses.setdefault(distance, []).append(mass)
        right.setdefault(distance, []).append(answered)
        lengths.setdefault(distance, []).append(len(sample.right.tokens))
        if progress is not None:
            progress(done + 1, len(task.samples), f"{distance} tokens back")
    answers = [
        {"distance": d, "samples": len(right[d]), "right": sum(right[d]), "chance": len(right[d]) / (DISTRACTORS + 1)}
        for d in sorted(right)
    ]
    parts = [_rows(d, np.stack(masses[d]), 2 / np.array(lengths[d]), seed) for d in sorted(masses)]
    result = Needle(
        table=pd.concat(parts, ignore_index=True),
        answers=pd.DataFrame(answers),
        record={
            "kind": "needles",
            "checkpoint": origin,
            "config": model.config.to_dict(),
            "distances": sorted(masses),
            "samples": len(task.samples),
            "distractors": DISTRACTORS,
            "seed": seed,
            "versions": versions("torch", "numpy", "scipy"),
            "note": task.note,
        },
        source=source_of(source),
    )
    if out is not None:
        result.save(out)
    return result


def _pair(sample: Sample) -> tuple[int, list[int]]:
    """Return where the asked pair begins, and the values of all pairs."""
    tokens, pairs = sample.right.tokens, 2 * (DISTRACTORS + 1)
    return 2 * tokens[:pairs:2].index(tokens[-1]), list(tokens[1:pairs:2])


def _one(model: HookedModel, sample: Sample) -> tuple[np.ndarray, bool]:
    """Return the heads' attention to the pair when the answer is chosen, ``[layer, head]``, and whether it is right."""
    start, values = _pair(sample)
    tokens = torch.tensor([sample.right.tokens], device=model.device)
    probes = Probes(top=0, spans=torch.tensor([[[start, start + 2]]]))
    step = next(iter(stream(model, tokens, torch.ones_like(tokens).bool(), 1, Sampling(), probes=probes)))
    looked = [made.decoded.probes for made in step.looked.values()]
    mass = torch.stack([values.span_mass[0, :, 0] for values in looked if values is not None])
    with torch.no_grad():
        logits = model(tokens)[0, -1]
    best = max(values, key=lambda value: float(logits[value]))
    return mass.double().cpu().numpy(), best == sample.right.answers[0]


def _rows(distance: int, masses: Float[np.ndarray, "sample layer head"], even: np.ndarray, seed: int) -> pd.DataFrame:
    """Return a row a layer and head: attention to the needle, and how far that is above even attention."""
    flat = masses.reshape(len(masses), -1)
    found = effects(flat - even[:, None], seed=seed, bounds=(-1.0, 1.0))
    layer, head = np.divmod(np.arange(flat.shape[1]), masses.shape[2])
    found.insert(0, "mass", flat.mean(0))
    found.insert(1, "even", even.mean())
    return found.assign(significant=(found["q"] < Q) & (found["effect"] > 0)).pipe(
        lambda table: pd.concat([pd.DataFrame({"distance": distance, "layer": layer, "head": head}), table], axis=1)
    )
