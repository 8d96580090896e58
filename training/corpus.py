"""Text to train on, split and hashed: by default Python's own standard library, which every machine here has."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import HeadscopeError, HeadscopeWarning
from .files import PIECE, QUIET, SUFFIXES, Document, counted, folder, library, single

SPLITS = ("train", "validation", "test")
HELD_OUT_PERCENT = 5
"""Share of the units (modules, files, pieces) that goes to validation, and again to test."""

_SALT = 0
_ENOUGH_FILES = 100
"""Files of which validation and test each get one, but for 1 folder in 80: ``2 * 0.95 ** 100``."""


@dataclass(frozen=True)
class Corpus:
    """Documents with their splits.

    Parameters
    ----------
    source
        What the corpus is, for the record.
    documents
        In a fixed order.
    skipped
        How many files were passed over, by reason.
    python
        The release whose library it is, in full: its text changes with each. None for other text.
    """

    source: str
    documents: tuple[Document, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)
    python: str | None = None

    @cached_property
    def sha256(self) -> str:
        """Hash of every document's name and text, in order."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(f"{document.name}\0{len(document.text)}\0".encode())
            digest.update(document.text.encode())
        return digest.hexdigest()

    @property
    def all_texts(self) -> list[str]:
        """Every document, whatever its split."""
        return [document.text for document in self.documents]

    def texts(self, split: str) -> list[str]:
        """Return a split's documents.

        Raises
        ------
        ValueError
            If the split is unknown.
        """
        if split not in SPLITS:
            raise ValueError(f"split should be one of {SPLITS} but got {split!r}")
        return [d.text for d in self.documents if split_of(d.unit) == split]

    def describe(self) -> dict[str, object]:
        """Return, for a record, source, hash, documents and bytes a split, and what was passed over."""
        texts = {split: self.texts(split) for split in SPLITS}
        described: dict[str, object] = {
            "source": self.source,
            "sha256": self.sha256,
            "documents": len(self.documents),
            "bytes": {split: sum(len(text.encode()) for text in held) for split, held in texts.items()},
            "documents_by_split": {split: len(held) for split, held in texts.items()},
            "skipped": dict(self.skipped),
        }
        return described if self.python is None else {**described, "python": self.python}


def split_of(unit: str) -> str:
    """Return the split of a unit, decided by the hash of its name alone.

    What is of one unit stays together, and adding a unit moves no other.
    """
    place = int.from_bytes(hashlib.sha256(f"{_SALT} {unit}".encode()).digest()[:4], "big") % 100
    if place < HELD_OUT_PERCENT:
        return "validation"
    return "test" if place < 2 * HELD_OUT_PERCENT else "train"


def standard_library() -> Corpus:
    """Return the source of Python's standard library, without its tests and generated tables, split by module."""
    found = library(Path(sysconfig.get_paths()["stdlib"]))
    source = f"Python {sysconfig.get_python_version()} standard library"
    return Corpus(source, found.documents, found.skipped, platform.python_version())


def from_path(path: str | os.PathLike[str]) -> Corpus:
    """Return a text file, or every text file below a folder, as a corpus.

    A folder is split by file. A single file is cut at line ends into pieces of some 16,000 characters, which are split
    like files. What is passed over of a folder is said in a `HeadscopeWarning`, and counted in the record.

    Raises
    ------
    HeadscopeError
        If there is nothing to read, or a split would be empty.
    """
    corpus = read_documents(path)
    for split in SPLITS:
        if not any(corpus.texts(split)):
            raise HeadscopeError(_too_small(Path(path).expanduser(), split, len(corpus.documents)))
    return corpus


def documents(text: str | os.PathLike[str] | None = None, split: str = "test") -> list[str]:
    """Return the documents of a text file or folder; None or ``"stdlib"``: a split of the standard library.

    Its test split is text that the models that ship did not see. Files and folders are read as by `from_path`.

    Raises
    ------
    HeadscopeError
        If there is nothing to read.
    ValueError
        If the split is unknown.
    """
    if text is None or (str(text) == "stdlib" and not Path(text).exists()):
        return standard_library().texts(split)
    return read_documents(text).all_texts


def read_documents(path: str | os.PathLike[str]) -> Corpus:
    """Return the same as `from_path` without asking that every split has something.

    Raises
    ------
    HeadscopeError
        If there is nothing to read.
    """
    place = Path(path).expanduser()
    if not place.is_file() and not place.is_dir():
        raise HeadscopeError(f"{path} does not exist: expected a text file or a folder of them")
    found = single(place) if place.is_file() else folder(place)
    if not found.documents:
        passed = f"; passed over are {counted(found.skipped)}; read are {', '.join(SUFFIXES)}" if found.skipped else ""
        raise HeadscopeError(f"{path} holds no text{passed}")
    if set(found.skipped) - set(QUIET):
        words = f"{path}: passed over are {counted(found.skipped)}; read are UTF-8 files named {', '.join(SUFFIXES)}"
        warnings.warn(words, HeadscopeWarning, stacklevel=3)
    return Corpus(str(path), found.documents, found.skipped)


def _too_small(place: Path, split: str, documents: int) -> str:
    """Return why a split is empty, and how much text would fill all."""
    held, pieces = set(), 0
    while held != set(SPLITS):
        held.add(split_of(f"{pieces}"))
        pieces += 1
    one_file = f"{pieces * PIECE // 1024} KiB"
    if place.is_file():
        return (
            f"{place} is too short for a {split} split: it is cut at line ends into pieces of {PIECE // 1024} KiB "
            f"and makes {documents}, but {pieces} are needed, {one_file} of text"
        )
    return (
        f"{place} holds too few files for a {split} split: none of its {documents} falls to it by the hash of their "
        f"names, which gives it {HELD_OUT_PERCENT} in 100; give some {_ENOUGH_FILES} files, or one file of {one_file}, "
        "which is cut into pieces"
    )
