"""What is measured of a layer's heads, said once; the measuring of a layer and of its null, and a row of the table."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np

from ..models.config import ModelConfig, Positions
from ..models.factors import Factors
from ..models.per_layer import shape_of
from ..models.variant import AttentionConfig
from ..results import plain, versions
from ..unfinished import Unfinished
from .forms import gram
from .null import random_factors
from .offsets import Offsets
from .spectra import Definition, Measures, cosine, measure, shares

Circuit = Literal["qk", "ov", "both"]
Key = tuple[str, str]
"""A circuit and its part."""
Draws = dict[Key, list[Measures]]
SPECTRA = {"shares": False, "shares_centred": True}
"""The spectra that a null keeps, and whether they are centred."""
Progress = Callable[[int, int, str], None]
Where = str | os.PathLike[str]


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


@dataclass(frozen=True)
class Settings:
    """What is measured, and against what.

    Parameters
    ----------
    circuits
        ``"qk"``, ``"ov"``, or both.
    offsets
        Distances between query and key under rotary positions; None leaves positions out.
    definition
        Of effective rank.
    null
        Random initialisations to draw.
    fold_norm
        Fold the norms' gains into the forms.
    """

    circuits: tuple[str, ...]
    offsets: Offsets | None
    definition: Definition
    null: int
    fold_norm: bool

    @classmethod
    def parse(
        cls,
        circuit: Circuit,
        offsets: str | int | tuple[int, int] | Offsets | None,
        definition: Definition,
        null: int,
        fold_norm: bool,
    ) -> Settings:
        """Check what a caller asked for.

        Raises
        ------
        ValueError
            If one of them cannot be; names it and what it may be.
        """
        if circuit not in get_args(Circuit):
            raise ValueError(f"circuit should be one of {get_args(Circuit)} but got {circuit!r}")
        if definition not in get_args(Definition):
            raise ValueError(f"definition should be one of {get_args(Definition)} but got {definition!r}")
        if null < 0:
            raise ValueError(f"null should be a number of draws >= 0 but got {null}")
        circuits = ("qk", "ov") if circuit == "both" else (circuit,)
        return cls(circuits, Offsets.parse(offsets), definition, null, fold_norm)

    def similarities(self, factors: Factors) -> dict[Key, np.ndarray]:
        """Return the heads' cosine similarities in each circuit and part of a layer."""
        # Forms that several parts are made of (MLA's joint one) are multiplied once.
        chosen = [parts for name, parts in factors.circuits.items() if name in self.circuits]
        distinct = {id(form): form for parts in chosen for forms in parts.values() for form in forms}
        products = {key: gram((form,), self.offsets).numpy() for key, form in distinct.items()}
        return {
            (circuit, part): cosine(np.add.reduce([products[id(form)] for form in forms]))
            for circuit in self.circuits
            for part, forms in factors.circuits[circuit].items()
        }

    def layer(
        self, piece: str, read: Callable[[], Factors], kept: Unfinished
    ) -> tuple[dict[Key, np.ndarray], list[str]]:
        """Return a layer's similarities and notes: as kept, or from its factors, and kept from then on."""
        held = kept.load(piece)
        if held is None:
            factors = read()
            held = {"/".join(key): matrix for key, matrix in self.similarities(factors).items()}
            held["notes"] = np.array(factors.notes, dtype=str)
            del factors  # one layer's factors in memory at a time
            kept.save(piece, held)
        notes = [str(note) for note in held.pop("notes")]
        return {_key(name): matrix for name, matrix in held.items()}, notes

    def draw(self, config: ModelConfig, layers: Sequence[int], done: Callable[[str], None], kept: Unfinished) -> Null:
        """Measure the null of each kind of layer: fresh ones of its architecture, a seed each."""
        kinds = kinds_of_layers(config, layers)
        return Null([self._draw(config.at(alike[0]), alike, done, kept) for alike in kinds])

    def _draw(self, config: ModelConfig, alike: list[int], done: Callable[[str], None], kept: Unfinished) -> Kind:
        draws: Draws = {}
        spectra: dict[str, dict[Key, list[np.ndarray]]] = {name: {} for name in SPECTRA}
        for seed in range(self.null):

            def read(seed: int = seed) -> Factors:
                return random_factors(config, seed, fold_norm=self.fold_norm)

            for key, similarity in self.layer(f"null-{alike[0]:04d}-{seed:04d}", read, kept)[0].items():
                draws.setdefault(key, []).append(measure(similarity, self.definition))
                for name, centred in SPECTRA.items():
                    spectra[name].setdefault(key, []).append(shares(similarity, centred=centred))
            done(f"null {seed}")
        means = {name: {key: np.mean(drawn, axis=0) for key, drawn in of.items()} for name, of in spectra.items()}
        return Kind(alike, draws, means)

    def row(self, similarity: np.ndarray, draws: Sequence[Measures]) -> dict[str, Any]:
        """Return what a table says of one layer, circuit and part."""
        found = measure(similarity, self.definition)
        heads = found.n_heads
        return {
            **asdict(found),
            "erank_pct_heads": 100 * found.erank / heads,
            "erank_centred_pct_heads": 100 * found.erank_centred / heads,
            "erank_centred_pct_cap": 100 * found.erank_centred / (heads - 1) if heads > 1 else math.nan,
            "null_mean": _mean([draw.erank for draw in draws]),
            "null_low": min((draw.erank for draw in draws), default=math.nan),
            "null_high": max((draw.erank for draw in draws), default=math.nan),
            "null_centred_mean": _mean([draw.erank_centred for draw in draws]),
        }

    def describe(self, config: ModelConfig, null: Null) -> dict[str, Any]:
        """Return the settings, the null's draws and the versions, for a record."""
        return {
            **self.plan(config),
            "dtype": "float64",
            "null": self._describe_null(null),
            "versions": versions(*_RECORDED),
        }

    def plan(self, config: ModelConfig) -> dict[str, Any]:
        """Return what is measured of what architecture."""
        return {
            "config": config.to_dict(),
            "circuits": list(self.circuits),
            "offsets": self._describe_offsets(config),
            "norm_gains_folded": self.fold_norm,
            "definition": self.definition,
        }

    def _describe_offsets(self, config: ModelConfig) -> dict[str, Any]:
        positions = "rotary" if config.rotary is not None else str(config.positions)
        positions = positions if config.attention.slopes is None else "alibi"
        ends = (None, None) if self.offsets is None else (self.offsets.first, self.offsets.last)
        text = "none" if self.offsets is None else str(self.offsets)
        return {"text": text, "first": ends[0], "last": ends[1], "positions": positions}

    def _describe_null(self, null: Null) -> dict[str, Any]:
        def values(kind: Kind) -> dict[str, Any]:
            measured = {
                name: {
                    "/".join(key): [plain(getattr(draw, name)) for draw in drawn] for key, drawn in kind.draws.items()
                }
                for name in ("erank", "erank_centred")
            }
            means = {
                name: {"/".join(key): [plain(share) for share in mean] for key, mean in of.items()}
                for name, of in kind.spectra.items()
            }
            return measured | means

        first, *others = null.kinds
        return {
            "what": "one attention layer of the same architecture at random initialisation, a seed each",
            "seeds": list(range(self.null)),
            "reason": None if self.null else "no null was asked for, so the null_* columns are empty",
            **values(first),
            # Layers whose architecture is not the first one's, each kind with draws of its own.
            "others": [{"layers": kind.layers, **values(kind)} for kind in others],
        }


@dataclass(frozen=True)
class Kind:
    """Layers of one architecture, and what fresh ones score.

    Parameters
    ----------
    layers
        Which.
    draws
        Measures of each draw.
    spectra
        Mean over the draws of each component's share, for each of `SPECTRA`.
    """

    layers: list[int]
    draws: Draws
    spectra: dict[str, dict[Key, np.ndarray]]


@dataclass(frozen=True)
class Null:
    """What fresh layers score, for each kind of layer that a model has.

    Parameters
    ----------
    kinds
        Each kind.
    """

    kinds: list[Kind]

    def of(self, layer: int, key: Key) -> list[Measures]:
        """Return the draws that a layer is to be compared with."""
        return next(kind.draws for kind in self.kinds if layer in kind.layers).get(key, [])


def kinds_of_layers(config: ModelConfig, layers: Sequence[int]) -> list[list[int]]:
    """Return the layers in groups of one architecture; windows and scales, which are not in the forms, may differ."""
    kinds: dict[tuple[AttentionConfig, Positions], list[int]] = {}
    for layer in layers:
        own = config.at(layer)
        kinds.setdefault((shape_of(own.attention), own.positions), []).append(layer)
    return list(kinds.values())


_RECORDED = ("torch", "numpy", "scipy", "pandas", "safetensors", "transformers", "transformer-lens")


def _key(name: str) -> Key:
    circuit, part = name.split("/")
    return circuit, part


class Steps:
    """Counts what is done and tells whoever asked."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._count = total, progress, 0

    def done(self, what: str) -> None:
        """Say that one more step is done, and what it was."""
        self._count += 1
        if self._progress is not None:
            self._progress(self._count, self._total, what)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
