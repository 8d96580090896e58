"""What cannot be is refused when it is written down; what can be survives JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import pytest
from headscope.models import (
    VARIANTS,
    ExpertsConfig,
    FrequencyFactors,
    GroupedConfig,
    HookedModel,
    LayerChanges,
    LRKVConfig,
    MLAConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
    QKNorm,
    Rotary,
)
from headscope.models.config import Arrangement
from headscope.models.hooked import n_parameters
from headscope.models.variant import attention_from_dict, register
from hypothesis import given
from hypothesis import strategies as st


def model(**changes: Any) -> ModelConfig:
    options = {"d_model": 16, "n_layers": 2, "d_vocab": 19, "n_ctx": 12, "attention": grouped()}
    return ModelConfig(**options | changes)


def grouped(**changes: Any) -> GroupedConfig:
    return GroupedConfig(**{"n_heads": 4, "d_head": 4} | changes)


def mla(**changes: Any) -> MLAConfig:
    return MLAConfig(**{"n_heads": 3, "d_latent": 8, "d_nope": 4, "d_rope": 2, "d_value_head": 4} | changes)


def lrkv(**changes: Any) -> LRKVConfig:
    return LRKVConfig(**{"n_heads": 4, "d_head": 4, "rank": 2} | changes)


def experts(**changes: Any) -> ExpertsConfig:
    return ExpertsConfig(**{"n_experts": 4, "n_active": 2, "d_mlp": 5} | changes)


REFUSED = {
    # grouped
    "n_heads-0": (lambda: grouped(n_heads=0), r"attention\.n_heads.*> 0.*0"),
    "n_heads-float": (lambda: grouped(n_heads=4.0), r"attention\.n_heads.*integer.*4\.0"),
    "n_heads-bool": (lambda: grouped(n_heads=True), r"attention\.n_heads.*integer.*True"),
    "n_heads-text": (lambda: grouped(n_heads="4"), r"attention\.n_heads.*integer.*'4'"),
    "d_head-0": (lambda: grouped(d_head=0), r"attention\.d_head.*> 0.*0"),
    "groups-3_of_4": (lambda: grouped(n_kv_heads=3), r"n_kv_heads.*n_heads=4.*\[1, 2, 4\].*3"),
    "groups-8_of_4": (lambda: grouped(n_kv_heads=8), r"n_kv_heads.*\[1, 2, 4\].*8"),
    "groups-0": (lambda: grouped(n_kv_heads=0), r"n_kv_heads.*> 0.*0"),
    "groups-float": (lambda: grouped(n_kv_heads=2.0), r"n_kv_heads.*integer.*2\.0"),
    "scale-0": (lambda: grouped(scale=0.0), r"attention\.scale.*> 0.*0\.0"),
    "scale-nan": (lambda: grouped(scale=math.nan), r"attention\.scale.*finite.*nan"),
    "scale-inf": (lambda: grouped(scale=math.inf), r"attention\.scale.*finite.*inf"),
    "qk_norm-where": (lambda: QKNorm("between"), r"qk_norm\.where.*'before' or 'after'.*'between'"),
    "qk_norm-eps": (lambda: QKNorm(eps=-1e-6), r"qk_norm\.eps.*>= 0.*-1e-06"),
    "qk_norm-eps_nan": (lambda: QKNorm(eps=math.nan), r"qk_norm\.eps.*nan"),
    "qk_norm-not_one": (lambda: grouped(qk_norm="before"), r"qk_norm.*'before'"),
    # LRKV
    "rank-0": (lambda: lrkv(rank=0), r"attention\.rank.*1 to d_head=4.*0.*n_kv_heads=1"),
    "rank-above": (lambda: lrkv(rank=5), r"attention\.rank.*1 to d_head=4.*5"),
    "rank-float": (lambda: lrkv(rank=2.0), r"attention\.rank.*integer.*2\.0"),
    "rank-bool": (lambda: lrkv(rank=True), r"attention\.rank.*integer.*True"),
    "rank-negative": (lambda: lrkv(rank=-1), r"attention\.rank.*-1"),
    "lrkv-d_head": (lambda: lrkv(d_head=-4), r"attention\.d_head.*> 0.*-4"),
    # MLA
    "d_latent-0": (lambda: mla(d_latent=0), r"attention\.d_latent.*> 0.*0"),
    "d_latent-float": (lambda: mla(d_latent=8.0), r"attention\.d_latent.*integer.*8\.0"),
    "d_q_latent-0": (lambda: mla(d_q_latent=0), r"attention\.d_q_latent.*> 0.*0"),
    "d_nope-0": (lambda: mla(d_nope=0), r"attention\.d_nope.*> 0.*0"),
    "d_value_head-0": (lambda: mla(d_value_head=0), r"attention\.d_value_head.*> 0.*0"),
    "d_rope-odd": (lambda: mla(d_rope=3), r"attention\.d_rope.*even.*3"),
    "d_rope-negative": (lambda: mla(d_rope=-2), r"attention\.d_rope.*>= 0.*-2"),
    "d_rope-bool": (lambda: mla(d_rope=False), r"attention\.d_rope.*integer.*False"),
    "latent_eps": (lambda: mla(latent_eps=-1.0), r"attention\.latent_eps.*>= 0.*-1\.0"),
    # the parts around attention
    "norm-kind": (lambda: NormConfig(kind="batch"), r"norm\.kind.*'rms', 'layer'.*'batch'"),
    "norm-eps": (lambda: NormConfig(eps=-1e-5), r"norm\.eps.*>= 0.*-1e-05"),
    "norm-eps_nan": (lambda: NormConfig(eps=math.nan), r"norm\.eps.*nan"),
    "norm-eps_inf": (lambda: NormConfig(eps=math.inf), r"norm\.eps.*inf"),
    "mlp-act": (lambda: MLPConfig(d_mlp=4, act="swish"), r"mlp\.act.*'gelu'.*'silu'.*'swish'"),
    "mlp-width": (lambda: MLPConfig(d_mlp=0), r"mlp\.d_mlp.*> 0.*0"),
    "mlp-float": (lambda: MLPConfig(d_mlp=4.5), r"mlp\.d_mlp.*integer.*4\.5"),
    # the model
    "d_model-0": (lambda: model(d_model=0), r"d_model.*> 0.*0"),
    "n_layers-0": (lambda: model(n_layers=0), r"n_layers.*> 0.*0"),
    "d_vocab-float": (lambda: model(d_vocab=19.0), r"d_vocab.*integer.*19\.0"),
    "n_ctx-bool": (lambda: model(n_ctx=True), r"n_ctx.*integer.*True"),
    "positions": (lambda: model(positions="alibi"), r"positions.*Rotary, 'learned' or 'none'.*'alibi'"),
    "attention-none": (lambda: model(attention=None), r"attention.*None"),
    "mlp-not_one": (lambda: model(mlp="gated"), r"mlp.*MLPConfig.*'gated'"),
    "norm-not_one": (lambda: model(norm="rms"), r"norm.*NormConfig.*'rms'"),
    "rotary-odd_head": (lambda: model(attention=grouped(d_head=5)), r"positions\.width.*even.*5"),
    "rotary-too_wide": (lambda: model(positions=Rotary(width=6)), r"positions\.width.*at most.*4.*6"),
    "rotary-mla_width": (
        lambda: model(attention=mla(), positions=Rotary(width=4)),
        r"positions\.width.*2.*4",
    ),
    "softcap-0": (lambda: grouped(softcap=0.0), r"attention\.softcap.*> 0.*0\.0"),
    "window-0": (lambda: grouped(window=0), r"attention\.window.*> 0.*0"),
    "slopes-3_of_4": (lambda: grouped(slopes=(1.0, 0.5, 0.25)), r"attention\.slopes.*4 finite numbers"),
    "qk_norm-span": (lambda: QKNorm(span="layer"), r"qk_norm\.span.*'head' or 'all'.*'layer'"),
    "qk_norm-span_after": (lambda: QKNorm("after", span="all"), r"qk_norm\.where.*'before'"),
    "lrkv-span": (lambda: lrkv(qk_norm=QKNorm(span="all")), r"qk_norm\.span.*'head'.*lrkv"),
    "arrangement": (lambda: model(arrangement="reversed"), r"arrangement.*'sandwich'.*'reversed'"),
    "embed_scale-0": (lambda: model(embed_scale=0.0), r"embed_scale.*> 0.*0\.0"),
    "logit_softcap-nan": (lambda: model(logit_softcap=math.nan), r"logit_softcap.*finite.*nan"),
    "by_layer-1_of_2": (lambda: model(by_layer=(None,)), r"by_layer should have 2 entries.*1"),
    "by_layer-not_one": (lambda: model(by_layer=(None, 3)), r"by_layer\[1\] should be LayerChanges.*3"),
    "by_layer-heads": (
        lambda: model(by_layer=(None, LayerChanges(attention=grouped(bias=True)))),
        r"by_layer\[1\]\.attention may differ .* window, scale, d_head, n_kv_heads alone",
    ),
    "by_layer-keys_of_none_before": (
        lambda: model(by_layer=(LayerChanges(keys_from=1), None)),
        r"by_layer\[0\]\.keys_from should be an earlier layer",
    ),
    "by_layer-keys_of_one_without": (
        lambda: model(n_layers=3, by_layer=(None, LayerChanges(keys_from=0), LayerChanges(keys_from=1))),
        r"by_layer\[2\]\.keys_from is 1, which has no keys of its own: name layer 0",
    ),
    "by_layer-keys_of_another_shape": (
        lambda: model(by_layer=(None, LayerChanges(keys_from=0, attention=grouped(n_kv_heads=2)))),
        r"by_layer\[1\]\.keys_from is 0, whose keys are of another shape or at other positions",
    ),
    "by_layer-keys_at_other_positions": (
        lambda: model(by_layer=(None, LayerChanges(keys_from=0, positions=Rotary(base=9.0)))),
        r"by_layer\[1\]\.keys_from is 0, whose keys are of another shape or at other positions",
    ),
    "by_layer-learned": (
        lambda: model(positions="learned", by_layer=(None, LayerChanges(positions=Rotary()))),
        r"by_layer\[1\]\.positions: learned ones belong to the whole model",
    ),
    "by_layer-mlp": (
        lambda: model(by_layer=(LayerChanges(mlp=MLPConfig(d_mlp=3)), None)),
        r"by_layer\[0\]\.mlp: the model has none",
    ),
    "by_layer-rotary": (
        lambda: model(by_layer=(LayerChanges(positions=Rotary(width=6)), None)),
        r"positions\.width.*at most.*4.*6",
    ),
    "experts-active": (lambda: experts(n_active=5), r"mlp\.n_active should be at most 4 but got 5"),
    "experts-groups": (lambda: experts(n_groups=3), r"mlp\.n_groups should divide n_experts=4.*3"),
    "experts-active_groups": (lambda: experts(n_groups=2, n_active_groups=3), r"mlp\.n_groups.*n_active_groups=3"),
    "experts-few": (lambda: experts(n_groups=2, n_active=3), r"mlp\.n_active should be at most 2 but got 3"),
    "experts-scores": (lambda: experts(scores="linear"), r"mlp\.scores.*'softmax', 'sigmoid'.*'linear'"),
    "experts-act": (lambda: experts(act="swish"), r"mlp\.act.*'swish'"),
    "rotary-factors": (
        lambda: model(positions=Rotary(scaling=FrequencyFactors((1.0, 2.0, 3.0)))),
        r"FrequencyFactors\.factors.*\(2\).*3",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_when_written_down(build, message: str):
    with pytest.raises(ValueError, match=message):
        build()


# -- reading descriptions -----------------------------------------------------------------------------------------------------


def described(**changes: Any) -> dict[str, Any]:
    return model().to_dict() | changes


WRONG = {
    "unknown_field": (described(width=3), "width"),
    "missing_field": ({k: v for k, v in described().items() if k != "d_model"}, "d_model"),
    "no_attention": ({k: v for k, v in described().items() if k != "attention"}, "attention"),
    "unknown_variant": (
        described(attention={"variant": "sparse", "n_heads": 4}),
        r"gqa.*lrkv.*mha.*mla.*mqa.*'sparse'",
    ),
    "no_variant": (described(attention={"n_heads": 4, "d_head": 4}), r"attention\.variant.*None"),
    "variant_against_fields": (
        described(attention={"variant": "mqa", "n_heads": 4, "d_head": 4, "n_kv_heads": 2}),
        "'mqa'.*'gqa'",
    ),
    "variant_without_groups": (
        described(attention={"variant": "gqa", "n_heads": 4, "d_head": 4}),
        "'gqa'.*'mha'",
    ),
    "field_of_another_variant": (
        described(attention={"variant": "mha", "n_heads": 4, "d_head": 4, "rank": 2}),
        "rank",
    ),
    "missing_in_attention": (described(attention={"variant": "lrkv", "n_heads": 4, "d_head": 4}), "rank"),
    "unknown_in_mlp": (described(mlp={"d_mlp": 4, "experts": 8}), "experts"),
    "unknown_in_norm": (described(norm={"kind": "rms", "centre": True}), "centre"),
    "unknown_in_positions": (described(positions={"base": 1e4, "ntk": 2}), "ntk"),
    "unknown_in_qk_norm": (
        described(attention={"variant": "mha", "n_heads": 4, "d_head": 4, "qk_norm": {"where": "before", "bias": 1}}),
        "bias",
    ),
    "unknown_scaling": (described(positions={"scaling": {"kind": "dynamic"}}), r"linear.*yarn.*'dynamic'"),
    "unknown_in_scaling": (
        described(positions={"scaling": {"kind": "linear", "factor": 2.0, "beta": 1}}),
        "beta",
    ),
    "positions_text": (described(positions="alibi"), "'alibi'"),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("data", "message"), WRONG.values(), ids=WRONG)
def test_wrong_description_is_a_value_error(data: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict(data)


def through_json(config: ModelConfig) -> ModelConfig:
    return ModelConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))


def test_json_round_trip_of_the_matrix(config: ModelConfig):
    assert through_json(config) == config
    assert hash(through_json(config)) == hash(config)
    assert config.to_dict()["attention"]["variant"] == config.attention.variant


def test_reading_changes_no_description(config: ModelConfig):
    data = config.to_dict()
    copy = json.loads(json.dumps(data))
    ModelConfig.from_dict(data)
    assert json.loads(json.dumps(data)) == copy


size, eps = st.integers(1, 9), st.floats(0, 1)
norms = st.builds(NormConfig, kind=st.sampled_from(["rms", "layer"]), eps=eps)
mlps = st.none() | st.builds(
    MLPConfig,
    d_mlp=size,
    act=st.sampled_from(["silu", "gelu", "gelu_new", "relu", "relu2"]),
    gated=st.booleans(),
    bias=st.booleans(),
)
qk_norms = st.none() | st.builds(QKNorm, where=st.sampled_from(["before", "after"]), gain=st.booleans(), eps=eps)
positive = st.none() | st.floats(0.01, 10)
common = {"bias": st.booleans(), "output_bias": st.booleans(), "scale": positive, "softcap": positive}


@st.composite
def attentions(draw: st.DrawFn) -> Any:
    options = {name: draw(strategy) for name, strategy in common.items()}
    groups, width = draw(size), 2 * draw(size)
    heads = groups * draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["grouped", "lrkv", "mla"]))
    if kind == "grouped":
        options |= {"n_kv_heads": groups, "d_head": width, "qk_norm": draw(qk_norms)}
        return partial(GroupedConfig, n_heads=heads, **options)
    if kind == "lrkv":
        rank = draw(st.integers(1, width))
        return partial(LRKVConfig, n_heads=heads, d_head=width, rank=rank, qk_norm=draw(qk_norms), **options)
    return partial(
        MLAConfig,
        n_heads=heads,
        d_latent=draw(size),
        d_nope=draw(size),
        d_rope=2 * draw(size),
        d_value_head=draw(size),
        d_q_latent=draw(st.none() | size),
        latent_eps=draw(eps),
        latent_norm=draw(st.booleans()),
        **options,
    )


model_fields = st.fixed_dictionaries(
    {
        "d_model": size,
        "n_layers": size,
        "d_vocab": size,
        "n_ctx": size,
        "attention": attentions(),
        "mlp": mlps,
        "norm": norms,
        "positions": st.sampled_from(["learned", "none"])
        | st.builds(Rotary, base=st.floats(2, 1e7), interleaved=st.booleans()),
        "tie_embeddings": st.booleans(),
        "arrangement": st.sampled_from(get_args(Arrangement)),
        "embed_scale": st.floats(0.1, 9),
        "embed_norm": st.booleans(),
        "unembed_bias": st.booleans(),
        "logit_softcap": positive,
    }
)


def built(fields: dict[str, Any]) -> ModelConfig:
    """Build what was drawn; not in the strategy, since the run-time checker draws random numbers."""
    return ModelConfig(**fields | {"attention": fields["attention"]()})


@given(model_fields, st.data())
def test_json_round_trip(fields: dict[str, Any], data: st.DataObject):
    config = built(fields)
    assert through_json(config) == config
    windows = data.draw(st.lists(st.none() | size, min_size=config.n_layers, max_size=config.n_layers))
    mixed = config.with_(
        by_layer=tuple(w and LayerChanges(attention=replace(config.attention, window=w)) for w in windows)
    )
    assert through_json(mixed) == mixed
    assert [mixed.at(layer).attention.window for layer in range(config.n_layers)] == windows


def test_layers_that_share_keys_are_described_but_not_built():
    shared = LayerChanges(keys_from=0)
    config = model(n_layers=3, by_layer=(None, LayerChanges(attention=grouped(window=3)), shared))
    assert through_json(config) == config
    assert [config.keys_of(layer) for layer in range(3)] == [0, 1, 0]
    assert config.n_layers_with_keys == 2
    assert config.cache_bytes() == 2 * 2 * (2 * 4 * 4)  # two layers keep a key and a value for each of 4 heads of 4
    assert config.at(2) == config.at(0)
    with pytest.raises(ValueError, match="take their keys and values from other layers: 2"):
        HookedModel(config)
    alike = config.with_(by_layer=())
    assert n_parameters(alike) - n_parameters(config) == 2 * 4 * 4 * 16
    assert config.with_attention(grouped(n_kv_heads=2)).n_layers_with_keys == 3


def test_layers_with_heads_of_another_width_are_described_but_not_built():
    config = model(by_layer=(None, LayerChanges(attention=grouped(d_head=6, n_kv_heads=2))))
    assert through_json(config) == config
    assert config.cache_bytes() == 2 * (2 * 4 * 4 + 2 * 2 * 6)
    assert n_parameters(config) - n_parameters(model()) == 16 * (2 * 4 * 6 + 2 * 2 * 6 - 4 * 4 * 4)
    with pytest.raises(ValueError, match="heads differ in width or number of groups"):
        HookedModel(config)


@given(model_fields)
def test_groups_partition_the_heads(fields: dict[str, Any]):
    attention = built(fields).attention
    groups = attention.head_to_group
    assert len(groups) == attention.n_heads
    assert groups == sorted(groups)
    assert {groups.count(group) for group in range(attention.n_groups)} == {attention.n_heads // attention.n_groups}


# -- small things ---------------------------------------------------------------------------------------------------------------


def test_with_checks_again():
    config = model()
    assert config.with_(n_layers=3).n_layers == 3
    assert config.n_layers == 2
    with pytest.raises(ValueError, match=r"n_layers.*-1"):
        config.with_(n_layers=-1)
    with pytest.raises(ValueError, match=r"positions\.width"):
        config.with_(positions=Rotary(width=8))


def test_a_variant_is_registered_once():
    assert set(VARIANTS) == {"mha", "gqa", "mqa", "mla", "lrkv"}
    with pytest.raises(ValueError, match=r"'lrkv'.*twice"):
        register(LRKVConfig)


def test_description_of_attention_alone():
    for attention in (
        grouped(),
        grouped(n_kv_heads=2),
        grouped(n_kv_heads=1),
        mla(),
        lrkv(qk_norm=QKNorm("after")),
    ):
        assert attention_from_dict(attention.to_dict()) == attention


def test_a_single_head_is_mha_by_name():
    assert attention_from_dict({"variant": "mha", "n_heads": 1, "d_head": 4}).variant == "mha"
