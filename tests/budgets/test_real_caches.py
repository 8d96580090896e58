"""The bytes that formulas give are the bytes of the caches that the library builds, for every variant."""

from __future__ import annotations

import pytest
import torch
from headscope.budgets.cache import Storage, cache_bytes
from headscope.models import Cache, GroupedConfig, HookedModel, LRKVConfig, MLAConfig, ModelConfig, QKNorm

VARIANTS = {
    "mha": GroupedConfig(n_heads=6, d_head=16),
    "gqa": GroupedConfig(n_heads=6, d_head=16, n_kv_heads=2),
    "mqa": GroupedConfig(n_heads=6, d_head=16, n_kv_heads=1),
    "mla": MLAConfig(n_heads=6, d_latent=40, d_nope=16, d_rope=8, d_value_head=16),
    "mla without positions": MLAConfig(n_heads=6, d_latent=40, d_nope=16, d_rope=0, d_value_head=16),
    "lrkv": LRKVConfig(n_heads=6, d_head=16, rank=7),
    "lrkv, joint norm": LRKVConfig(n_heads=6, d_head=16, rank=7, qk_norm=QKNorm()),
    "lrkv, full rank": LRKVConfig(n_heads=6, d_head=16, rank=16),
}
LENGTHS = (1, 64, 65, 130)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_real_cache_has_the_bytes_of_the_formula(name, dtype):
    attention = VARIANTS[name]
    positions = "none" if "without" in name else ModelConfig.__dataclass_fields__["positions"].default_factory()
    config = ModelConfig(d_model=12, n_layers=3, d_vocab=7, n_ctx=256, attention=attention, positions=positions)
    model = HookedModel(config)
    room = sum(-(-length // 64) * 64 for length in LENGTHS)
    cache = Cache(model, room, dtype=dtype)
    requests = [cache.add() for _ in LENGTHS]
    tokens = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    with torch.no_grad():
        model(tokens, attention_mask=mask, cache=cache.of(*requests))
    wanted = cache_bytes(attention, 3, LENGTHS, Storage(element_bytes=dtype.itemsize))
    assert cache.ledger.free_pages == 0
    assert cache.bytes_used(padded=False) == wanted.payload
    assert cache.bytes_used() == wanted.padded
    assert cache.bytes_allocated == wanted.allocated
    assert wanted.payload == sum(
        rows.numel() * dtype.itemsize for layer in range(3) for r in requests for rows in cache.read(layer, r).values()
    )
