"""Text files as documents: what is read of a file, of a folder and of Python's library, and what is passed over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import HeadscopeError

PIECE = 1 << 14
"""Characters after which a single file is cut, at the next end of a line."""
SUFFIXES = (".py", ".txt", ".md", ".rst", ".c", ".h", ".rs", ".go", ".js", ".ts", ".java")
"""What is read of a folder."""

HIDDEN = "hidden"
EMPTY = "empty"
SUFFIX = "another suffix"
ENCODING = "not UTF-8"
LINK = "linked folder"
NO_FILE = "not a file"
QUIET = (HIDDEN, EMPTY)
"""Reasons for which nobody misses text: they are counted in the record and need no warning."""

_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "__pycache__", "lib2to3", "encodings", "pydoc_data"}
"""Folders of the standard library that are tests, other people's, or generated tables."""
_GENERATED = ("config-", "_sysconfigdata")


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Parameters
    ----------
    name
        Its name within the corpus.
    unit
        What is kept whole in one split: a module of the library, a file of a folder, a piece of a file.
    text
        Its text.
    """

    name: str
    unit: str
    text: str


@dataclass(frozen=True)
class Found:
    """What was read, in a fixed order, and how many files were passed over, by reason."""

    documents: tuple[Document, ...]
    skipped: dict[str, int]


def library(root: Path) -> Found:
    """Return the modules of Python's standard library below `root`, without tests and generated tables.

    What is left out by rule is not counted: it is no part of the library's source.
    """
    files = (file for file in sorted(root.rglob("*.py")) if not _left_out(file.relative_to(root).parts))
    return _read(root, files, Counter(), unit=lambda path: Path(path.parts[0]).stem)


def folder(root: Path) -> Found:
    """Return every text file below a folder, each a unit by its path without suffix.

    Hidden files and folders (whose names begin with a dot) and ``__pycache__`` are not looked into, nor are folders
    behind a link; each of them counts as one.
    """
    skipped: Counter[str] = Counter()
    files = sorted(_text_files(root, skipped))
    return _read(root, files, skipped, unit=lambda path: path.with_suffix("").as_posix())


def single(file: Path) -> Found:
    """Return a text file, cut at line ends into pieces of about `PIECE` characters, each a unit by its number.

    Raises
    ------
    HeadscopeError
        If it is no UTF-8 text.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise HeadscopeError(f"{file} is no UTF-8 text: {error}") from error
    pieces = (Document(f"{file.name}:{i}", f"{i}", piece) for i, piece in enumerate(_pieces(text)))
    return Found(tuple(pieces), {})


def counted(skipped: dict[str, int]) -> str:
    """Return counts by reason in words.

    Examples
    --------
    >>> counted({"another suffix": 2, "not UTF-8": 1})
    '3 files or folders (another suffix: 2, not UTF-8: 1)'
    """
    return f"{sum(skipped.values())} files or folders ({', '.join(f'{reason}: {n}' for reason, n in skipped.items())})"


def _left_out(parts: tuple[str, ...]) -> bool:
    return any(part in _NOT_LIBRARY or part.startswith(_GENERATED) for part in parts)


def _text_files(root: Path, skipped: Counter[str]) -> Iterator[Path]:
    for place, folders, files in os.walk(root, onerror=_unreadable):
        for name in list(folders):
            hidden = _hidden(name)
            if hidden or (Path(place) / name).is_symlink():
                skipped[HIDDEN if hidden else LINK] += 1
                folders.remove(name)
        for name in files:
            path = Path(place) / name
            if _hidden(name):
                skipped[HIDDEN] += 1
            elif path.suffix.lower() not in SUFFIXES:
                skipped[SUFFIX] += 1
            elif not path.is_file():
                skipped[NO_FILE] += 1
            else:
                yield path


def _unreadable(error: OSError) -> None:
    raise error  # os.walk would leave such a folder out in silence


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _read(root: Path, files: Iterable[Path], skipped: Counter[str], unit: Callable[[Path], str]) -> Found:
    documents = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            skipped[ENCODING] += 1
            continue
        if not text:
            skipped[EMPTY] += 1
            continue
        path = file.relative_to(root)
        documents.append(Document(path.as_posix(), unit(path), text))
    return Found(tuple(documents), dict(sorted(skipped.items())))


def _pieces(text: str) -> Iterable[str]:
    piece: list[str] = []
    held = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        held += len(line)
        if held >= PIECE:
            yield "".join(piece)
            piece, held = [], 0
    if piece:
        yield "".join(piece)
