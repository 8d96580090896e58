"""What a long verb has finished, piece by piece, so that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import HeadscopeError

FOLDER = "unfinished"


class Unfinished:
    """Finished pieces of one piece of work in a directory, arrays by name; every file appears whole.

    Parameters
    ----------
    directory
        Where results will be saved; None: nothing is kept.
    what
        The work in a word, for messages.
    plan
        What is to be done, ready for JSON; pieces of another plan are never mixed in.

    Raises
    ------
    HeadscopeError
        If the directory holds unfinished work of another plan; names the difference.
    """

    def __init__(self, directory: Path | None, what: str = "", plan: Mapping[str, Any] | None = None) -> None:
        self._root = None if directory is None else directory / FOLDER
        if self._root is None:
            return
        described = self._root / "plan.json"
        wanted = json.loads(json.dumps(plan))
        if described.exists():
            there = json.loads(described.read_text(encoding="utf-8"))
            if found := difference(there, wanted):
                name, theirs, ours = found
                raise HeadscopeError(
                    f"{self._root} holds an unfinished {what} whose {name} is {theirs}, not {ours}: "
                    "go on with that one, name another directory, or remove it"
                )
            return
        self._root.mkdir(parents=True, exist_ok=True)
        self._write(described, lambda path: path.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8"))

    def load(self, piece: str) -> dict[str, np.ndarray] | None:
        """Return a finished piece, or None."""
        path = self._place(piece)
        if path is None or not path.exists():
            return None
        with np.load(path, allow_pickle=False) as held:
            return dict(held)

    def save(self, piece: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a finished piece."""
        path = self._place(piece)
        if path is not None:
            self._write(path, lambda part: np.savez(part, allow_pickle=False, **dict(arrays)))

    def discard(self) -> None:
        """Forget the pieces: the result is saved."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)

    def _place(self, piece: str) -> Path | None:
        return None if self._root is None else self._root / f"{piece}.npz"

    @staticmethod
    def _write(path: Path, write: Callable[[Path], Any]) -> None:
        # Each process writes beside its own name; numpy wants the suffix at the end, or adds one.
        part = path.with_name(f".{os.getpid()}.{path.name}")
        write(part)
        part.replace(path)


def difference(there: Any, wanted: Any) -> tuple[str, Any, Any] | None:
    """Return where two plans differ first, and what either says; None where they agree.

    Examples
    --------
    >>> difference({"steps": 9, "model": {"rank": 6}}, {"steps": 9, "model": {"rank": 4}})
    ('model.rank', 6, 4)
    """
    if not (isinstance(there, dict) and isinstance(wanted, dict)):
        return None if there == wanted else ("", there, wanted)
    for name in {**wanted, **there}:
        if found := difference(there.get(name), wanted.get(name)):
            rest, theirs, ours = found
            return f"{name}.{rest}" if rest else name, theirs, ours
    return None
