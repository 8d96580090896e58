"""Generation under an intervention: what is stored edited stays edited, and gives what reading it all again gives."""

from __future__ import annotations

import pytest
import torch
from headscope.interventions import Mean, Noise, Resample, SameNorm, Scale, Shuffle, Swap, Zero, apply
from headscope.models import GroupedConfig, HookedModel, LRKVConfig, MLAConfig, ModelConfig

MODELS = {
    "mha": GroupedConfig(n_heads=4, d_head=8),
    "gqa": GroupedConfig(n_heads=4, d_head=8, n_kv_heads=2),
    "mla": MLAConfig(n_heads=4, d_latent=12, d_nope=6, d_rope=4, d_value_head=8),
    "lrkv": LRKVConfig(n_heads=4, d_head=8, rank=3),
}
ROWS = ((1, 2, 3, 4, 5), (6, 7, 8))
EDITS = {
    "zero private values": lambda: Zero(path="v_private", heads=(1,)),
    "scale keys": lambda: Scale(path="k", layers=(1,), factor=0.3),
    "mean of values": lambda: Mean(path="v", reference=ROWS),
    "swap queries": lambda: Swap(path="q", heads=(0,), other=2),
    "noise on private keys": lambda: Noise(path="k_private", seed=3),
    "resampled private keys": lambda: Resample(path="k_private", donors=ROWS, seed=1),
    "control of a zero": lambda: SameNorm(of=Zero(path="v_private", heads=(0,))),
    "rotated keys at two positions": lambda: Scale(path="k", rotated=True, positions=(0, 2), factor=-1.0),
    "no private part of the pattern's input": lambda: Scale(path="pattern", factor=0.5),
}


def build(variant):
    torch.manual_seed(0)
    config = ModelConfig(d_model=24, n_layers=2, d_vocab=50, n_ctx=32, attention=MODELS[variant])
    return HookedModel(config).double().eval()


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("variant", MODELS)
def test_an_edited_cache_stays_consistent(variant, name):
    model, prompts = build(variant), torch.tensor([[3, 7, 1], [9, 4, 4]])
    plain = model.generate(prompts, 8)
    with apply(model, EDITS[name]()):
        cached = model.generate(prompts, 8)
        assert torch.equal(cached, model.generate(prompts, 8, use_cache=False))
    assert torch.equal(model.generate(prompts, 8), plain), "nothing of the edit is left"


def test_a_shuffled_prompt_stays_shuffled_as_it_was():
    """The prompt's rows are shuffled once; what comes behind them keeps its own."""
    model, prompt = build("lrkv"), torch.tensor([[3, 7, 1, 8, 2, 5]])
    seen = []
    with apply(model, Shuffle(path="k_private", seed=2)), torch.no_grad():
        from headscope.models import Cache

        cache = Cache(model, 64, expanded=True)
        request = cache.add()
        model(prompt, cache=cache.of(request))
        seen.append(cache.read(0, request)["k"])
        model(torch.tensor([[4]]), cache=cache.of(request))
        seen.append(cache.read(0, request)["k"])
    assert torch.equal(seen[0], seen[1][:6])
    _, plain = model.run_with_cache(torch.tensor([[3, 7, 1, 8, 2, 5, 4]]))
    torch.testing.assert_close(seen[1][6], plain["blocks.0.attn.hook_rot_k"][0, 6])
    assert not torch.allclose(seen[1][:6], plain["blocks.0.attn.hook_rot_k"][0, :6])
