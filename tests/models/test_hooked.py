"""The wrapper as a whole: forward against a plain re-computation, splits, losses, refusals, copies."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from headscope.models import HookedModel
from headscope.models.hooked import n_parameters
from torch import Tensor

# -- the whole forward pass ----------------------------------------------------------------------------------------------


def plain_norm(norm, x: Tensor, kind: str, eps: float) -> Tensor:
    if kind == "layer":
        return torch.nn.functional.layer_norm(x, x.shape[-1:], norm.w, norm.b, eps)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], norm.w, eps)


def plain_mlp(mlp, x: Tensor, gated: bool) -> Tensor:
    if gated:
        hidden = torch.nn.functional.silu(x @ mlp.gate.weight.T) * (x @ mlp.up.weight.T)
        return hidden @ mlp.down.weight.T
    hidden = torch.nn.functional.gelu(x @ mlp.up.weight.T + mlp.up.bias, approximate="tanh")
    return hidden @ mlp.down.weight.T + mlp.down.bias


def test_forward_equals_plain_residual_stream(model: HookedModel, tokens, close):
    """Attention itself is checked in test_attention.py; here what stands around it."""
    cfg = model.config
    visible = torch.ones(7, 7, dtype=torch.bool).tril().expand(2, 1, 7, 7)
    positions = torch.arange(7).expand(2, 7)
    with torch.no_grad():
        x = model.embed.weight[tokens]
        if cfg.positions == "learned":
            x = x + model.pos_embed.weight[:7]
        for layer in range(2):
            block = model.blocks[layer]
            normed = plain_norm(block.ln1, x, cfg.norm.kind, cfg.norm.eps)
            x = x + block.attn(normed, positions, visible)
            if cfg.mlp is not None:
                x = x + plain_mlp(block.mlp, plain_norm(block.ln2, x, cfg.norm.kind, cfg.norm.eps), cfg.mlp.gated)
        unembed = model.embed if cfg.tie_embeddings else model.unembed
        logits = plain_norm(model.ln_final, x, cfg.norm.kind, cfg.norm.eps) @ unembed.weight.T
        close(model(tokens), logits)


def test_causality(model: HookedModel, tokens):
    """A later token never changes an earlier logit, and does change its own."""
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 19
    with torch.no_grad():
        first, second = model(tokens), model(other)
    assert torch.equal(first[:, :4], second[:, :4])
    assert (first[:, 4:] - second[:, 4:]).abs().amax((0, 2)).min() > 0


def test_every_parameter_gets_a_gradient(model: HookedModel, tokens):
    model(tokens, "loss").backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


# -- running part of the layers -------------------------------------------------------------------------------------------


def test_splits_recompose(model: HookedModel, tokens):
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        whole = model(tokens, attention_mask=mask)
        for cut in range(3):
            resid = model(tokens, stop_at_layer=cut, attention_mask=mask)
            assert torch.equal(model(resid, start_at_layer=cut, attention_mask=mask), whole)
            for later in range(cut, 3):
                between = model(resid, start_at_layer=cut, stop_at_layer=later, attention_mask=mask)
                assert torch.equal(between, model(tokens, stop_at_layer=later, attention_mask=mask))


def test_negative_layers_count_from_the_end(family_model: HookedModel, tokens):
    with torch.no_grad():
        assert torch.equal(family_model(tokens, stop_at_layer=-1), family_model(tokens, stop_at_layer=1))
        assert torch.equal(family_model(tokens, stop_at_layer=-2), family_model(tokens, stop_at_layer=0))
        resid = family_model(tokens, stop_at_layer=1)
        assert torch.equal(family_model(resid, start_at_layer=-1), family_model(tokens))


@pytest.mark.parametrize("bound", ["start_at_layer", "stop_at_layer"])
@pytest.mark.parametrize("layer", [3, -3])
def test_missing_layer_names_the_range(family_model: HookedModel, tokens, bound: str, layer: int):
    with pytest.raises(IndexError, match=rf"{bound}={layer} .*0–1"):
        family_model(tokens, **{bound: layer})


@pytest.mark.parametrize("layer", [2, -1])
def test_missing_layer_of_weights_names_the_range(family_model: HookedModel, layer: int):
    for get in (family_model.attention, family_model.factors):
        with pytest.raises(IndexError, match=rf"layer {layer} .*0–1"):
            get(layer)


# -- what goes in ---------------------------------------------------------------------------------------------------------


def test_one_sequence_gets_a_batch_axis(model: HookedModel, tokens, close):
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens[0])
        assert logits.shape == (1, 7, 19)
        assert cache["resid_pre", 0].shape == (1, 7, 16)
        close(logits, model(tokens[:1]), 1e-12)
        assert torch.equal(model(tokens[0]), model(tokens[:1]))
        assert torch.equal(model(tokens[0], "loss"), model(tokens[:1], "loss"))


@pytest.mark.parametrize("token", [19, -1, 1000])
def test_token_outside_the_vocabulary(family_model: HookedModel, token: int):
    with pytest.raises(IndexError, match=rf"0–18.*{token}"):
        family_model(torch.tensor([[1, token, 2]]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": torch.ones(2, 6)}, r"attention_mask.*\(2, 7\).*\(2, 6\)"),
        ({"attention_mask": torch.ones(7)}, r"attention_mask.*\(2, 7\).*\(7,\)"),
        ({"positions": torch.zeros(2, 3, dtype=torch.long)}, r"positions.*\(2, 7\).*\(2, 3\)"),
        ({"return_type": "logit"}, "return_type.*'logits', 'loss', 'both'.*'logit'"),
        ({"start_at_layer": 1}, r"start_at_layer.*\[batch, pos, 16\].*\(2, 7\)"),
    ],
)
def test_what_does_not_fit_is_a_value_error(family_model: HookedModel, tokens, options, message: str):
    with pytest.raises(ValueError, match=message):
        family_model(tokens, **options)


@pytest.mark.usefixtures("unchecked")
def test_floats_are_no_tokens(family_model: HookedModel):
    with pytest.raises(ValueError, match=r"tokens should be integers.*float"):
        family_model(torch.rand(2, 3))


def test_loss_needs_tokens(family_model: HookedModel, tokens):
    resid = family_model(tokens, stop_at_layer=1)
    with pytest.raises(ValueError, match="start_at_layer"):
        family_model(resid, "loss", start_at_layer=1)


def test_learned_positions_end_at_n_ctx(matrix, build):
    model = build(matrix["mha-learned"])
    assert model(torch.zeros(1, 12, dtype=torch.long)).shape == (1, 12, 19)
    with pytest.raises(ValueError, match=r"12.*n_ctx"):
        model(torch.zeros(1, 13, dtype=torch.long))


def test_explicit_positions(matrix, build, tokens, close):
    """Rotary attention sees differences of positions only; learned positions see the positions themselves."""
    shifted = torch.arange(7).expand(2, 7) + 5
    with torch.no_grad():
        rotary = build(matrix["gqa"])
        close(rotary(tokens, positions=shifted), rotary(tokens), 1e-5)
        assert not torch.allclose(rotary(tokens, positions=2 * shifted), rotary(tokens), atol=1e-3)
        learned = build(matrix["mha-learned"])
        assert not torch.allclose(learned(tokens, positions=shifted), learned(tokens), atol=1e-3)
        nowhere = build(matrix["mha-no_positions"])
        assert torch.equal(nowhere(tokens, positions=shifted), nowhere(tokens))


# -- losses ----------------------------------------------------------------------------------------------------------------


def naive_loss(logits: Tensor, tokens: Tensor, mask: Tensor) -> list[list[float]]:
    rows = []
    for b in range(len(tokens)):
        row = []
        for p in range(tokens.shape[1] - 1):
            if not (mask[b, p] and mask[b, p + 1]):
                row.append(0.0)
                continue
            exps = [math.exp(float(v)) for v in logits[b, p]]
            row.append(math.log(sum(exps)) - float(logits[b, p, tokens[b, p + 1]]))
        rows.append(row)
    return rows


MASKS = {
    "none": [[1] * 7, [1] * 7],
    "left": [[0, 0, 1, 1, 1, 1, 1], [1] * 7],
    "right": [[1] * 7, [1, 1, 0, 0, 0, 0, 0]],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_loss_in_nats(family_model: HookedModel, tokens, mask, close):
    mask = torch.tensor(mask)
    with torch.no_grad():
        logits, loss = family_model(tokens, "both", attention_mask=mask)
        per_token = family_model(tokens, "loss", attention_mask=mask, loss_per_token=True)
    expected = torch.tensor(naive_loss(logits, tokens, mask), dtype=torch.float64)
    close(per_token.double(), expected, 1e-6)
    counted = int((mask[:, 1:] & mask[:, :-1]).sum())
    close(loss.double(), expected.sum() / counted, 1e-6)


def test_loss_keeps_float64(family_model: HookedModel, tokens, close):
    with torch.no_grad():
        logits, loss = family_model(tokens, "both")
        expected = naive_loss(logits, tokens, torch.ones_like(tokens))
    assert loss.dtype == torch.float64
    close(loss, torch.tensor(sum(map(sum, expected)) / 12, dtype=torch.float64), 1e-12)


def test_return_types(family_model: HookedModel, tokens):
    with torch.no_grad():
        assert family_model(tokens, None) is None
        logits, loss = family_model(tokens, "both")
        assert torch.equal(logits, family_model(tokens))
        assert torch.equal(loss, family_model(tokens, "loss"))


# -- copies, configuration, parts --------------------------------------------------------------------------------------------


def test_deepcopy_is_independent(model: HookedModel, tokens, count_hooks):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        plain = model(tokens)
        assert torch.equal(twin(tokens), plain)
        calls = []
        twin.add_hook("blocks.0.attn.hook_z", lambda z, hook: calls.append(hook) or z * 0)
        assert count_hooks(model) == 0
        assert torch.equal(model(tokens), plain)
        assert not torch.equal(twin(tokens), plain)
        assert calls == [twin.hook_dict["blocks.0.attn.hook_z"]]
        assert calls[0] is not model.hook_dict["blocks.0.attn.hook_z"]
        twin.reset_hooks()
        for parameter in twin.parameters():
            parameter.add_(1.0)
        assert torch.equal(model(tokens), plain)
        assert not torch.equal(twin(tokens), plain)
    assert (twin.embed.weight is twin.unembed.weight) == model.config.tie_embeddings
    assert twin.config == model.config


def test_deepcopy_under_a_hook(family_model: HookedModel, tokens, count_hooks):
    with torch.no_grad():
        plain = family_model(tokens)
        family_model.add_hook("blocks.0.attn.hook_z", lambda z, hook: z * 0)
        edited = family_model(tokens)
        twin = copy.deepcopy(family_model)
        assert torch.equal(twin(tokens), edited)
        twin.reset_hooks()
        assert count_hooks(twin) == 0
        assert torch.equal(twin(tokens), plain)
        assert torch.equal(family_model(tokens), edited)


def test_tied_embeddings_are_one_parameter(matrix, build, tokens):
    model = build(matrix["gqa-tied"])
    assert model.unembed.weight is model.embed.weight
    assert len(list(model.parameters())) == len(list(build(matrix["gqa-interleaved"]).parameters())) - 1
    with torch.no_grad():
        before = model(tokens)
        model.embed.weight[18] += 1
        assert not torch.equal(model(tokens)[..., 18], before[..., 18])


def test_lens_config(model: HookedModel):
    ours, theirs = model.config, model.cfg
    attention = ours.attention
    assert (theirs.n_layers, theirs.d_model, theirs.d_vocab, theirs.n_ctx) == (2, 16, 19, 12)
    assert theirs.n_heads == attention.n_heads
    assert theirs.n_key_value_heads == (None if attention.n_groups == attention.n_heads else attention.n_groups)
    assert theirs.normalization_type == {"rms": "RMS", "layer": "LN"}[ours.norm.kind]
    without = "none" if attention.slopes is None else "alibi"
    expected = "rotary" if ours.rotary else {"learned": "standard", "none": without}[ours.positions]
    assert theirs.positional_embedding_type == expected
    assert theirs.attn_only == (ours.mlp is None)
    assert theirs.d_mlp == (None if ours.mlp is None else ours.mlp.d_mlp)
    assert theirs.dtype == torch.float64
    assert theirs.device == torch.device("cpu")


def test_weight_shortcuts(model: HookedModel, close):
    assert torch.equal(model.W_E, model.embed.weight)
    assert torch.equal(model.W_U, model.unembed.weight.T)
    assert model.W_U.data_ptr() == model.unembed.weight.data_ptr()
    assert torch.equal(model.b_U, torch.zeros(19, dtype=torch.float64))
    if model.config.positions == "learned":
        assert torch.equal(model.W_pos, model.pos_embed.weight)
    else:
        with pytest.raises(AttributeError):
            model.W_pos  # noqa: B018
    outer = [model.attention(layer).b_O for layer in range(2)]
    inner = [block.mlp.b_out if block.has_mlp else torch.zeros(16, dtype=torch.float64) for block in model.blocks]
    close(model.accumulated_bias(0), torch.zeros(16, dtype=torch.float64))
    close(model.accumulated_bias(1), outer[0] + inner[0])
    close(model.accumulated_bias(1, mlp_input=True), outer[0] + inner[0] + outer[1])
    close(model.accumulated_bias(2, include_mlp_biases=False), outer[0] + outer[1])


def test_initialisation_follows_the_global_seed(family, tokens):
    def logits(seed: int) -> Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            return HookedModel(family)(tokens)

    assert torch.equal(logits(3), logits(3))
    assert not torch.equal(logits(3), logits(4))
    assert torch.isfinite(logits(3)).all()


def test_state_dict_round_trip(config, build, tokens):
    first, second = build(config, seed=0), build(config, seed=1)
    with torch.no_grad():
        assert not torch.equal(first(tokens), second(tokens))
        second.load_state_dict(first.state_dict())
        assert torch.equal(first(tokens), second(tokens))


@pytest.mark.parametrize("n_layers", [1, 5])
def test_parameters_are_counted_without_building_every_layer(config, n_layers):
    config = config.with_(n_layers=n_layers)
    assert n_parameters(config) == sum(p.numel() for p in HookedModel(config).parameters())
