"""The effective-rank report: every layer's head diversity, measured beside its bounds and its null."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..checkpoints.opening import Source, opened_source
from ..models.layers import parse_layers
from ..results import source_of
from ..unfinished import Unfinished
from .offsets import Offsets
from .result import COLUMNS, Report
from .settings import Circuit, Progress, Reportable, Settings, Steps, kinds_of_layers
from .spectra import Definition


def report(
    source: Source | Reportable,
    *,
    circuit: Circuit = "both",
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    layers: str | Sequence[int] | None = None,
    definition: Definition = "gram",
    null: int = 20,
    fold_norm: bool = True,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure how different the heads of each layer are.

    Parameters
    ----------
    source
        A path or the name of a model that ships, an opened `Checkpoint`, a `HookedModel`, or a result: then what it was
        measured on.
    circuit
        ``"qk"`` (where heads look), ``"ov"`` (what they bring) or ``"both"``.
    offsets
        Distance between query and key under rotary positions: one (``3``), a range with both ends included
        (``"0:255"``, ``(0, 255)``), or None / ``"none"`` to leave positions out.
    layers
        Layers to measure: ``"0:4"`` (both ends included), ``"0,5,9"`` or a sequence; None: all.
    definition
        ``"gram"`` (the paper's effective rank) or ``"roy"`` (Roy & Vetterli's).
    null
        Random initialisations to draw for the null; 0 draws none.
    fold_norm
        Fold the gain of the norms into the forms.
    out
        Directory to save to. Finished layers are kept there as they come, so that the same call after a kill goes on.
    progress
        Called with (steps done, steps in all, what was done).

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be read.
    HeadscopeError
        If `out` holds another unfinished report; names the difference.
    ValueError, IndexError
        If an option cannot be, a layer does not exist, or a weight is NaN or Inf (names layer, head and matrix).

    Examples
    --------
    >>> import headscope as hs
    >>> cfg = hs.ModelConfig(d_model=32, n_layers=2, d_vocab=50, n_ctx=16,
    ...                      attention=hs.GroupedConfig(n_heads=4, d_head=8))
    >>> result = hs.report(hs.HookedModel(cfg), circuit="qk", null=3)
    >>> list(result.table["layer"])
    [0, 1]
    """
    settings = Settings.parse(circuit, offsets, definition, null, fold_norm)
    given = source_of(source)
    opened: Reportable = given if isinstance(given, Reportable) else opened_source(given)
    chosen = parse_layers(layers, opened.config.n_layers)
    steps = Steps(len(chosen) + null * len(kinds_of_layers(opened.config, chosen)) + 1, progress)
    target = None if out is None else Path(out).expanduser()
    what = {"kind": "effective-rank report", "checkpoint": opened.describe(), "layers": chosen}
    steps.done("hash")

    kept = Unfinished(
        target,
        "report",
        {
            **what,
            **settings.plan(opened.config),
            "null": null,
        },
    )
    drawn = settings.draw(opened.config, chosen, steps.done, kept)
    rows: list[dict[str, Any]] = []
    matrices: dict[tuple[str, str, int], np.ndarray] = {}
    notes: dict[str, None] = {}
    if settings.offsets not in (None, Offsets(0)) and opened.config.rotary is None:
        notes["positions are not rotary, so the offsets make no difference"] = None
    for layer in chosen:
        read = partial(opened.factors, layer, fold_norm=fold_norm)
        similarities, said = settings.layer(f"layer-{layer:04d}", read, kept)
        notes |= dict.fromkeys(said)
        for (name, part), similarity in similarities.items():
            matrices[name, part, layer] = similarity
            row = settings.row(similarity, drawn.of(layer, (name, part)))
            keys_of = opened.config.keys_of(layer)
            rows.append({"layer": layer, "keys_of": keys_of, "circuit": name, "part": part, **row})
        steps.done(f"layer {layer}")

    record = {**what, **settings.describe(opened.config, drawn), "notes": list(notes)}
    result = Report(
        table=pd.DataFrame(rows, columns=list(COLUMNS)),
        similarity=matrices,
        record=record,
        source=given,
    )
    if target is not None:
        result.save(target)
        kept.discard()
    return result
