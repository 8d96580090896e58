"""Text to train on, split and hashed: by default Python's own standard library, which every machine here has."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import HeadscopeError

SPLITS = ("train", "validation", "test")
HELD_OUT_PERCENT = 5
"""Share of the modules that goes to validation, and again to test."""

_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "__pycache__", "lib2to3", "encodings", "pydoc_data"}
"""Folders of the standard library that are tests, other people's, or generated tables."""
_SALT = 0
_SUFFIXES = {".py", ".txt", ".md", ".rst", ".c", ".h", ".rs", ".go", ".js", ".ts", ".java"}


@dataclass(frozen=True)
class Document:
    """One file of the corpus: its name within it, the module that decides its split, its text."""

    name: str
    module: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """Documents with their splits.

    Parameters
    ----------
    source
        What the corpus is, for the record.
    documents
        In a fixed order.
    """

    source: str
    documents: tuple[Document, ...]

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
        return [d.text for d in self.documents if split_of(d.module) == split]

    def describe(self) -> dict[str, object]:
        """Return source, hash and sizes in bytes, for a record."""
        sizes = {split: sum(len(t.encode()) for t in self.texts(split)) for split in SPLITS}
        return {"source": self.source, "sha256": self.sha256, "documents": len(self.documents), "bytes": sizes}


def split_of(module: str) -> str:
    """Return the split of a module, decided by the hash of its name alone.

    Files of one module stay together, and adding a module moves no other.
    """
    place = int.from_bytes(hashlib.sha256(f"{_SALT} {module}".encode()).digest()[:4], "big") % 100
    if place < HELD_OUT_PERCENT:
        return "validation"
    return "test" if place < 2 * HELD_OUT_PERCENT else "train"


def standard_library() -> Corpus:
    """Return the source of Python's standard library, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    version = sysconfig.get_python_version()
    return Corpus(f"Python {version} standard library", tuple(_read(root, root.rglob("*.py"))))


def from_path(path: str | os.PathLike[str]) -> Corpus:
    """Return a text file, or every text file below a folder, as a corpus.

    A single file is cut at line ends into pieces of about 16 KiB, which are split like modules.

    Raises
    ------
    HeadscopeError
        If there is nothing to read, or a split would be empty.
    """
    corpus = read_documents(path)
    for split in SPLITS:
        if not any(corpus.texts(split)):
            raise HeadscopeError(f"{path}: too few files for a {split} split ({len(corpus.documents)} found)")
    return corpus


def documents(text: str | os.PathLike[str] | None = None, split: str = "test") -> list[str]:
    """Return the documents of a text file or folder; None or ``"stdlib"``: a split of the standard library.

    Its test split is text that the models that ship did not see.

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
    """Return the same without asking that every split has something.

    Raises
    ------
    HeadscopeError
        If there is nothing to read.
    """
    place = Path(path)
    if place.is_file():
        try:
            text = place.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise HeadscopeError(f"{path} is no UTF-8 text: {error}") from error
        documents = tuple(
            Document(f"{place.name}:{i}", f"{i}", piece) for i, piece in enumerate(_pieces(text, 1 << 14))
        )
    elif place.is_dir():
        files = (p for p in place.rglob("*") if p.suffix in _SUFFIXES)
        documents = tuple(_read(place, files))
    else:
        raise HeadscopeError(f"{path} does not exist: expected a text file or a folder of them")
    if not documents:
        raise HeadscopeError(f"{path} holds no text")
    return Corpus(str(path), documents)


def _read(root: Path, files: Iterable[Path]) -> Iterable[Document]:
    for file in sorted(files):
        parts = file.relative_to(root).parts
        if any(part in _LEFT_OUT or part.startswith(("config-", "_sysconfigdata")) for part in parts):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a few sources declare another encoding
        if text:
            yield Document("/".join(parts), Path(parts[0]).stem, text)


def _pieces(text: str, size: int) -> Iterable[str]:
    piece: list[str] = []
    held = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        held += len(line)
        if held >= size:
            yield "".join(piece)
            piece, held = [], 0
    if piece:
        yield "".join(piece)
