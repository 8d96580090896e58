"""Needles: what is measured against the pattern itself, and a model whose heads are known."""

from __future__ import annotations

import headscope as hs
import pytest
from headscope.probing.needle import _one, _pair


@pytest.fixture(scope="module")
def found():
    return hs.needle("lrkv", distances=(16, 48), samples=24)


def test_the_induction_heads_find_it(found):
    """Four heads of layer 3 carry induction (docs/interventions.md); they are the ones that look at the needle."""
    best = found.table.groupby(["layer", "head"])["mass"].mean().sort_values(ascending=False)
    assert set(best.index[:3]) <= {(3, 2), (3, 3), (3, 4), (3, 5)}
    assert found.table["mass"].between(0, 1).all()


def test_attention_is_the_patterns(found):
    from headscope.interventions.tasks import retrieval
    from headscope.training.corpus import documents

    model = hs.load("lrkv")
    encoded = model.tokenizer.backend_tokenizer.encode_batch(documents(None)[:5], add_special_tokens=False)
    import torch

    row = torch.tensor([token for one in encoded for token in one.ids])
    sample = retrieval(row, 256, 1, 3, (16,), (4,)).samples[0]
    start, values = _pair(sample)
    assert sample.right.tokens[start] == sample.right.tokens[-1]
    assert sample.right.tokens[start + 1] == sample.right.answers[0]
    assert len(values) == 5
    mass, _ = _one(model, sample)
    _, seen = model.run_with_cache(torch.tensor([sample.right.tokens]))
    for layer in range(4):
        wanted = seen[f"blocks.{layer}.attn.hook_pattern"][0, :, -1, start : start + 2].sum(-1)
        assert mass[layer].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


def test_even_attention_is_two_of_all_positions(found):
    rows = found.table[found.table["distance"] == 16]
    assert 2 / 32 < rows["even"].iloc[0] < 2 / 17


def test_pictures_are_one_a_distance(found):
    assert set(found.pictures()) == {"needle-16.png", "needle-48.png"}
    ax = found.plot(16).axes[0]
    rows = found.table[(found.table["distance"] == 16) & found.table["significant"] & (found.table["effect"] > 0)]
    assert sorted(map(tuple, ax.lines[0].get_xydata().tolist())) == sorted(
        zip(rows["head"] + 0.5, rows["layer"] + 0.5, strict=True)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"distances": (8, 32), "samples": 3}, "at least 2 a distance, 4"), ({"distances": (9999,)}, "no distance fits")],
)
def test_needles_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        hs.needle("lrkv", **options)
