"""Settings at equal cache: the largest that fits, and the next that does not."""

from __future__ import annotations

from headscope.budgets import equal_cache, largest_rank
from headscope.models import GroupedConfig, LRKVConfig, MLAConfig
from hypothesis import given
from hypothesis import strategies as st


def settings(attention, **options) -> dict[tuple[str, str, int], int]:
    return {(m.variant, m.fit, m.attention.rotary_width or 0): m.setting for m in equal_cache(attention, **options)}


def test_what_matches_the_papers_lrkv_at_2_5b():
    """2,236 elements a token and layer, 256 a group, 64 for a position channel."""
    found = settings(LRKVConfig(n_heads=18, d_head=128, rank=55))
    assert found == {
        ("lrkv", "within", 0): 55,
        ("gqa", "within", 0): 6,
        ("gqa", "above", 0): 9,
        ("mla", "within", 0): 2236,
        ("mla", "within", 64): 2172,
    }


def test_which_lrkv_matches_gqa_with_six_groups_of_eighteen_heads():
    assert settings(GroupedConfig(n_heads=18, d_head=128, n_kv_heads=6))["lrkv", "within", 0] == 35


def test_no_lrkv_fits_into_mqa():
    assert not any(variant == "lrkv" for variant, _, _ in settings(GroupedConfig(n_heads=18, d_head=128, n_kv_heads=1)))


@given(st.floats(0.001, 2), st.integers(1, 64), st.integers(1, 128))
def test_the_largest_rank_within_a_ratio_fits_and_the_next_does_not(ratio, heads, width):
    """Fractions in integers: ``width + heads · rank`` of ``heads · width``."""
    rank = largest_rank(ratio, heads, width)
    assert 0 <= rank <= width
    if rank:
        assert width + heads * rank <= heads * width * (ratio + 1e-8)
    if rank < width:
        assert width + heads * (rank + 1) > heads * width * (ratio - 1e-8)


@given(st.integers(1, 24), st.sampled_from([8, 10, 64]), st.data())
def test_nothing_exceeds_the_cache_and_one_more_would(heads, width, data):
    attention = LRKVConfig(n_heads=heads, d_head=width, rank=data.draw(st.integers(1, width)))
    elements = attention.cache_width()
    for match in equal_cache(attention):
        held = match.attention.cache_width()
        assert (held > elements) == (match.fit == "above")
        if match.variant == "lrkv":
            assert match.setting == attention.rank
        if match.variant == "mla":
            assert held == elements
    groups = [m.setting for m in equal_cache(attention) if m.variant in ("mha", "gqa", "mqa") and m.fit == "within"]
    fitting = [g for g in range(1, heads + 1) if heads % g == 0 and 2 * g * width <= elements]
    assert groups == fitting[-1:]


def test_a_deepseek_cache_is_that_of_two_and_a_quarter_groups():
    found = settings(MLAConfig(n_heads=128, d_latent=512, d_nope=128, d_rope=64, d_value_head=128))
    assert (found["gqa", "within", 0], found["gqa", "above", 0]) == (2, 4)
    assert found["mla", "within", 64] == 512
