"""The effective-rank report: every layer's head diversity, measured beside its bounds and its null."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import pandas as pd

from ..checkpoints import open_checkpoint
from ..models.config import ModelConfig
from ..models.factors import Factors
from .forms import Offsets, gram
from .null import random_factors
from .result import COLUMNS, Report, plain
from .spectra import Definition, Measures, cosine, measure

Circuit = Literal["qk", "ov", "both"]
Key = tuple[str, str]


@runtime_checkable
class Reportable(Protocol):
    """Anything that can be reported on: a checkpoint on disk or a model in memory."""

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        ...

    def factors(self, layer: int, *, fold_norm: bool = True) -> Factors:
        """Return one layer's forms."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return where the weights come from."""
        ...


def report(
    source: str | os.PathLike[str] | Reportable,
    *,
    circuit: Circuit = "both",
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    layers: str | Sequence[int] | None = None,
    definition: Definition = "gram",
    null: int = 20,
    fold_norm: bool = True,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Measure how different the heads of each layer are.

    Parameters
    ----------
    source
        A checkpoint's path, an opened `Checkpoint`, or a `HookedModel`.
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
        Directory to save to.
    progress
        Called with (steps done, steps in all, what was done).

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be read.
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
    if circuit not in get_args(Circuit):
        raise ValueError(f"circuit should be one of {get_args(Circuit)} but got {circuit!r}")
    if definition not in get_args(Definition):
        raise ValueError(f"definition should be one of {get_args(Definition)} but got {definition!r}")
    if null < 0:
        raise ValueError(f"null should be a number of draws >= 0 but got {null}")
    distance = Offsets.parse(offsets)
    opened: Reportable = open_checkpoint(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(opened, Reportable):
        raise ValueError(f"source should be a path, a Checkpoint or a HookedModel but is {type(source).__name__}")
    chosen = parse_layers(layers, opened.config.n_layers)
    circuits = ("qk", "ov") if circuit == "both" else (circuit,)
    steps = _Steps(len(chosen) + null + 1, progress)
    if out is not None:
        Path(out).expanduser().mkdir(parents=True, exist_ok=True)
    origin = opened.describe()
    steps.done("hash")

    draws: dict[Key, list[Measures]] = {}
    for seed, factors in random_factors(opened.config, range(null), fold_norm=fold_norm):
        for key, similarity in _similarities(factors, circuits, distance).items():
            draws.setdefault(key, []).append(measure(similarity, definition))
        del factors  # one layer's factors in memory at a time
        steps.done(f"null {seed}")

    rows: list[dict[str, Any]] = []
    matrices: dict[tuple[str, str, int], np.ndarray] = {}
    notes: dict[str, None] = {}
    if distance not in (None, Offsets(0)) and opened.config.rotary is None:
        notes["positions are not rotary, so the offsets make no difference"] = None
    for layer in chosen:
        factors = opened.factors(layer, fold_norm=fold_norm)
        notes |= dict.fromkeys(factors.notes)
        for (name, part), similarity in _similarities(factors, circuits, distance).items():
            matrices[name, part, layer] = similarity
            found = measure(similarity, definition)
            rows.append({"layer": layer, "circuit": name, "part": part, **_row(found, draws.get((name, part), []))})
        del factors
        steps.done(f"layer {layer}")

    record = {
        "kind": "effective-rank report",
        "checkpoint": origin,
        "config": opened.config.to_dict(),
        "circuits": list(circuits),
        "layers": chosen,
        "offsets": _describe_offsets(distance, opened.config),
        "norm_gains_folded": fold_norm,
        "definition": definition,
        "dtype": "float64",
        "null": _describe_null(null, draws),
        "notes": list(notes),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _RECORDED}},
    }
    result = Report(pd.DataFrame(rows, columns=list(COLUMNS)), matrices, record)
    if out is not None:
        result.save(out)
    return result


_RECORDED = ("headscope", "torch", "numpy", "scipy", "pandas", "safetensors", "transformers", "transformer-lens")


class _Steps:
    """Counts what is done and tells whoever asked."""

    def __init__(self, total: int, progress: Callable[[int, int, str], None] | None) -> None:
        self._total, self._progress, self._count = total, progress, 0

    def done(self, what: str) -> None:
        self._count += 1
        if self._progress is not None:
            self._progress(self._count, self._total, what)


def parse_layers(layers: str | Sequence[int] | None, count: int) -> list[int]:
    """Return the chosen layers, in order and once each.

    Raises
    ------
    ValueError
        If the text is none of ``3``, ``0:4`` (both ends included) and ``0,5,9``, or nothing is chosen.
    IndexError
        If a layer does not exist; names the range.
    """
    if layers is None:
        return list(range(count))
    if isinstance(layers, str):
        try:
            wanted: list[int] = []
            for piece in layers.split(","):
                first, colon, last = piece.partition(":")
                low, high = int(first or 0), int(last or count - 1) if colon else int(first)
                # Cut before it is written out: a slip like 0:9999999999 should be an error, not a list.
                wanted += range(low, min(high, count) + 1)
        except ValueError:
            raise ValueError(f"layers should be like 3, 0:4 or 0,5,9 but got {layers!r}") from None
    else:
        wanted = [int(layer) for layer in layers]
    for layer in wanted:
        if not 0 <= layer < count:
            raise IndexError(f"layer {layer} does not exist: this checkpoint has layers 0–{count - 1}")
    if not wanted:
        raise ValueError(f"layers {layers!r} choose none of 0–{count - 1}")
    return sorted(set(wanted))


def _similarities(factors: Factors, circuits: Sequence[str], offsets: Offsets | None) -> dict[Key, np.ndarray]:
    # Forms that several parts are made of (MLA's joint one) are multiplied once.
    distinct = {id(f): f for circuit in circuits for forms in factors.circuits[circuit].values() for f in forms}
    products = {key: gram((form,), offsets).numpy() for key, form in distinct.items()}
    return {
        (circuit, part): cosine(np.add.reduce([products[id(form)] for form in forms]))
        for circuit in circuits
        for part, forms in factors.circuits[circuit].items()
    }


def _row(found: Measures, draws: Sequence[Measures]) -> dict[str, Any]:
    heads = found.n_heads
    centred_draws = [draw.erank_centred for draw in draws]
    return {
        **asdict(found),
        "erank_pct_heads": 100 * found.erank / heads,
        "erank_centred_pct_heads": 100 * found.erank_centred / heads,
        "erank_centred_pct_cap": 100 * found.erank_centred / (heads - 1) if heads > 1 else math.nan,
        "null_mean": _mean([draw.erank for draw in draws]),
        "null_low": min((draw.erank for draw in draws), default=math.nan),
        "null_high": max((draw.erank for draw in draws), default=math.nan),
        "null_centred_mean": _mean(centred_draws),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _describe_offsets(offsets: Offsets | None, config: ModelConfig) -> dict[str, Any]:
    positions = "rotary" if config.rotary is not None else str(config.positions)
    if offsets is None:
        return {"text": "none", "first": None, "last": None, "positions": positions}
    return {"text": str(offsets), "first": offsets.first, "last": offsets.last, "positions": positions}


def _describe_null(count: int, draws: dict[Key, list[Measures]]) -> dict[str, Any]:
    seeds = list(range(count))
    return {
        "what": "one attention layer of the same architecture at random initialisation, a seed each",
        "seeds": seeds,
        "reason": None if seeds else "no null was asked for, so the null_* columns are empty",
        "erank": {f"{circuit}/{part}": [plain(d.erank) for d in drawn] for (circuit, part), drawn in draws.items()},
        "erank_centred": {
            f"{circuit}/{part}": [plain(d.erank_centred) for d in drawn] for (circuit, part), drawn in draws.items()
        },
    }
