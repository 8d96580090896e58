"""Reading and editing through hooks: what is captured, what is left behind, whose hooks fire."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack

import pytest
import torch
from headscope.models import HookedModel, ModelConfig
from torch import Tensor
from transformer_lens import ActivationCache

Z0, PATTERN0, K0 = "blocks.0.attn.hook_z", "blocks.0.attn.hook_pattern", "blocks.0.attn.hook_k"


def expected_names(config: ModelConfig) -> set[str]:
    """Return TransformerLens's names and headscope's additions, from the configuration alone."""
    attention = config.attention
    names = {"hook_embed", "ln_final.hook_scale", "ln_final.hook_normalized"}
    names |= {"hook_pos_embed"} if config.positions == "learned" else set()
    attn = ["q", "k", "v", "attn_scores", "pattern", "z", "result"]
    attn += ["rot_q", "rot_k"] if config.rotary else []
    if getattr(attention, "qk_norm", None):
        attn += ["q_normed", "k_normed"]
    if attention.variant == "lrkv":
        attn += ["k_shared", "k_coords", "k_private", "v_shared", "v_coords", "v_private"]
    if attention.variant == "mla":
        attn += ["latent"] + (["k_rot"] if attention.d_rope else []) + (["q_latent"] if attention.d_q_latent else [])
    block = ["hook_resid_pre", "hook_attn_out", "hook_resid_post", "ln1.hook_scale", "ln1.hook_normalized"]
    block += [f"attn.hook_{name}" for name in attn]
    if config.mlp:
        block += ["hook_resid_mid", "hook_mlp_out", "ln2.hook_scale", "ln2.hook_normalized"]
        block += ["mlp.hook_pre", "mlp.hook_post"] + (["mlp.hook_pre_linear"] if config.mlp.gated else [])
    return names | {f"blocks.{layer}.{name}" for layer in range(config.n_layers) for name in block}


def test_names(model: HookedModel):
    names = set(model.hook_dict)
    assert expected_names(model.config) <= names
    inner = {name for name in names - expected_names(model.config) if "_norm.hook_" not in name}
    assert inner == set()


def test_every_hook_point_fires_once(model: HookedModel, tokens):
    fired: list[str] = []

    def count(tensor, hook):
        fired.append(hook.name)

    model.run_with_hooks(tokens, fwd_hooks=[(lambda name: True, count)])
    assert sorted(fired) == sorted(model.hook_dict)


def test_an_edit_at_any_hook_point_reaches_the_logits(model: HookedModel, tokens):
    with torch.no_grad():
        plain = model(tokens)
        generator = torch.Generator().manual_seed(0)

        def disturb(tensor, hook):
            return tensor + torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)

        for name in model.hook_dict:
            edited = model.run_with_hooks(tokens, fwd_hooks=[(name, disturb)])
            assert (edited - plain).abs().max() > 1e-6, name
        assert torch.equal(model(tokens), plain)


# -- ActivationCache ----------------------------------------------------------------------------------------------------


def run_with_cache(model: HookedModel, tokens: Tensor, **options) -> tuple[Tensor, ActivationCache]:
    with torch.no_grad():
        return model.run_with_cache(tokens, **options)


def test_cache_is_an_activation_cache(model: HookedModel, tokens, close):
    logits, cache = run_with_cache(model, tokens)
    assert isinstance(cache, ActivationCache)
    assert torch.equal(cache["q", 0], cache["blocks.0.attn.hook_q"])
    assert torch.equal(cache["q", -1], cache["blocks.1.attn.hook_q"])
    assert torch.equal(cache["pattern", 1], cache["blocks.1.attn.hook_pattern"])
    assert torch.equal(cache["resid_post", 0], cache["resid_pre", 1])
    with torch.no_grad():
        close(logits, model(tokens), 1e-12)  # not bitwise: an unwatched pattern is never written out


def test_residual_stream_decomposes(model: HookedModel, tokens, close):
    _, cache = run_with_cache(model, tokens)
    final = cache["resid_post", -1]
    parts, labels = cache.decompose_resid(return_labels=True)
    per_layer = 1 + (model.config.mlp is not None)
    assert len(labels) == len(parts) == 1 + (model.config.positions == "learned") + 2 * per_layer
    close(parts.sum(0), final)
    close(cache.decompose_resid(1).sum(0), cache["resid_pre", 1])
    close(cache.get_full_resid_decomposition(expand_neurons=False).sum(0), final)
    if model.config.mlp is not None:
        close(cache.decompose_resid(1, mlp_input=True).sum(0), cache["blocks.1.hook_resid_mid"])
        close(cache.get_full_resid_decomposition(expand_neurons=True).sum(0), final)


def test_head_results_decompose(model: HookedModel, tokens, close):
    _, cache = run_with_cache(model, tokens)
    assert not any("hook_result" in name for name in cache)
    heads = cache.stack_head_results()
    assert heads.shape == (2 * model.config.attention.n_heads, 2, 7, 16)
    attn_out = sum(cache["attn_out", layer] for layer in range(2))
    close(heads.sum(0), attn_out - model.b_O.sum(0))
    close(cache.stack_head_results(incl_remainder=True).sum(0), cache["resid_post", -1])


def test_accumulated_residual_and_final_norm(model: HookedModel, tokens, close):
    logits, cache = run_with_cache(model, tokens)
    streams = cache.accumulated_resid()
    close(streams[0], cache["resid_pre", 0])
    close(streams[-1], cache["resid_post", -1])
    with torch.no_grad():
        close(cache.accumulated_resid(apply_ln=True)[-1] @ model.W_U, logits)
    # The final norm is linear once its scale is known: what it makes of the parts adds up to what it made of the whole.
    close(cache.decompose_resid(apply_ln=True).sum(0), cache["ln_final.hook_normalized"])
    close(
        cache.apply_ln_to_stack(cache.decompose_resid(1), layer=1).sum(0),
        cache["blocks.1.ln1.hook_normalized"],
    )


def test_logit_attribution_adds_up(matrix, tokens, close):
    torch.manual_seed(0)
    model = HookedModel(matrix["gqa"]).double()  # gains of one: directions are then those of the normed residual
    logits, cache = run_with_cache(model, tokens)
    shares = cache.logit_attrs(cache.decompose_resid(), tokens=tokens)
    close(shares.sum(0), logits.gather(-1, tokens[..., None])[..., 0])


def test_set_use_attn_result(family_model: HookedModel, tokens):
    model = family_model
    name = "blocks.1.attn.hook_result"
    assert name not in run_with_cache(model, tokens)[1]
    model.set_use_attn_result(True)
    assert name in run_with_cache(model, tokens)[1]
    model.set_use_attn_result(False)
    assert name not in run_with_cache(model, tokens)[1]
    assert name in run_with_cache(model, tokens, names_filter=name)[1]


# -- results and ablation of heads ---------------------------------------------------------------------------------------


def test_results_add_up_to_the_unhooked_output(model: HookedModel, tokens, close):
    plain, cache = run_with_cache(model, tokens, names_filter=lambda name: name.endswith("attn_out"))
    hooked, results = run_with_cache(model, tokens, names_filter=lambda name: name.endswith("hook_result"))
    assert not torch.equal(model.b_O, torch.zeros_like(model.b_O)) or not model.config.attention.output_bias
    for layer in range(2):
        close(results["result", layer].sum(2) + model.b_O[layer], cache["attn_out", layer])
    close(hooked, plain)


def test_both_output_paths_agree_in_float32(family_model: HookedModel, tokens, close):
    model = family_model.float()
    plain, _ = run_with_cache(model, tokens, names_filter="hook_embed")
    hooked, _ = run_with_cache(model, tokens, names_filter="blocks.0.attn.hook_result")
    close(hooked, plain, 1e-6)


def test_results_are_worked_out_only_when_hooked(family_model: HookedModel, tokens):
    """They are as wide as all heads' residual streams together."""
    seen = []
    for layer in range(2):
        family_model.attention(layer).hook_result.forward = lambda x: seen.append(1) or x
    with torch.no_grad():
        family_model(tokens)
        family_model.run_with_cache(tokens)
        assert seen == []
        family_model.run_with_cache(tokens, names_filter="blocks.1.attn.hook_result")
    assert seen == [1]


def zero_head(head: int):
    def zero(tensor, hook):
        edited = tensor.clone()
        edited[:, :, head] = 0
        return edited

    return zero


@pytest.mark.parametrize("point", ["hook_z", "hook_result"])
def test_zeroing_head_1(model: HookedModel, tokens, point: str, close):
    """Reports 5 and 6: full output minus ``z_1 W_O[1]``; slicing the projected output would be something else."""
    _, cache = run_with_cache(model, tokens)
    with model.hooks([(f"blocks.0.attn.{point}", zero_head(1))]):
        _, edited = run_with_cache(model, tokens, names_filter="blocks.0.hook_attn_out")
    full, out = cache["attn_out", 0], edited["attn_out", 0]
    width = model.config.attention.d_value
    own_rows = model.attention(0).o.weight[:, width : 2 * width]
    close(out, full - cache["z", 0][:, :, 1] @ own_rows.T)
    sliced = full.clone()
    sliced[..., 4:8] = 0
    assert not torch.allclose(out, sliced)


# -- filters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("blocks.0.attn.hook_qq", r"hook_qq.*did you mean.*blocks\.0\.attn\.hook_q"),
        ([Z0, "blocks.0.atn.hook_z"], r"atn.*did you mean.*blocks\.0\.attn\.hook_z"),
        ("blocks.2.attn.hook_q", "blocks.2"),
        (lambda name: "hook_keys" in name, "matches no hook point"),
        ([], "empty"),
        ("zzzzzz", "model.hook_dict"),
    ],
)
def test_filter_that_matches_nothing(family_model: HookedModel, tokens, names, message: str, count_hooks):
    for run in (
        lambda: family_model.run_with_cache(tokens, names_filter=names),
        lambda: family_model.add_caching_hooks(names),
        lambda: family_model.get_caching_hooks(names),
    ):
        with pytest.raises(KeyError, match=message):
            run()
        assert count_hooks(family_model) == 0


@pytest.mark.parametrize("name", ["blocks.0.attn.hook_kk", lambda name: "hook_keys" in name])
def test_hook_on_nothing(family_model: HookedModel, tokens, name, count_hooks):
    for run in (
        lambda: family_model.add_hook(name, quiet),
        lambda: family_model.run_with_hooks(tokens, fwd_hooks=[(name, quiet)]),
    ):
        with pytest.raises(KeyError, match="no hook point"):
            run()
        assert count_hooks(family_model) == 0


@pytest.mark.parametrize("names", [Z0, [Z0, K0], lambda name: name in (K0, Z0)])
def test_filter_selects(family_model: HookedModel, tokens, names):
    _, cache = run_with_cache(family_model, tokens, names_filter=names)
    assert set(cache) == ({Z0} if names == Z0 else {Z0, K0})


def test_a_wrong_later_name_adds_nothing(family_model: HookedModel, tokens, count_hooks):
    calls = []
    good = (Z0, lambda tensor, hook: calls.append(hook.name))
    for options in (
        {"fwd_hooks": [good, ("no.such.hook", print)]},
        {"fwd_hooks": [good], "bwd_hooks": [("no", print)]},
    ):
        with pytest.raises(KeyError, match="no"), family_model.hooks(**options):
            pass
        with pytest.raises(KeyError, match="no"):
            family_model.run_with_hooks(tokens, **options)
    assert count_hooks(family_model) == 0
    assert family_model.context_level == 0
    family_model(tokens)
    assert calls == []


# -- whose hooks stay ----------------------------------------------------------------------------------------------------


class Counter:
    """A user's hook that counts its calls and doubles what it sees."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, tensor: Tensor, hook) -> Tensor:
        self.calls += 1
        return tensor * 2


def boom(tensor, hook):
    raise RuntimeError("boom")


def quiet(tensor, hook):
    return None


INSIDE = {
    "run_with_cache": lambda model, tokens: model.run_with_cache(tokens),
    "run_with_cache_bwd": lambda model, tokens: model.run_with_cache(tokens, return_type="loss", incl_bwd=True),
    "run_with_hooks": lambda model, tokens: model.run_with_hooks(tokens, fwd_hooks=[(Z0, quiet)]),
    "same_point_and_result": lambda model, tokens: model.run_with_cache(tokens, names_filter=lambda name: True),
}


def attach(model: HookedModel, how: str, hook: Counter, stack: ExitStack) -> None:
    """Set the user's hook on ``hook_z`` in one of the ways that users know."""
    if how == "add_hook":
        model.add_hook(Z0, hook)
    elif how == "predicate":
        model.add_hook(lambda name: name == Z0, hook)
    elif how == "permanent":
        model.add_hook(Z0, hook, is_permanent=True)
    elif how == "hook_point":
        model.hook_dict[Z0].add_hook(hook)
    elif how == "reset_hooks_end_false":
        with model.hooks([(Z0, hook)], reset_hooks_end=False):
            pass
    elif how == "kept_by_run":
        model.run_with_hooks(torch.tensor([[1]]), fwd_hooks=[(Z0, hook)], reset_hooks_end=False)
        hook.calls = 0
    else:
        stack.enter_context(model.hooks([(Z0, hook)]))


WAYS = ["add_hook", "predicate", "permanent", "hook_point", "reset_hooks_end_false", "kept_by_run", "nested"]


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("how", WAYS)
def test_users_hook_fires_inside_and_after(matrix, build, tokens, how: str, inside: str, count_hooks):
    model = build(matrix["gqa"])
    plain = model(tokens).detach()
    hook = Counter()
    with ExitStack() as stack:
        attach(model, how, hook, stack)
        before, edited = count_hooks(model), model(tokens).detach()
        assert not torch.allclose(edited, plain)
        INSIDE[inside](model, tokens)
        assert hook.calls == 2
        with pytest.raises(RuntimeError, match="boom"):
            model.run_with_hooks(tokens, fwd_hooks=[(Z0, boom)])
        assert hook.calls == 3
        assert count_hooks(model) == before
        assert torch.equal(model(tokens), edited)
        assert hook.calls == 4
    model.reset_hooks(including_permanent=True)
    assert count_hooks(model) == 0
    assert torch.equal(model(tokens), plain)


def test_hook_added_inside_a_context_outlives_it(matrix, build, tokens, count_hooks):
    model, hook = build(matrix["gqa"]), Counter()
    with model.hooks([(Z0, quiet)]):
        model.add_hook(Z0, hook)
        with model.hooks([(Z0, quiet), (K0, quiet)]):
            model(tokens)
        model(tokens)
    model(tokens)
    assert hook.calls == 3
    assert count_hooks(model) == 2  # once in TransformerLens's list, once in torch's
    model.reset_hooks()
    assert count_hooks(model) == 0


def test_the_same_function_may_be_set_twice(matrix, build, tokens):
    model, hook = build(matrix["gqa"]), Counter()
    model.add_hook(Z0, hook)
    with model.hooks([(Z0, hook)]):
        model(tokens)
        assert hook.calls == 2
    model(tokens)
    assert hook.calls == 3


def test_reset_inside_a_context_is_no_error(matrix, build, tokens, count_hooks):
    model = build(matrix["gqa"])
    with model.hooks([(Z0, quiet)]):
        model.reset_hooks()
        assert count_hooks(model) == 0
    assert count_hooks(model) == 0
    assert model.context_level == 0


def test_nested_contexts_unwind(matrix, build, tokens):
    model, outer, inner = build(matrix["lrkv"]), Counter(), Counter()
    plain = model(tokens)
    with model.hooks([(Z0, outer)]):
        with model.hooks([("blocks.1.attn.hook_k_private", inner)]):
            both = model(tokens)
        one = model(tokens)
    assert (outer.calls, inner.calls) == (2, 1)
    assert not torch.allclose(one, both)
    assert torch.equal(model(tokens), plain)


@pytest.mark.parametrize("name", [Z0, "hook_embed", "ln_final.hook_normalized", "blocks.1.attn.hook_pattern"])
def test_exception_in_forward_leaves_nothing(family_model: HookedModel, tokens, name: str, count_hooks):
    model = family_model
    with torch.no_grad():
        plain = model(tokens)
    for run in (
        lambda: model.run_with_hooks(tokens, fwd_hooks=[(K0, quiet), (name, boom)]),
        lambda: model.run_with_cache(torch.tensor([[99]])),
        lambda: model.run_with_cache(tokens, incl_bwd=True),  # the logits are no scalar
    ):
        with pytest.raises((RuntimeError, IndexError)):
            run()
        assert count_hooks(model) == 0
        assert model.context_level == 0
        assert not model.is_caching
    with torch.no_grad():
        assert torch.equal(model(tokens), plain)


def test_contexts_are_cleared_when_asked(matrix, build, tokens):
    model = build(matrix["gqa"])

    def remember(tensor, hook):
        hook.ctx["seen"] = tensor.shape

    model.run_with_hooks(tokens, fwd_hooks=[(Z0, remember)])
    assert model.hook_dict[Z0].ctx == {"seen": (2, 7, 4, 4)}
    model.run_with_hooks(tokens, fwd_hooks=[(Z0, remember)], clear_contexts=True)
    assert model.hook_dict[Z0].ctx == {}


def test_caching_hooks_fill_on_every_run(matrix, build, tokens):
    model = build(matrix["gqa"])
    store = model.add_caching_hooks([Z0])
    model(tokens)
    first = store[Z0].clone()
    model(tokens[:1, :3])
    assert store[Z0].shape == (1, 3, 4, 4)
    assert first.shape == (2, 7, 4, 4)
    with model.hooks([(K0, quiet)]):
        pass
    model(tokens)
    assert torch.equal(store[Z0], first)
    model.reset_hooks()
    model(tokens[:1])
    assert torch.equal(store[Z0], first)


# -- what is captured ----------------------------------------------------------------------------------------------------


def wipe(tensor, hook):
    """Edit in place, as a careless user does."""
    return tensor.zero_()


def test_captures_and_weights_stay_bitwise(model: HookedModel, tokens):
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    _, cache = run_with_cache(model, tokens, names_filter=lambda name: True)
    copies = {name: value.clone() for name, value in cache.items()}
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(lambda name: True, wipe)])
        model(tokens)
    assert all(torch.equal(cache[name], value) for name, value in copies.items())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())


@pytest.mark.parametrize("name", ["gqa", "mha-gpt2_like", "qk_norm-before_no_gain", "lrkv-qk_norm", "mla-query_latent"])
def test_capture_survives_an_edit_in_place(matrix, build, tokens, run_all, name: str):
    """A hook further on that writes into its tensor must not reach what was captured before it."""
    model = build(matrix[name])
    _, clean = run_all(model, tokens)
    with torch.no_grad():
        for edited in model.hook_dict:
            store, hooks, _ = model.get_caching_hooks(lambda _: True)
            model.run_with_hooks(tokens, fwd_hooks=[*hooks, (edited, wipe)])
            order = list(store)  # the store fills as the forward pass goes
            for point in order[: order.index(edited) + 1]:
                assert torch.equal(store[point], clean[point]), f"{edited} overwrote {point}"


def test_captures_carry_no_graph(family_model: HookedModel, tokens):
    _, cache = family_model.run_with_cache(tokens)
    assert not any(value.requires_grad for value in cache.values())


def test_gradients_equal_autograd(model: HookedModel, tokens, close):
    seen: dict[str, Tensor] = {}

    def keep(tensor, hook):
        tensor.retain_grad()
        seen[hook.name] = tensor

    model.run_with_hooks(tokens, "loss", fwd_hooks=[(lambda name: True, keep)]).backward()
    expected = {name: value.grad for name, value in seen.items()}
    model.zero_grad()
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, names_filter=lambda name: True)
    assert {name for name in cache if not name.endswith("_grad")} == set(model.hook_dict)
    for name in model.hook_dict:
        close(cache[f"{name}_grad"], expected[name], 1e-12)


def test_gradient_equals_finite_differences(matrix, build, tokens):
    """Independent of autograd: the loss's slope along one direction at ``hook_k_private``."""
    model = build(matrix["lrkv"])
    name, step = "blocks.0.attn.hook_k_private", 1e-6
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, names_filter=name)
    direction = torch.randn(cache[name].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        up, down = (
            model.run_with_hooks(tokens, "loss", fwd_hooks=[(name, lambda k, hook, s=sign: k + s * step * direction)])
            for sign in (1, -1)
        )
    slope = (up - down) / (2 * step)
    torch.testing.assert_close((cache[f"{name}_grad"] * direction).sum(), slope, rtol=1e-6, atol=1e-9)


def test_pos_slice_cuts_the_position_axis(model: HookedModel, tokens, run_all):
    _, full = run_all(model, tokens)
    for cut in ((1, 4), (0, 7, 3), (-3, 7), [5, 0], torch.tensor([2])):
        _, part = run_all(model, tokens, pos_slice=cut)
        index = torch.arange(7)[slice(*cut) if isinstance(cut, tuple) else cut]
        for name, value in full.items():
            # TransformerLens cuts patterns and scores along the query's position.
            axis = 2 if name.endswith(("hook_pattern", "hook_attn_scores")) else 1
            assert torch.equal(part[name], value.index_select(axis, index)), (name, cut)


def test_pos_slice_of_one_position_keeps_the_axis(family_model: HookedModel, tokens):
    _, full = run_with_cache(family_model, tokens)
    _, part = run_with_cache(family_model, tokens, pos_slice=-1)
    assert torch.equal(part["k", 0], full["k", 0][:, -1:])
    assert torch.equal(part["pattern", 0], full["pattern", 0][:, :, -1:])


def test_remove_batch_dim(family_model: HookedModel, tokens):
    _, full = run_with_cache(family_model, tokens[:1])
    _, flat = run_with_cache(family_model, tokens[:1], remove_batch_dim=True, pos_slice=(2, 5))
    assert not flat.has_batch_dim
    assert torch.equal(flat["z", 1], full["z", 1][0, 2:5])
    assert torch.equal(flat["pattern", 1], full["pattern", 1][0, :, 2:5])
    with pytest.raises(ValueError, match="batch of 1"):
        run_with_cache(family_model, tokens, remove_batch_dim=True)


def test_plain_dictionary_on_request(family_model: HookedModel, tokens):
    _, cache = run_with_cache(family_model, tokens, return_cache_object=False)
    assert type(cache) is dict


def test_stop_at_layer_caches_what_ran(family_model: HookedModel, tokens):
    resid, cache = run_with_cache(family_model, tokens, stop_at_layer=1)
    assert torch.equal(resid, cache["resid_post", 0])
    assert not any(name.startswith(("blocks.1.", "ln_final")) for name in cache)


# -- memory -------------------------------------------------------------------------------------------------------------


def test_memory_is_freed(family, build, tokens):
    model = build(family)
    _, cache = run_with_cache(model, tokens)
    model.run_with_hooks(tokens, fwd_hooks=[(Z0, quiet)])
    model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    captured = weakref.ref(cache["z", 0])
    watched = [weakref.ref(model), weakref.ref(model.blocks[0].attn.o.weight)]
    del cache
    gc.collect()
    assert captured() is None, "the model keeps what a cache captured"
    del model
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
