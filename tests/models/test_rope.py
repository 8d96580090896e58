"""Rotary positions against transformers, complex numbers and the published numbers."""

from __future__ import annotations

import json
import math

import pytest
import torch
from headscope.models import (
    FrequencyFactors,
    HookedModel,
    LinearScaling,
    Llama3Scaling,
    MLAConfig,
    ModelConfig,
    ProportionalScaling,
    Rotary,
    YarnScaling,
)
from headscope.models.rope import rotate
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}

# rule of transformers, base, the same as a scaling of ours
RULES = {
    "default": ({"rope_type": "default"}, 1e4, None),
    "default-1e6": ({"rope_type": "default"}, 1e6, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, 1e4, LinearScaling(4.0)),
    "llama3": (LLAMA3, 5e5, Llama3Scaling(factor=8.0, original_context=8192)),
    "llama3-narrow": (
        LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 3.0, "factor": 32.0},
        5e5,
        Llama3Scaling(factor=32.0, original_context=8192, low_freq_factor=2.0, high_freq_factor=3.0),
    ),
    "yarn": (YARN, 1e4, YarnScaling(factor=40.0, original_context=4096)),
    "yarn-betas": (
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
        1e6,
        YarnScaling(factor=40.0, original_context=4096, beta_fast=16.0, beta_slow=2.0),
    ),
    "yarn-attention_factor": (
        YARN | {"attention_factor": 1.7},
        1e4,
        YarnScaling(factor=40.0, original_context=4096, attention_factor=1.7),
    ),
    "yarn-mscale": (
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.707},
        1e4,
        YarnScaling(factor=40.0, original_context=4096, mscale=1.0, mscale_all_dim=0.707),
    ),
    "yarn-not_truncated": (
        YARN | {"truncate": False},
        1.5e5,
        YarnScaling(factor=40.0, original_context=4096, truncate=False),
    ),
}


PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0}
RULES["proportional"] = (PROPORTIONAL, 1e4, ProportionalScaling(0.3, 2.0))


def llama(parameters: dict, base: float, width: int) -> LlamaConfig:
    original = parameters.get("original_max_position_embeddings", 2048)
    return LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=int(original * parameters.get("factor", 1.0)),
        rope_parameters=parameters | {"rope_theta": base},
    )


@pytest.mark.parametrize("width", [8, 64, 96])
@pytest.mark.parametrize("rule", RULES)
def test_frequencies_equal_transformers(rule: str, width: int):
    parameters, base, scaling = RULES[rule]
    config = llama(parameters, base, width)
    ours = Rotary(base=base, scaling=scaling)
    theirs = LlamaRotaryEmbedding(config)
    torch.testing.assert_close(ours.frequencies(width), theirs.inv_freq, rtol=1e-6, atol=0)
    assert ours.amplitude == pytest.approx(theirs.attention_scaling, rel=1e-12)
    if parameters["rope_type"] != "default":
        inv_freq, amplitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
        torch.testing.assert_close(ours.frequencies(width), inv_freq, rtol=1e-6, atol=0)
        assert ours.amplitude == pytest.approx(amplitude, rel=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_scaling_is_felt(rule: str):
    """The rules compared above differ from the plain frequencies: a scaling that is ignored would be noticed."""
    _, base, scaling = RULES[rule]
    plain, scaled = Rotary(base=base).frequencies(64), Rotary(base=base, scaling=scaling).frequencies(64)
    assert torch.equal(plain, scaled) == (scaling is None)


@pytest.mark.parametrize("rule", RULES)
def test_rotation_equals_transformers(rule: str):
    parameters, base, scaling = RULES[rule]
    q, k = torch.randn(2, 1, 4, 9, 64, generator=torch.Generator().manual_seed(0))  # [batch, head, pos, width]
    positions = torch.tensor([[0, 1, 2, 3, 10, 100, 1000, 2000, 2047]])
    cos, sin = LlamaRotaryEmbedding(llama(parameters, base, 64))(q, positions)
    rotary = Rotary(base=base, scaling=scaling)
    for x, theirs in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        ours = rotate(x.transpose(1, 2), positions, rotary).transpose(1, 2)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("all_dim", "expected"), [(1.0, 0.13523), (0.707, 0.11472)])
def test_published_yarn_scales(all_dim: float, expected: float):
    """DeepSeek-V3 and V2: ``m**2 / sqrt(128 + 64)``, and the same scale on the module that uses it."""
    scaling = YarnScaling(factor=40.0, original_context=4096, mscale=all_dim, mscale_all_dim=all_dim)
    assert scaling.softmax_factor * 192**-0.5 == pytest.approx(expected, abs=5e-6)
    assert scaling.amplitude == 1.0


def test_mla_scale_carries_yarns_factor():
    attention = MLAConfig(n_heads=1, d_latent=8, d_nope=128, d_rope=64, d_value_head=8)
    rotary = Rotary(scaling=YarnScaling(factor=40.0, original_context=4096, mscale=1.0, mscale_all_dim=1.0))
    model = HookedModel(ModelConfig(d_model=4, n_layers=1, d_vocab=3, n_ctx=4, attention=attention, positions=rotary))
    assert model.attention(0).scale == pytest.approx(0.13523, abs=5e-6)


def test_no_scaling_has_no_amplitude():
    assert Rotary().amplitude == Rotary(scaling=LinearScaling(3.0)).amplitude == 1.0
    assert YarnScaling(factor=1.0, original_context=8).amplitude == 1.0
    assert YarnScaling(factor=4.0, original_context=8).amplitude == pytest.approx(0.1 * math.log(4) + 1)
    assert YarnScaling(factor=4.0, original_context=8).softmax_factor == 1.0


def test_frequency_factors_divide():
    plain = Rotary().frequencies(6)
    scaled = Rotary(scaling=FrequencyFactors((1.0, 2.0, 8.0))).frequencies(6)
    torch.testing.assert_close(scaled, torch.stack([plain[0], plain[1] / 2, plain[2] / 8]), rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match=r"FrequencyFactors\.factors.*\(3\).*2"):
        Rotary(scaling=FrequencyFactors((1.0, 2.0))).frequencies(6)


# -- what a rotation is ---------------------------------------------------------------------------------------------------


def place(x: Tensor, position: int, rotary: Rotary) -> Tensor:
    return rotate(x.view(1, 1, 1, -1), torch.tensor([[position]]), rotary).flatten()


def vector(width: int, seed: int) -> Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    i=st.integers(0, 200),
    j=st.integers(0, 200),
    shift=st.integers(0, 200),
    interleaved=st.booleans(),
    width=st.sampled_from([2, 6, 10, 16]),
)
def test_scores_depend_on_the_difference_only(i: int, j: int, shift: int, interleaved: bool, width: int):
    rotary = Rotary(interleaved=interleaved)
    q, k = vector(width, 0), vector(width, 1)
    here = place(q, i, rotary) @ place(k, j, rotary)
    there = place(q, i + shift, rotary) @ place(k, j + shift, rotary)
    # float32 angles: 400 radians are known to 3e-5, and a score sums `width` products
    torch.testing.assert_close(here, there, rtol=0, atol=1e-4 * width)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scores_do_depend_on_the_difference(interleaved: bool):
    rotary = Rotary(interleaved=interleaved)
    q, k = vector(8, 0), vector(8, 1)
    scores = [float(place(q, 5, rotary) @ place(k, j, rotary)) for j in range(6)]
    assert min(abs(a - b) for n, a in enumerate(scores) for b in scores[:n]) > 1e-3


@pytest.mark.parametrize("position", [0, 1, 7, 100])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rule", ["default", "yarn", "llama3"])
def test_rotation_is_complex_multiplication(position: int, interleaved: bool, rule: str):
    _, base, scaling = RULES[rule]
    rotary = Rotary(base=base, interleaved=interleaved, scaling=scaling)
    x, theta = vector(8, 0), rotary.frequencies(8).double()
    pairs = x.view(4, 2) if interleaved else x.view(2, 4).T
    turned = torch.complex(pairs[:, 0], pairs[:, 1]) * torch.polar(torch.ones_like(theta), position * theta)
    pairs = torch.view_as_real(turned) * rotary.amplitude
    expected = pairs.flatten() if interleaved else pairs.T.flatten()
    torch.testing.assert_close(place(x, position, rotary), expected, rtol=0, atol=3e-5 if position else 1e-7)


def test_interleaved_is_half_split_permuted():
    x = torch.randn(2, 5, 3, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4], [3, 1, 4, 1, 5]])
    order = torch.cat((torch.arange(0, 10, 2), torch.arange(1, 10, 2)))
    half = rotate(x[..., order], positions, Rotary())
    together = rotate(x, positions, Rotary(interleaved=True))
    assert torch.equal(together[..., order], half)
    assert not torch.allclose(together, rotate(x, positions, Rotary()))


def test_rows_of_a_batch_have_their_own_positions():
    x = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    both = rotate(x, positions, Rotary())
    for row in range(2):
        assert torch.equal(both[row], rotate(x[row : row + 1], positions[row : row + 1], Rotary())[0])
    assert torch.equal(both[0, 0], x[0, 0])


@pytest.mark.parametrize("name", ["gqa-partial_rotary", "gqa-partial_interleaved", "mla", "mla-no_latent_norm"])
def test_columns_outside_the_rotary_width_stay(matrix, build, tokens, run_all, name: str):
    """Partial rotary turns the leading columns, MLA its trailing channel."""
    model = build(matrix[name])
    _, cache = run_all(model, tokens)
    q, turned = cache["blocks.0.attn.hook_q"], cache["blocks.0.attn.hook_rot_q"]
    moved = (q - turned).abs().amax((0, 1, 2)) > 0
    expected = [False] * 4 + [True] * 2 if name.startswith("mla") else [True] * 4 + [False] * 2
    assert moved.tolist() == expected


def column_pairs(planes, width: int) -> list[tuple[int, int]]:
    first, second = planes.pairs
    columns = list(range(width))
    return list(zip(columns[first], columns[second], strict=True))


def test_planes_pair_the_columns_that_turn_together(matrix, build):
    """Column pairs of a head's key, in the layout and at the offset that the variant uses."""
    expected = {
        "gqa": [(0, 2), (1, 3)],
        "gqa-interleaved": [(0, 1), (2, 3)],
        "gqa-partial_rotary": [(0, 2), (1, 3)],
        "gqa-partial_interleaved": [(0, 1), (2, 3)],
        "mla": [(4, 5)],
    }
    for name, pairs in expected.items():
        assert column_pairs(build(matrix[name]).attention(0).planes(), 8) == pairs
    assert build(matrix["mha-learned"]).attention(0).planes() is None


def test_a_probe_moves_within_its_plane(config, build):
    """Each unit column stays, once turned, in the plane that `planes` gives for it (or where it was)."""
    attn = build(config).attention(0)
    planes = attn.planes()
    if config.rotary is None:
        assert planes is None
        return
    partner = {}
    for (a, b), theta in zip(column_pairs(planes, config.attention.d_key), planes.theta.tolist(), strict=True):
        partner[a], partner[b] = (b, theta, 1), (a, theta, -1)
    eye = torch.eye(config.attention.d_key, dtype=torch.float64)
    turned = attn.turn(eye[None, None], torch.tensor([[3]]))[0, 0]
    expected = torch.zeros_like(eye)
    for column in range(len(eye)):
        if column not in partner:
            expected[column, column] = 1
            continue
        other, theta, sign = partner[column]
        expected[column, column] = planes.amplitude * math.cos(3 * theta)
        expected[column, other] = planes.amplitude * sign * math.sin(3 * theta)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)


# -- JSON and refusals ------------------------------------------------------------------------------------------------------

positive = st.floats(0.1, 100.0)
maybe = st.none() | positive
# Described first and built in the test: the run-time checker draws random numbers, which a strategy must not.
scalings = st.one_of(
    st.none(),
    st.tuples(st.just(LinearScaling), st.fixed_dictionaries({"factor": positive})),
    st.tuples(
        st.just(Llama3Scaling),
        st.fixed_dictionaries(
            {
                "factor": positive,
                "original_context": st.integers(1, 10**6),
                "low_freq_factor": st.floats(0.1, 1.0),
                "high_freq_factor": st.floats(1.5, 9.0),
            }
        ),
    ),
    st.tuples(
        st.just(YarnScaling),
        st.fixed_dictionaries(
            {
                "factor": st.floats(1.0, 100.0),
                "original_context": st.integers(1, 10**6),
                "attention_factor": maybe,
                "mscale": maybe,
                "mscale_all_dim": maybe,
                "truncate": st.booleans(),
            }
        ),
    ),
    st.tuples(
        st.just(FrequencyFactors),
        st.fixed_dictionaries({"factors": st.lists(positive, min_size=1).map(tuple)}),
    ),
)


@given(
    base=st.floats(1.5, 1e7),
    half=st.none() | st.integers(1, 64),
    interleaved=st.booleans(),
    scaling=scalings,
)
def test_json_round_trip(base, half, interleaved, scaling):
    rule = None if scaling is None else scaling[0](**scaling[1])
    rotary = Rotary(base=base, width=half and 2 * half, interleaved=interleaved, scaling=rule)
    assert Rotary.from_dict(json.loads(json.dumps(rotary.to_dict(), allow_nan=False))) == rotary


REFUSED = {
    "width-odd": (lambda: Rotary(width=3), r"width.*even.*3"),
    "width-0": (lambda: Rotary(width=0), r"width.*> 0.*0"),
    "width-negative": (lambda: Rotary(width=-2), r"width.*> 0.*-2"),
    "width-float": (lambda: Rotary(width=4.0), r"width.*4\.0"),
    "base-1": (lambda: Rotary(base=1.0), r"base.*> 1.*1\.0"),
    "base-nan": (lambda: Rotary(base=math.nan), r"base.*nan"),
    "base-inf": (lambda: Rotary(base=math.inf), r"base.*inf"),
    "linear-0": (lambda: LinearScaling(0.0), r"LinearScaling\.factor.*> 0.*0\.0"),
    "linear-nan": (lambda: LinearScaling(math.nan), r"LinearScaling\.factor.*nan"),
    "linear-inf": (lambda: LinearScaling(math.inf), r"LinearScaling\.factor.*inf"),
    "llama3-context": (lambda: Llama3Scaling(8.0, 0), r"Llama3Scaling\.original_context.*> 0.*0"),
    "llama3-ramp": (
        lambda: Llama3Scaling(8.0, 8192, 4.0, 4.0),
        r"low_freq_factor < high_freq_factor.*4\.0 and 4\.0",
    ),
    "yarn-factor": (lambda: YarnScaling(-1.0, 4096), r"YarnScaling\.factor.*> 0.*-1\.0"),
    "yarn-amplitude": (lambda: YarnScaling(4.0, 4096, attention_factor=0.0), r"attention_factor.*> 0.*0\.0"),
    "yarn-beta": (lambda: YarnScaling(4.0, 4096, beta_fast=0.0), r"YarnScaling\.beta_fast.*0\.0"),
    "factors-0": (lambda: FrequencyFactors((1.0, 0.0)), r"FrequencyFactors\.factors.*> 0"),
    "kind": (
        lambda: Rotary.from_dict({"scaling": {"kind": "ntk", "factor": 2.0}}),
        r"linear.*llama3.*yarn.*'ntk'",
    ),
    "no_kind": (lambda: Rotary.from_dict({"scaling": {"factor": 2.0}}), r"linear.*llama3.*yarn.*None"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals_name_field_and_range(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()
