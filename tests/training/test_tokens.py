"""Tokens: every byte comes back, and a batch is a function of seed and step."""

from __future__ import annotations

import pytest
import torch
from headscope.training.corpus import from_path
from headscope.training.tokens import END, batch, encode, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(text):
    return train_tokenizer(from_path(text).texts("train"), 300)


def test_every_text_comes_back(tokenizer):
    for sample in ("def f(x):\n\treturn x\n", "naïve 表 \x00\x7f ☃", "  indented"):
        assert tokenizer.decode(tokenizer.encode(sample)) == sample
    assert len(tokenizer) == 300


def test_two_trainings_give_the_same_tokens(tokenizer, text):
    again = train_tokenizer(from_path(text).texts("train"), 300)
    assert again.get_vocab() == tokenizer.get_vocab()


def test_documents_are_set_apart_by_token_zero(tokenizer):
    row = encode(tokenizer, ["ab", "", "c"])
    assert tokenizer.pad_token == tokenizer.eos_token == END
    assert (row == 0).tolist() == [True, False, False, True, True, False]


def test_too_small_a_vocabulary_is_refused():
    with pytest.raises(ValueError, match="at least 257"):
        train_tokenizer(["abc"], 256)


def test_batches_depend_on_seed_and_step_alone():
    row = torch.arange(1000)
    first = batch(row, 4, 16, seed=1, step=7)
    torch.manual_seed(3)
    assert torch.equal(batch(row, 4, 16, seed=1, step=7), first)
    assert not torch.equal(batch(row, 4, 16, seed=1, step=8), first)
    assert not torch.equal(batch(row, 4, 16, seed=2, step=7), first)
    assert (first.diff(dim=1) == 1).all()  # windows of the row as it is


def test_batches_reach_both_ends_of_the_row():
    row = torch.arange(20)
    seen = torch.cat([batch(row, 8, 16, seed=0, step=s)[:, 0] for s in range(40)]).unique()
    assert seen.tolist() == [0, 1, 2, 3, 4]
