"""Edits against the same thing worked out by hand, on all five variants; the model afterwards as before."""

from __future__ import annotations

import pytest
import torch
from headscope.interventions import PATHS, Scale, Zero, apply
from headscope.models import GroupedConfig, HookedModel, LRKVConfig, MLAConfig, ModelConfig, Rotary

ATTENTION = {
    "mha": GroupedConfig(n_heads=4, d_head=6),
    "gqa": GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6),
    "mqa": GroupedConfig(n_heads=4, n_kv_heads=1, d_head=6),
    "mla": MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3),
    "lrkv": LRKVConfig(n_heads=4, d_head=6, rank=2),
}
TOKENS = torch.tensor([[1, 5, 2, 5, 3, 1, 0], [4, 4, 6, 1, 2, 2, 5]])


@pytest.fixture(params=ATTENTION)
def model(request) -> HookedModel:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=16, n_layers=2, d_vocab=7, n_ctx=16, attention=ATTENTION[request.param], positions=Rotary(base=100.0)
    )
    return HookedModel(config).double().eval()


def paths_of(model: HookedModel) -> list[str]:
    return [path for path in PATHS if f"blocks.0.attn.hook_{path}" in model.hook_dict]


@torch.no_grad()
def test_zeroing_a_heads_output_takes_its_result_away(model):
    """Zero head 1 = attention output - z_1 W_O[1]; cutting columns of the projected output is something else."""
    name = "blocks.0.hook_attn_out"
    _, clean = model.run_with_cache(TOKENS)
    with apply(model, Zero(path="z", layers=(0,), heads=(1,))):
        _, edited = model.run_with_cache(TOKENS)
    expected = clean[name] - clean["blocks.0.attn.hook_z"][:, :, 1] @ model.attention(0).W_O[1]
    torch.testing.assert_close(edited[name], expected)
    wrong = clean[name].clone()
    wrong[..., 4:8] = 0
    assert not torch.allclose(expected, wrong)


@torch.no_grad()
def test_every_path_changes_what_lies_behind_it_and_nothing_before(model):
    clean = model(TOKENS)
    for path in paths_of(model):
        with apply(model, Scale(path=path, layers=(1,), factor=0.5)):
            edited, cache = model.run_with_cache(TOKENS)
        assert not torch.allclose(edited, clean), path
        assert torch.equal(
            cache["blocks.0.hook_resid_post"], model.run_with_cache(TOKENS)[1]["blocks.1.hook_resid_pre"]
        )


@torch.no_grad()
def test_positions_are_edited_alone(model):
    with apply(model, Zero(path="z", layers=(0,), heads=(0, 2), positions=(3,))):
        _, edited = model.run_with_cache(TOKENS)
    _, clean = model.run_with_cache(TOKENS)
    got, was = edited["blocks.0.attn.hook_z"], clean["blocks.0.attn.hook_z"].clone()
    was[:, 3, [0, 2]] = 0
    assert torch.equal(got, was)


@torch.no_grad()
def test_an_only_group_moves_every_query_head():
    """MQA: ablating group 0 changes all query heads."""
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, n_layers=1, d_vocab=7, n_ctx=16, attention=ATTENTION["mqa"])
    model = HookedModel(config).double()
    _, clean = model.run_with_cache(TOKENS)
    with apply(model, Zero(path="k", heads=(0,))):
        _, edited = model.run_with_cache(TOKENS)
    moved = (clean["blocks.0.attn.hook_z"] - edited["blocks.0.attn.hook_z"]).abs().amax((0, 1, 3))
    assert (moved > 1e-3).all()


def test_without_private_parts_mqa_says_why(model):
    if model.config.attention.variant == "lrkv":
        return
    with (
        pytest.raises(ValueError, match=f"{model.config.attention.variant} has no path 'k_private'"),
        apply(model, Zero(path="k_private")),
    ):
        pass


@torch.no_grad()
def test_silencing_all_private_parts_leaves_mqa(model):
    """LRKV without its residuals is the MQA model of its shared projections."""
    if model.config.attention.variant != "lrkv":
        return
    config = model.config.with_(attention=ATTENTION["mqa"])
    shared = HookedModel(config).double()
    shared.load_state_dict(
        {
            name.replace(".shared.", "."): value
            for name, value in model.state_dict().items()
            if not name.endswith((".down.weight", ".B"))
        }
    )
    with apply(model, Zero(path="k_private"), Zero(path="v_private")):
        silenced = model(TOKENS)
    torch.testing.assert_close(silenced, shared(TOKENS), rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_model_is_as_it_was_also_after_an_exception(model):
    clean = model(TOKENS)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    model.add_hook("blocks.0.attn.hook_z", lambda z, hook: seen.append(1))
    hooks = {name: (len(p.fwd_hooks), len(p.bwd_hooks)) for name, p in model.hook_dict.items()}
    with pytest.raises(IndexError, match="head 9 does not exist"), apply(model, Zero(path="z", heads=(9,))):
        model(TOKENS)
    with apply(model, Zero(path="z")), apply(model, Scale(path="q", factor=2.0)):
        model(TOKENS)
    assert {name: (len(p.fwd_hooks), len(p.bwd_hooks)) for name, p in model.hook_dict.items()} == hooks
    assert len(seen) >= 1
    assert torch.equal(model(TOKENS), clean)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


@torch.no_grad()
def test_edits_compose_in_order(model):
    with apply(model, Scale(path="z", factor=2.0), Scale(path="z", factor=0.25)):
        twice = model(TOKENS)
    with apply(model, Scale(path="z", factor=0.5)):
        once = model(TOKENS)
    torch.testing.assert_close(twice, once)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Zero(path="keys"), "path should be one of"),
        (lambda: Zero(path="k_shared", heads=(1,)), "shared by all heads"),
        (lambda: Scale(path="z", factor=float("nan")), "factor should be finite"),
    ],
)
def test_impossible_edits_are_refused_when_built(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_a_missing_layer_is_named(model):
    with pytest.raises(IndexError, match="layers 0–1"), apply(model, Zero(path="z", layers=(2,))):
        pass
