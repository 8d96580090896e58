"""Figures of trained models against counting by hand, and on models whose answer is known."""

from __future__ import annotations

import gzip
import math

import pytest
import torch
from headscope.models import HookedModel
from headscope.training.corpus import from_path
from headscope.training.evaluation import _bigram_nats, baselines, bits_per_byte, induction, split_loss, token_losses
from headscope.training.presets import build
from headscope.training.tokens import train_tokenizer


@pytest.fixture(scope="module")
def model() -> HookedModel:
    torch.manual_seed(0)
    return HookedModel(build("lrkv", "tiny")).eval()


def test_bits_per_byte_by_the_formula():
    # 1000 tokens at 2.389 nats over 4.776 bytes a token.
    assert bits_per_byte(1000 * 2.389, 4776) == pytest.approx(2.389 / math.log(2) / 4.776)
    with pytest.raises(ValueError, match="n_bytes"):
        bits_per_byte(1.0, 0)


@pytest.mark.parametrize("length", [5, 31, 32, 33, 48, 49, 100, 255])
def test_every_token_is_scored_once_with_half_a_window_before_it(model, length):
    row = torch.randint(300, (length,))
    losses = token_losses(model, row, batch_size=3)
    assert losses.shape == (length - 1,)
    assert torch.isfinite(losses).all()
    short = token_losses(model, row[:32])
    torch.testing.assert_close(losses[: min(31, length - 1)], short[: length - 1], rtol=1e-4, atol=1e-5)
    if length > 40:
        # Token 40 in the first window that holds it, which starts at 16: 24 tokens of context.
        start = 16
        window = row[start : start + 32]
        expected = model(window, return_type="loss", loss_per_token=True)[0, 40 - start - 1]
        torch.testing.assert_close(losses[39], expected, rtol=1e-4, atol=1e-5)


def test_split_loss_is_the_mean_over_the_same_windows(model):
    row = torch.randint(300, (500,))
    assert split_loss(model, row, windows=4) == split_loss(model, row, windows=4)
    starts = (0, 156, 312, 468)
    with torch.no_grad():
        expected = torch.stack([model(row[s : s + 32], return_type="loss") for s in starts]).mean()
    assert split_loss(model, row, windows=4) == pytest.approx(float(expected), rel=1e-5)


def test_induction_scores_are_attention_to_what_followed_last_time(model):
    row = torch.randint(300, (1000,)) // 3  # tokens of a text, no more than a third of the vocabulary
    found = induction(model, row, seed=3, samples=4)
    block = row[torch.randint(1000, (4, 16), generator=torch.Generator().manual_seed(3))]
    tokens = torch.cat((block, block), dim=1)
    logits, cache = model.run_with_cache(tokens)
    pattern = cache["blocks.1.attn.hook_pattern"][:, 2]
    by_hand = torch.stack([pattern[b, q, q - 15] for b in range(4) for q in range(16, 31)]).mean()
    assert found["scores"][1][2] == pytest.approx(float(by_hand), rel=1e-4)
    assert found["best"] == max(max(row) for row in found["scores"])
    assert found["first_loss"] > 4
    right = [int(logits[b, q].argmax()) == int(block[b, q - 15]) for b in range(4) for q in range(16, 31)]
    assert found["second_accuracy"] == pytest.approx(sum(right) / len(right))


def test_a_perfect_induction_head_scores_one(model):
    """Attention that is made to look behind the last occurrence scores 1 in that head and 0 beside it."""
    row = torch.randint(300, (500,))

    def look_back(pattern, hook):
        pattern = torch.zeros_like(pattern)
        positions = torch.arange(16, 32)
        pattern[:, 1, positions, positions - 15] = 1.0
        return pattern

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", look_back)]):
        found = induction(model, row, seed=0, samples=3)
    assert found["scores"][0] == pytest.approx([0, 1, 0, 0])
    assert found["best"] == pytest.approx(1)


def test_bigram_by_hand():
    train, test = torch.tensor([0, 1, 0, 1, 0, 2]), torch.tensor([0, 1, 2])
    # After 0 came 1 twice and 2 once; after 1 came 0 twice. Unigrams with one added: 4, 3, 2 of 9.
    p01, p12 = 0.5 * 2 / 3 + 0.5 * 3 / 9, 0.5 * 0 + 0.5 * 2 / 9
    assert _bigram_nats(train, test, 3, 0.5) == pytest.approx(-math.log(p01) - math.log(p12))


def test_baselines_are_of_the_held_out_text(text):
    corpus = from_path(text)
    train, held_out = corpus.texts("train"), corpus.texts("test")
    found = baselines(train, held_out, train_tokenizer(train, 300), 300)
    joined = "".join(held_out).encode()
    assert found["gzip"] == pytest.approx(8 * len(gzip.compress(joined, 9)) / len(joined))
    assert 1 < found["xz"] < found["bigram"] < 5
