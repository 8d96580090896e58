"""Edits against the same thing worked out by hand, on all five variants; the model afterwards as before."""

from __future__ import annotations

import dataclasses

import headscope as hs
import pytest
import torch
from headscope.interventions import PATHS, Mean, Noise, Resample, SameNorm, Scale, Shuffle, Swap, Zero, apply
from headscope.interventions.paths import view
from headscope.interventions.site import Site
from headscope.models import GroupedConfig, HookedModel, LRKVConfig, MLAConfig, ModelConfig, QKNorm, Rotary
from headscope.training import build
from headscope.training.tokens import train_tokenizer

ATTENTION = {
    "mha": GroupedConfig(n_heads=4, d_head=6),
    "gqa": GroupedConfig(n_heads=4, n_kv_heads=2, d_head=6),
    "mqa": GroupedConfig(n_heads=4, n_kv_heads=1, d_head=6),
    "mla": MLAConfig(n_heads=4, d_latent=9, d_nope=5, d_rope=4, d_value_head=3),
    "lrkv": LRKVConfig(n_heads=4, d_head=6, rank=2),
}
TOKENS = torch.tensor([[1, 5, 2, 5, 3, 1, 0], [4, 4, 6, 1, 2, 2, 5]])


def built(name: str) -> HookedModel:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=16, n_layers=2, d_vocab=7, n_ctx=16, attention=ATTENTION[name], positions=Rotary(base=100.0)
    )
    return HookedModel(config).double().eval()


@pytest.fixture(params=ATTENTION)
def model(request) -> HookedModel:
    return built(request.param)


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
        (lambda: Shuffle(path="k", among="batch"), "among should be one of sample, past, token"),
        (lambda: Shuffle(path="k", seed=-1), "seed should be an integer >= 0"),
        (lambda: Zero(path="z", heads=()), "heads should be a tuple of distinct indices"),
        (lambda: Zero(path="z", heads=(-1,)), "heads should be a tuple of distinct indices"),
        (lambda: Zero(path="z", layers=(0, 0)), "layers should be a tuple of distinct indices"),
        (lambda: Zero(path="z", positions=(1.5,)), "positions should be a tuple of distinct indices"),
        (lambda: Zero(path="z", heads=(True,)), "heads should be a tuple of distinct indices"),
        (lambda: Resample(path="k", donors=()), "at least one row"),
        (lambda: Mean(path="k", reference=((),)), "at least one token"),
        (lambda: Swap(path="k_shared", other=1), "no other to swap with"),
        (lambda: Noise(path="k", factor=0.0), "factor should be finite and > 0"),
        (lambda: Noise(path="pattern"), "no longer be a distribution"),
        (lambda: Shuffle(path="pattern"), "belongs to its query position"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_impossible_edits_are_refused_when_built(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_a_missing_layer_is_named(model):
    with pytest.raises(IndexError, match="layers 0–1"), apply(model, Zero(path="z", layers=(2,))):
        pass


# -- parts of keys and values -----------------------------------------------------------------------------------------


def site_of(tokens: torch.Tensor, layer: int = 0) -> Site:
    valid = torch.ones_like(tokens, dtype=torch.bool)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    return Site(layer, tuple(range(len(tokens))), valid, positions, tokens)


SPLIT = [
    (name, path)
    for name in ("mha", "gqa", "mla", "lrkv")
    for path in ("k_private", "k_shared", "v_private", "v_shared")
]


@pytest.mark.parametrize(("name", "path"), SPLIT)
def test_a_part_that_is_read_and_written_back_changes_nothing(name, path):
    model = built(name)
    _, cache = model.run_with_cache(TOKENS)
    for rotated in (False, True) if path[0] == "k" and name != "mla" else (False,):
        found = view(model, path, 1, rotated=rotated)
        tensor, site = cache[found.hook], site_of(TOKENS, 1)
        part = found.read(tensor, site)
        torch.testing.assert_close(found.write(tensor, part, site), tensor)
        # What is written is what is read again.
        new = part + (torch.randn_like(part) if "shared" in path or name == "lrkv" else deviation(part))
        torch.testing.assert_close(found.read(found.write(tensor, new, site), site), new)


def deviation(part: torch.Tensor) -> torch.Tensor:
    """Random private parts: without a mean, as those of a split by the mean are."""
    noise = torch.randn_like(part)
    return noise - noise.mean(2, keepdim=True)


@pytest.mark.parametrize("name", ["mha", "gqa"])
@pytest.mark.parametrize(
    "edit",
    [
        Swap(path="k_private", other=1),
        Swap(path="v_private", other=0),
        Shuffle(path="k_private", heads=(1,)),
        Zero(path="v_shared"),
        Zero(path="k_private", heads=(0,)),
    ],
    ids=lambda e: f"{type(e).__name__}-{e.path}",
)
@torch.no_grad()
def test_the_basis_that_heads_use_inside_does_not_matter(name, edit):
    """The same function in other bases (values and outputs, keys and queries turned together) has the same parts."""
    model = built(name)
    edit = dataclasses.replace(edit, layers=(0,))
    with apply(model, edit):
        expected = model(TOKENS)
    clean = model(TOKENS)
    turn_bases(model)
    torch.testing.assert_close(model(TOKENS), clean)
    with apply(model, edit):
        torch.testing.assert_close(model(TOKENS), expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(clean, expected)


def turn_bases(model: HookedModel) -> None:
    """Turn every group's values by an orthogonal matrix, every plane of its keys by an angle, and undo it outside."""
    generator = torch.Generator().manual_seed(5)
    for layer in range(model.config.n_layers):
        attention = model.attention(layer)
        width, groups = attention.config.d_head, attention.config.n_groups
        members = torch.tensor(attention.head_to_group)
        values = torch.linalg.qr(torch.randn(groups, width, width, generator=generator, dtype=torch.float64))[0]
        angle = 0.4 * torch.randn(groups, width // 2, generator=generator, dtype=torch.float64)
        keys = torch.diag_embed(torch.cat((angle.cos(), angle.cos()), 1))
        half = torch.arange(width // 2)
        keys[:, half, half + width // 2], keys[:, half + width // 2, half] = angle.sin(), -angle.sin()
        for linear, turn in ((attention.v, values), (attention.k, keys), (attention.q, keys[members])):
            weight = linear.weight.view(-1, width, linear.weight.shape[1])
            linear.weight.copy_((turn.transpose(1, 2) @ weight).flatten(0, 1))
        out = attention.o.weight.T.unflatten(0, (-1, width))
        attention.o.weight.copy_((values[members].transpose(1, 2) @ out).flatten(0, 1).T)


@torch.no_grad()
def test_rows_moved_after_the_rotation_take_their_position_along():
    """LRKV's private keys by hand: rotate, move, and put beside the shared key's own rotation."""
    model = built("lrkv")
    edit = Shuffle(path="k_private", layers=(0,), seed=3, rotated=True)
    with apply(model, edit):
        _, edited = model.run_with_cache(TOKENS)
    _, cache = model.run_with_cache(TOKENS)
    attention, site = model.attention(0), site_of(TOKENS)
    turned = attention.turn(cache["blocks.0.attn.hook_k_private"], site.positions)
    moved = edit.change(turned, site)
    assert not torch.equal(moved, turned)
    shared = attention.turn(cache["blocks.0.attn.hook_k_shared"][:, :, None], site.positions)
    torch.testing.assert_close(edited["blocks.0.attn.hook_rot_k"], shared + moved)


@torch.no_grad()
def test_a_joint_norm_is_taken_again_from_the_edited_key():
    """Without its private part a key is the shared one, normalised by itself and not by the norm of both."""
    attention = dataclasses.replace(ATTENTION["lrkv"], qk_norm=QKNorm())
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, n_layers=1, d_vocab=7, n_ctx=16, attention=attention, positions=Rotary(base=100.0))
    model = HookedModel(config).double().eval()
    model.attention(0).k.B.mul_(30)
    with apply(model, Zero(path="k_private")):
        _, edited = model.run_with_cache(TOKENS)
    shared = edited["blocks.0.attn.hook_k_shared"][:, :, None].expand(-1, -1, 4, -1)
    torch.testing.assert_close(edited["blocks.0.attn.hook_k_normed"], model.attention(0).k_norm(shared))
    _, clean = model.run_with_cache(TOKENS)
    frozen = clean["blocks.0.attn.hook_k_normed"] * (shared / clean["blocks.0.attn.hook_k"])
    assert not torch.allclose(edited["blocks.0.attn.hook_k_normed"], frozen, atol=1e-2)


def test_mqa_and_missing_paths_say_why():
    for path in ("k_private", "v_shared"):
        with pytest.raises(ValueError, match="share one key and one value, so none has a part of its own"):
            view(built("mqa"), path, 0)
    with pytest.raises(ValueError, match="mha has no path 'latent'"):
        view(built("mha"), "latent", 0)
    with pytest.raises(ValueError, match="'v' has no rotation"):
        Zero(path="v", rotated=True)
    with pytest.raises(ValueError, match="content without positions"):
        view(built("mla"), "k_private", 0, rotated=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_chosen_stays_as_it_is_to_the_bit(dtype):
    """Written back after the rotation, other heads and positions do not go through it and back."""
    model = built("lrkv").to(dtype)
    tensor = torch.randn(2, 7, 4, 6).to(dtype)
    found, site = view(model, "k_private", 0, rotated=True), site_of(TOKENS)
    edit = Zero(path="k_private", heads=(1,), positions=(2, 5), rotated=True)
    new = found.write(tensor, edit.edited(found.read(tensor, site), site), site)
    changed = torch.zeros(2, 7, 4, dtype=torch.bool)
    changed[:, [2, 5], 1] = True
    assert torch.equal(new[~changed], tensor[~changed])
    assert new[changed].abs().max() < 0.02


def test_positions_are_counted_from_the_first_token():
    model = built("gqa")
    left = torch.tensor([[0, 0, *TOKENS[0].tolist()]])
    mask = torch.tensor([[0, 0] + [1] * 7])
    with torch.no_grad(), apply(model, Zero(path="v", positions=(0, 3))):
        alone, padded = model(TOKENS[:1]), model(left, attention_mask=mask)
    torch.testing.assert_close(padded[:, 2:], alone)
    with (
        pytest.raises(IndexError, match="position 7 does not exist at v of layer 0: it has positions 0–6"),
        apply(model, Zero(path="v", positions=(7,))),
    ):
        model(left, attention_mask=mask)


# -- what each edit does ----------------------------------------------------------------------------------------------


def rows_of(part: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row.flatten().tolist()) for row in part]


def test_a_shuffle_leaves_no_row_in_its_place_and_loses_none():
    part = torch.randn(2, 7, 4, 3)
    new = Shuffle(path="k", seed=1).change(part, site_of(TOKENS))
    for row in range(2):
        assert sorted(rows_of(new[row])) == sorted(rows_of(part[row]))
        assert all(a != b for a, b in zip(rows_of(new[row]), rows_of(part[row]), strict=True))
    assert not torch.equal(Shuffle(path="k", seed=2).change(part, site_of(TOKENS)), new)


def test_a_causal_shuffle_takes_from_the_past_or_from_equal_tokens():
    part = torch.randn(2, 7, 4, 3)
    past = Shuffle(path="k", among="past").change(part, site_of(TOKENS))
    token = Shuffle(path="k", among="token").change(part, site_of(TOKENS))
    for row in range(2):
        was = rows_of(part[row])
        for place in range(7):
            source = was.index(rows_of(past[row])[place])
            assert source < place or place == source == 0
            same = was.index(rows_of(token[row])[place])
            earlier = [p for p in range(place) if TOKENS[row, p] == TOKENS[row, place]]
            assert same in (earlier or [place])
    with pytest.raises(ValueError, match="needs the tokens"):
        Shuffle(path="k", among="token").change(part, dataclasses.replace(site_of(TOKENS), tokens=None))


@pytest.mark.parametrize(
    "edit",
    [Shuffle(path="v", seed=4), Noise(path="v", seed=4), Shuffle(path="k", among="past")],
    ids=lambda e: type(e).__name__,
)
@torch.no_grad()
def test_choices_depend_on_the_sample_and_not_on_its_batch_or_pads(edit):
    model = built("gqa")
    with apply(model, edit, samples=(8, 3)):
        together = model(TOKENS)
    with apply(model, edit, samples=(3,)):
        alone = model(TOKENS[1:])
    torch.testing.assert_close(alone[0], together[1])
    wide = torch.cat((TOKENS[1:], torch.zeros(1, 3, dtype=torch.long)), 1)
    for mask, cut in (
        (torch.tensor([[1] * 7 + [0] * 3]), slice(0, 7)),
        (torch.tensor([[0] * 3 + [1] * 7]), slice(3, 10)),
    ):
        tokens = wide if cut.start == 0 else wide.roll(3, 1)
        with apply(model, edit, samples=(3,)):
            padded = model(tokens, attention_mask=mask)
        torch.testing.assert_close(padded[0, cut], together[1])


def test_resampling_takes_the_same_positions_of_another_sample():
    part = torch.randn(2, 7, 4, 3)
    new = Resample(path="k").change(part, site_of(TOKENS))
    assert torch.equal(new, part.flip(0))  # two samples have one derangement
    with pytest.raises(ValueError, match="at least two samples"):
        Resample(path="k").change(part[:1], site_of(TOKENS[:1]))


@torch.no_grad()
def test_donors_are_run_unedited_and_never_the_sample_itself():
    model = built("lrkv")
    own = tuple(TOKENS[0].tolist())
    donors = (own, (6, 5, 4, 3, 2, 1, 0, 1, 2), (1, 2))
    with apply(model, Resample(path="v_private", layers=(1,), donors=donors), Zero(path="v_private", layers=(0,))):
        _, edited = model.run_with_cache(TOKENS[:1])
    _, cache = model.run_with_cache(torch.tensor([donors[1]]))
    name = "blocks.1.attn.hook_v_private"
    torch.testing.assert_close(edited[name], cache[name][:, :7])
    # A short donor is gone through again.
    with apply(model, Resample(path="v", layers=(0,), donors=(own, (1, 2)))):
        _, edited = model.run_with_cache(TOKENS[:1])
    _, cache = model.run_with_cache(torch.tensor([[1, 2]]))
    held = cache["blocks.0.attn.hook_v"][:, [0, 1, 0, 1, 0, 1, 0]]
    torch.testing.assert_close(edited["blocks.0.attn.hook_v"], held)
    with (
        pytest.raises(ValueError, match="no donor is another than sample 0 itself"),
        apply(model, Resample(path="v", donors=(own,))),
    ):
        model(TOKENS[:1])


@torch.no_grad()
def test_the_mean_is_over_all_tokens_of_the_reference():
    model = built("mha")
    reference = ((1, 2, 3), (4, 5, 6, 1, 2))
    with apply(model, Mean(path="z", layers=(0,), heads=(2,), reference=reference)):
        _, edited = model.run_with_cache(TOKENS)
    rows = [model.run_with_cache(torch.tensor([row]))[1]["blocks.0.attn.hook_z"][0, :, 2] for row in reference]
    expected = torch.cat(rows).mean(0)
    torch.testing.assert_close(edited["blocks.0.attn.hook_z"][:, :, 2], expected.expand(2, 7, -1))


def test_noise_and_the_control_have_the_norm_they_should():
    part = torch.randn(2, 7, 4, 3, dtype=torch.float64)
    added = Noise(path="k", factor=0.5).change(part, site_of(TOKENS)) - part
    torch.testing.assert_close(added.norm(dim=-1), 0.5 * part.norm(dim=-1))
    # The same seed draws other directions for an edit and for its control.
    noise = Noise(path="k", seed=3)
    same = SameNorm(of=noise, seed=3)
    assert not torch.allclose(noise.change(part, site_of(TOKENS)), same.change(part, site_of(TOKENS)), atol=1e-3)
    edit = Shuffle(path="k", seed=1, heads=(2,))
    control = SameNorm(of=edit, seed=9)
    assert (control.path, control.heads) == ("k", (2,))
    moved, shuffled = control.change(part, site_of(TOKENS)) - part, edit.change(part, site_of(TOKENS)) - part
    torch.testing.assert_close(moved.norm(dim=-1), shuffled.norm(dim=-1))
    cosine = torch.cosine_similarity(moved, shuffled, dim=-1)
    assert cosine.abs().mean() < 0.8
    assert cosine.mean().abs() < 0.3


@torch.no_grad()
def test_edits_compose_in_the_order_given_and_contexts_nest():
    model = built("lrkv")
    double, shift = Scale(path="z", factor=2.0), Swap(path="z", other=0)
    with apply(model, double, shift):
        together = model(TOKENS)
    with apply(model, double), apply(model, shift):
        nested = model(TOKENS)
    torch.testing.assert_close(together, nested)


@torch.no_grad()
def test_text_and_lists_of_text_reach_the_edit_as_tokens():
    text = ["for i in range(10):\n    print(i)", "x = x"]
    torch.manual_seed(0)
    model = hs.HookedModel(build("lrkv", "tiny"), train_tokenizer(text, 300)).eval()
    edit = Shuffle(path="v", among="token")
    tokens, mask = model.tokenize(text)
    with apply(model, edit):
        torch.testing.assert_close(model(text), model(tokens, attention_mask=mask))


def test_samples_that_do_not_fit_the_batch_are_refused():
    model = built("mha")
    with (
        pytest.raises(ValueError, match="each of the batch's 2 rows but has 1"),
        apply(model, Zero(path="z"), samples=(1,)),
    ):
        model(TOKENS)


# -- TransformerLens's bridge -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bridge_and_wrapper(tmp_path_factory):
    """One small Llama with grouped keys, in TransformerLens's bridge and in the wrapper."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=7,
        max_position_embeddings=32,
    )
    plain = LlamaForCausalLM(config).eval()
    place = tmp_path_factory.mktemp("llama")
    plain.save_pretrained(place)
    return build_bridge_from_module(plain, "LlamaForCausalLM", hf_config=config), hs.load(place)


@pytest.mark.parametrize(
    "edit",
    [
        Zero(path="z", layers=(0,), heads=(1,)),
        Shuffle(path="v", seed=2),
        Shuffle(path="v_private", layers=(1,), heads=(0,)),
        Resample(path="k"),
        Swap(path="v_private", other=0),
    ],
    ids=lambda e: f"{type(e).__name__}-{e.path}",
)
@torch.no_grad()
def test_an_edit_does_the_same_in_the_bridge(bridge_and_wrapper, edit):
    bridge, wrapper = bridge_and_wrapper
    before = bridge(TOKENS)
    torch.testing.assert_close(before, wrapper(TOKENS), rtol=1e-4, atol=1e-5)
    with apply(bridge, edit):
        there = bridge(TOKENS)
    with apply(wrapper, edit):
        here = wrapper(TOKENS)
    torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(there, before, atol=1e-4)
    assert torch.equal(bridge(TOKENS), before)
    with (
        pytest.raises(ValueError, match="this bridge has no path 'k_private': load the wrapper"),
        apply(bridge, Zero(path="k_private")),
    ):
        pass


@torch.no_grad()
def test_what_a_bridge_cannot_do_is_said(bridge_and_wrapper):
    bridge, _ = bridge_and_wrapper
    with (
        pytest.raises(ValueError, match="hook_result was never reached by the forward pass"),
        apply(bridge, Zero(path="result", layers=(0,))),
    ):
        bridge(TOKENS)
    with pytest.raises(ValueError, match="need tokens"), apply(bridge, Zero(path="z")):
        bridge("text")


@torch.no_grad()
def test_a_bridge_whose_heads_stand_elsewhere_is_refused():
    """TransformerLens has DeepSeek's queries as [batch, head, position, width]: heads are not where they are elsewhere."""
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(0)
    config = DeepseekV3Config(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        vocab_size=7, first_k_dense_replace=1, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
        max_position_embeddings=32,
    )  # fmt: skip
    bridge = build_bridge_from_module(DeepseekV3ForCausalLM(config).eval(), "DeepseekV3ForCausalLM", hf_config=config)
    with pytest.raises(ValueError, match="its heads cannot be edited there"), apply(bridge, Zero(path="q", heads=(1,))):
        bridge(TOKENS)
    with pytest.raises(ValueError, match="made from a latent"), apply(bridge, Zero(path="v_private")):
        pass
