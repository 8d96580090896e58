"""Corpora: the same text gives the same splits and hash; nothing of one split is in another."""

from __future__ import annotations

import pytest
from headscope.errors import HeadscopeError
from headscope.training.corpus import SPLITS, Corpus, Document, from_path, split_of, standard_library


def test_standard_library_is_split_by_module():
    corpus = standard_library()
    described = corpus.describe()
    total = sum(described["bytes"].values())
    assert total > 5_000_000
    for split in ("validation", "test"):
        assert 0.01 < described["bytes"][split] / total < 0.15
    modules = {split: {d.module for d in corpus.documents if split_of(d.module) == split} for split in SPLITS}
    assert not modules["train"] & modules["test"]
    assert not modules["train"] & modules["validation"]
    assert len(modules["test"]) >= 5
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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("missing", "does not exist"),
        ("empty", "holds no text"),
        ("short", "too few files"),
        ("binary", "is no UTF-8 text"),
    ],
)
def test_too_little_text_is_refused(tmp_path, make, words):
    place = tmp_path / "text"
    if make == "empty":
        place.mkdir()
    if make == "short":
        place.write_text("a line\n")
    if make == "binary":
        place.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HeadscopeError, match=words):
        from_path(place)


def test_unknown_split_lists_the_known_ones(text):
    with pytest.raises(ValueError, match="validation"):
        from_path(text).texts("dev")
