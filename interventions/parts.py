"""What a sweep has finished, layer by layer, so that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import HeadscopeError
from .plan import LayerScores

FOLDER = "unfinished"
_ARRAYS = ("clean", "clean_accuracy", "edit", "edit_accuracy", "random", "moves")


class Parts:
    """Finished layers of one sweep in a directory; every file appears whole.

    Parameters
    ----------
    directory
        Where results will be saved; None: nothing is kept.
    plan
        What is to be done, ready for JSON; layers of another plan are never mixed in.

    Raises
    ------
    HeadscopeError
        If the directory holds the unfinished sweep of another plan.
    """

    def __init__(self, directory: Path | None, plan: dict[str, Any]) -> None:
        self._root = None if directory is None else directory / FOLDER
        if self._root is None:
            return
        described = self._root / "plan.json"
        wanted = json.loads(json.dumps(plan))
        if described.exists():
            there = json.loads(described.read_text(encoding="utf-8"))
            for name in {**wanted, **there}:
                if there.get(name) != wanted.get(name):
                    raise HeadscopeError(
                        f"{self._root} holds an unfinished sweep whose {name} is {there.get(name)}, not "
                        f"{wanted.get(name)}: go on with that one, name another directory, or remove it"
                    )
            return
        self._root.mkdir(parents=True, exist_ok=True)
        self._write(described, lambda path: path.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8"))

    def load(self, layer: int) -> LayerScores | None:
        """Return a finished layer, or None."""
        path = self._place(layer)
        if path is None or not path.exists():
            return None
        with np.load(path, allow_pickle=False) as held:
            shared = held.get("shared", None)
            cells = tuple(int(head) for head in held["cells"])
            return LayerScores(layer=layer, cells=cells, shared=shared, **{name: held[name] for name in _ARRAYS})

    def save(self, scores: LayerScores) -> None:
        """Keep a finished layer."""
        path = self._place(scores.layer)
        if path is None:
            return
        arrays: dict[str, Any] = {name: getattr(scores, name) for name in _ARRAYS} | {"cells": np.array(scores.cells)}
        if scores.shared is not None:
            arrays["shared"] = scores.shared
        self._write(path, lambda part: np.savez(part, **arrays))

    def discard(self) -> None:
        """Forget the layers: the result is saved."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _place(self, layer: int) -> Path | None:
        return None if self._root is None else self._root / f"layer-{layer:04d}.npz"

    @staticmethod
    def _write(path: Path, write: Any) -> None:
        # Each process writes beside its own name; numpy wants the suffix at the end, or adds one.
        part = path.with_name(f".{os.getpid()}.{path.name}")
        write(part)
        part.replace(path)
