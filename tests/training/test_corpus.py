"""Corpora: the same text gives the same splits and hash; nothing of one split is in another."""

from __future__ import annotations

import platform

import pytest
from headscope.errors import HeadscopeError, HeadscopeWarning
from headscope.training.corpus import (
    SPLITS,
    Corpus,
    documents,
    from_path,
    read_documents,
    split_of,
    standard_library,
)
from headscope.training.files import Document


def test_standard_library_is_split_by_module():
    corpus = standard_library()
    described = corpus.describe()
    total = sum(described["bytes"].values())
    assert total > 5_000_000
    for split in ("validation", "test"):
        assert 0.01 < described["bytes"][split] / total < 0.15
    modules = {split: {d.unit for d in corpus.documents if split_of(d.unit) == split} for split in SPLITS}
    assert not modules["train"] & modules["test"]
    assert not modules["train"] & modules["validation"]
    assert len(modules["test"]) >= 5
    assert described["python"] == platform.python_version()
    assert sum(described["documents_by_split"].values()) == described["documents"] == len(corpus.documents)
    assert not any("/test" in d.name or d.name.startswith("encodings") for d in corpus.documents)


def test_the_hash_is_of_names_and_texts(text):
    first, again = from_path(text), from_path(text)
    assert first.sha256 == again.sha256
    changed = Corpus("x", (*first.documents[:-1], Document(first.documents[-1].name, "m", "other")))
    assert changed.sha256 != first.sha256


def test_splits_take_every_document_once(text):
    corpus = from_path(text)
    assert sorted(t for split in SPLITS for t in corpus.texts(split)) == sorted(d.text for d in corpus.documents)


def test_one_file_is_cut_at_line_ends(tmp_path):
    lines = [f"line {i} of a long text\n" for i in range(60_000)]
    (tmp_path / "book.txt").write_text("".join(lines))
    corpus = from_path(tmp_path / "book.txt")
    assert "".join(d.text for d in corpus.documents) == "".join(lines)
    assert all(d.text.endswith("\n") for d in corpus.documents)


@pytest.fixture
def mixed(tmp_path):
    """A folder whose names the standard library's rules would drop, beside what is no text."""
    for name in ("a.txt", "config-1.txt", "tests/c.txt", "sub/encodings/d.TXT"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}\n")
    for name in ("e.csv", ".hidden/f.txt", "__pycache__/a.pyc", "nothing.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x" if name != "nothing.md" else "")
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (tmp_path / "again").symlink_to(tmp_path / "sub")
    return tmp_path


def test_of_a_folder_every_text_file_is_read_and_the_rest_is_counted_and_said(mixed):
    with pytest.warns(HeadscopeWarning, match=r"passed over are 6 files or folders .*not UTF-8: 1") as said:
        corpus = read_documents(mixed)
    assert [d.name for d in corpus.documents] == ["a.txt", "config-1.txt", "sub/encodings/d.TXT", "tests/c.txt"]
    assert all(d.text == f"this is {d.name}\n" for d in corpus.documents)
    counts = {"another suffix": 1, "empty": 1, "hidden": 2, "linked folder": 1, "not UTF-8": 1}
    assert corpus.describe()["skipped"] == counts
    assert ".rst" in str(said[0].message)


def test_tasks_read_the_same_files(mixed):
    with pytest.warns(HeadscopeWarning, match="not UTF-8: 1"):
        texts = documents(mixed)
    assert texts == [f"this is {name}\n" for name in ("a.txt", "config-1.txt", "sub/encodings/d.TXT", "tests/c.txt")]


def test_what_nobody_misses_needs_no_warning(tmp_path):
    (tmp_path / "a.txt").write_text("text\n")
    (tmp_path / "__init__.py").touch()
    (tmp_path / ".git").mkdir()
    assert read_documents(tmp_path).skipped == {"empty": 1, "hidden": 1}  # a warning would be an error here


def test_a_folder_is_split_by_file_however_deep(tmp_path):
    (tmp_path / "book").mkdir()
    for i in range(200):
        (tmp_path / "book" / f"chapter-{i}.txt").write_text(f"chapter {i}\n")
    described = from_path(tmp_path).describe()
    assert all(2 <= described["documents_by_split"][split] <= 25 for split in ("validation", "test"))
    assert sum(described["documents_by_split"].values()) == 200


def test_a_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("text\n")
    assert documents("~/a.txt") == ["text\n"]


def test_the_size_that_an_error_names_is_enough_and_less_is_not(tmp_path):
    place = tmp_path / "book.txt"
    line = "a line of 32 characters, no less\n"[1:]
    place.write_text(line * (14 * 512))
    with pytest.raises(HeadscopeError, match=r"makes 14, but 15 are needed, 240 KiB"):
        from_path(place)
    place.write_text(line * (15 * 512))
    assert len(from_path(place).documents) == 15


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("missing", "does not exist"),
        ("empty", "holds no text"),
        ("short", "too short for a validation split"),
        ("few", "too few files for a validation split: none of its 1 .*100 files, or one file of 240 KiB"),
        ("other", r"holds no text; passed over are 1 files or folders .another suffix: 1"),
        ("binary", "is no UTF-8 text"),
    ],
)
def test_too_little_text_is_refused(tmp_path, make, words):
    place = tmp_path / "text"
    if make == "empty":
        place.mkdir()
    if make in ("few", "other"):
        place.mkdir()
        (place / ("a.txt" if make == "few" else "a.csv")).write_text("a line\n")
    if make == "short":
        place.write_text("a line\n")
    if make == "binary":
        place.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeadscopeError, match=words):
        from_path(place)


def test_unknown_split_lists_the_known_ones(text):
    with pytest.raises(ValueError, match="validation"):
        from_path(text).texts("dev")
