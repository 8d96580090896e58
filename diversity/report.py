"""The effective-rank report: every layer's head diversity beside its bounds and its null, as a table with a record."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import pandas as pd

from ..checkpoints import open_checkpoint
from ..models.config import ModelConfig
from ..models.factors import Factors
from ..plots import effective_rank as draw_effective_rank
from ..plots import head_similarity as draw_head_similarity
from .forms import Offsets, gram
from .null import random_factors
from .spectra import Definition, Measures, cosine, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Circuit = Literal["qk", "ov", "both"]
Key = tuple[str, str]

COLUMNS = (
    "layer",
    "circuit",
    "part",
    "n_heads",
    "erank",
    "erank_centred",
    "erank_pct_heads",
    "erank_centred_pct_heads",
    "erank_centred_pct_cap",
    "null_mean",
    "null_low",
    "null_high",
    "null_centred_mean",
    "participation_ratio",
    "stable_rank",
    "components_90",
    "first_component",
    "mean_similarity",
    "status",
)
"""Columns of a report's table. Percentages are 0-100; ``null_*`` are in heads, as ``erank`` is."""


@runtime_checkable
class Source(Protocol):
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


@dataclass(frozen=True)
class Report:
    """Head diversity of a checkpoint.

    Parameters
    ----------
    table
        One row per layer, circuit and part; see `COLUMNS`. NaN where a measure does not exist (`status` says why).
    similarity
        ``(circuit, part, layer)`` -> cosine similarities ``[head, head]``.
    record
        What was measured and how: checkpoint hash, configuration, offsets, folding, definition, seeds, versions.
    """

    table: pd.DataFrame
    similarity: dict[tuple[str, str, int], np.ndarray]
    record: dict[str, Any]

    def __repr__(self) -> str:
        return f"Report of {self.record['checkpoint']['path'] or 'a model in memory'}\n{self.summary()}"

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format="{:.4g}".format, index=False)

    def means(self) -> pd.DataFrame:
        """Return each circuit's and part's mean over layers, leaving out what does not exist."""
        numeric = [name for name in COLUMNS if name not in ("layer", "circuit", "part", "status", "n_heads")]
        return pd.DataFrame(self.table.groupby(["circuit", "part"], sort=False)[numeric].mean()).reset_index()

    def summary(self) -> str:
        """Return one line a circuit and part: means over layers, in percent."""
        return "\n".join(_summary_line(row, len(self.record["layers"])) for row in self.means().to_dict("records"))

    def reading(self) -> str:
        """Return what the numbers do and do not show, given where they lie against the null."""
        if not self.record["null"]["seeds"]:
            return "No null was drawn: without it a high effective rank is no evidence that heads specialise."
        keys = self.table[["circuit", "part"]].drop_duplicates().itertuples(index=False)
        return "\n".join(_reading(self.table, circuit, part) for circuit, part in keys)

    def plot(self) -> Figure:
        """Draw effective rank by layer against its bounds and null."""
        return draw_effective_rank(self.table)

    def plot_similarity(self) -> Figure:
        """Draw the heads' similarities, one panel a layer."""
        return draw_head_similarity(self.similarity)

    def to_dict(self) -> dict[str, Any]:
        """Return the record and the rows, ready for strict JSON: None where a value does not exist."""
        rows = [{key: _plain(value) for key, value in row.items()} for row in self.table.to_dict("records")]
        return {"record": self.record, "rows": rows, "summary": self.summary(), "reading": self.reading()}

    def to_json(self) -> str:
        """Return `to_dict` as strict JSON (no NaN), floats in full precision."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``report.json``, ``report.csv``, ``report.parquet``, ``heatmap.png`` and ``effective-rank.png``.

        The three tables hold the same values in full precision. Existing files of these names are replaced, each in one
        step; nothing else in the directory is touched.
        """
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        writers: dict[str, Callable[[Path], Any]] = {
            "report.json": lambda path: path.write_text(self.to_json() + "\n", encoding="utf-8"),
            "report.csv": lambda path: self.table.to_csv(path, index=False),
            "report.parquet": lambda path: self.table.to_parquet(path, index=False),
            "heatmap.png": lambda path: self.plot_similarity().savefig(path, dpi=150, format="png"),
            "effective-rank.png": lambda path: self.plot().savefig(path, dpi=150, format="png"),
        }
        for name, write in writers.items():
            part = target / f".{name}.part"
            write(part)
            part.replace(target / name)
        return [target / name for name in writers]


def report(
    source: str | os.PathLike[str] | Source,
    *,
    circuit: Circuit = "both",
    offsets: str | int | tuple[int, int] | Offsets | None = 0,
    layers: str | Sequence[int] | None = None,
    definition: Definition = "gram",
    null: int = 10,
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
    opened: Source = open_checkpoint(source) if isinstance(source, str | os.PathLike) else source
    chosen = parse_layers(layers, opened.config.n_layers)
    circuits = ("qk", "ov") if circuit == "both" else (circuit,)
    seeds = list(range(null))
    tick = progress or (lambda done, total, what: None)
    total = len(chosen) + null

    draws: dict[Key, list[Measures]] = {}
    for done, (seed, factors) in enumerate(random_factors(opened.config, seeds, fold_norm=fold_norm), 1):
        for key, similarity in _similarities(factors, circuits, distance).items():
            draws.setdefault(key, []).append(measure(similarity, definition))
        tick(done, total, f"null {seed}")

    rows: list[dict[str, Any]] = []
    matrices: dict[tuple[str, str, int], np.ndarray] = {}
    notes: dict[str, None] = {}
    for done, layer in enumerate(chosen, 1 + null):
        factors = opened.factors(layer, fold_norm=fold_norm)
        notes |= dict.fromkeys(factors.notes)
        for (name, part), similarity in _similarities(factors, circuits, distance).items():
            matrices[name, part, layer] = similarity
            found = measure(similarity, definition)
            rows.append({"layer": layer, "circuit": name, "part": part, **_row(found, draws.get((name, part), []))})
        tick(done, total, f"layer {layer}")

    record = {
        "kind": "effective-rank report",
        "checkpoint": opened.describe(),
        "config": opened.config.to_dict(),
        "circuits": list(circuits),
        "layers": chosen,
        "offsets": _describe_offsets(distance, opened.config),
        "norm_gains_folded": fold_norm,
        "definition": definition,
        "dtype": "float64",
        "null": _describe_null(seeds, draws),
        "notes": list(notes),
        "versions": {name: version(name) for name in ("headscope", "torch", "numpy", "scipy", "transformer-lens")},
    }
    result = Report(pd.DataFrame(rows, columns=list(COLUMNS)), matrices, record)
    if out is not None:
        result.save(out)
    return result


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
                wanted += range(low, high + 1)
        except ValueError:
            raise ValueError(f"layers should be like 3, 0:4 or 0,5,9 but got {layers!r}") from None
    else:
        wanted = list(layers)
    for layer in wanted:
        if not 0 <= layer < count:
            raise IndexError(f"layer {layer} does not exist: this checkpoint has layers 0–{count - 1}")
    if not wanted:
        raise ValueError(f"layers {layers!r} choose none of 0–{count - 1}")
    return sorted(set(wanted))


def _similarities(factors: Factors, circuits: Sequence[str], offsets: Offsets | None) -> dict[Key, np.ndarray]:
    return {
        (circuit, part): cosine(gram(forms, offsets).numpy())
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


def _plain(value: Any) -> Any:
    """Return a value for strict JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _describe_offsets(offsets: Offsets | None, config: ModelConfig) -> dict[str, Any]:
    positions = "rotary" if config.rotary is not None else str(config.positions)
    if offsets is None:
        return {"text": "none", "first": None, "last": None, "positions": positions}
    return {"text": str(offsets), "first": offsets.first, "last": offsets.last, "positions": positions}


def _describe_null(seeds: list[int], draws: dict[Key, list[Measures]]) -> dict[str, Any]:
    return {
        "what": "one attention layer of the same architecture at random initialisation, a seed each",
        "seeds": seeds,
        "reason": None if seeds else "no null was asked for, so the null_* columns are empty",
        "erank": {f"{circuit}/{part}": [_plain(d.erank) for d in drawn] for (circuit, part), drawn in draws.items()},
        "erank_centred": {
            f"{circuit}/{part}": [_plain(d.erank_centred) for d in drawn] for (circuit, part), drawn in draws.items()
        },
    }


def _summary_line(row: Mapping[Hashable, Any], layers: int) -> str:
    name = _title(row["circuit"], row["part"])
    return (
        f"{name}, mean of {layers} layer{'s' if layers > 1 else ''}: "
        f"effective rank {row['erank_pct_heads']:.2f} % of H, "
        f"centred {row['erank_centred_pct_heads']:.2f} % of H = {row['erank_centred_pct_cap']:.2f} % of its cap H-1"
    )


def _title(circuit: str, part: str) -> str:
    return circuit.upper() if part == "all" else f"{circuit.upper()} {part}"


def _reading(table: pd.DataFrame, circuit: str, part: str) -> str:
    rows = table[(table["circuit"] == circuit) & (table["part"] == part) & table["erank"].notna()]
    name = _title(circuit, part)
    if rows.empty:
        return f"{name}: no layer could be measured."
    erank, low, high = (np.asarray(rows[name]) for name in ("erank", "null_low", "null_high"))
    below, above = int((erank < low).sum()), int((erank > high).sum())
    inside = len(rows) - below - above
    texts = []
    if inside:
        texts.append(
            f"{inside} of {len(rows)} layers lie inside the null's range: there the number shows no more than that "
            "random queries differ, and is no evidence of specialised heads"
        )
    if below:
        texts.append(f"{below} lie below the null: their heads are more alike than random ones of the same shape")
    if above:
        texts.append(f"{above} lie above it: their heads are less alike than random ones")
    return f"{name}: " + "; ".join(texts) + "."
