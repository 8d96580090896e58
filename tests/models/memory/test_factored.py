"""LRKV's factored history under rotary positions: exact for any B, once rotated for a closed one, refused otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from headscope.models import Cache, LRKVConfig, ModelConfig, QKNorm, Rotary

WIDE = ModelConfig(
    d_model=16, n_layers=1, d_vocab=19, n_ctx=32, attention=LRKVConfig(n_heads=4, d_head=8, rank=4, keys="plane-closed")
)


def closed_(model, interleaved, separate=False):
    """Make every head's key B span two whole planes, mixed at random (or only columns that do not turn)."""
    with torch.no_grad():
        for block in model.layers:
            up = block.attn.k.B
            for head in range(len(up)):
                columns = (
                    [4, 5, 6, 7]
                    if separate
                    else [2 * head % 8, 2 * head % 8 + 1, (2 * head + 4) % 8, (2 * head + 5) % 8]
                )
                if not separate and not interleaved:
                    columns = [head, head + 4, (head + 2) % 4, (head + 2) % 4 + 4]
                mixed = torch.zeros_like(up[head])
                mixed[columns] = torch.randn(4, 4, dtype=up.dtype)
                up[head] = mixed
    return model


@pytest.mark.parametrize(
    ("positions", "separate", "norm"),
    [
        (Rotary(), False, None),
        (Rotary(interleaved=True), False, None),
        (Rotary(width=4), True, None),
        (Rotary(), False, QKNorm("before")),
        (Rotary(), False, QKNorm("after")),
    ],
    ids=["halves", "interleaved", "separate channels", "normed before", "normed after"],
)
def test_coordinates_of_a_closed_span_are_rotated_once(build, tokens, close, positions, separate, norm):
    config = WIDE.with_(positions=positions, attention=replace(WIDE.attention, qk_norm=norm))
    model = closed_(build(config), positions.interleaved, separate)
    cache = Cache(model, 64, page_size=4)
    requests = cache.of(cache.add(), cache.add())
    with torch.no_grad():
        steps = [model(part, cache=requests) for part in tokens.split([3, 1, 1, 2], dim=1)]
        close(torch.cat(steps, dim=1), model(tokens), 1e-11)
    private = cache.forms[0].parts(torch.zeros(2, 4, 8, dtype=torch.float64), cache.stored[0])[0][1]
    assert private.turn is None, "a closed span is read without rotation"
    if separate:
        _, seen = model.run_with_cache(tokens)
        kept, private = cache.read(0, requests.requests[0])["k_coords"], seen["blocks.0.attn.hook_k_private"][0]
        close(kept.norm(dim=-1), private.norm(dim=-1), 1e-12)
        kept, private = kept.movedim(1, 0), private.movedim(1, 0)
        close(kept @ kept.mT, private @ private.mT, 1e-11)  # what does not turn is kept as it is, in another basis


def test_a_span_that_is_not_closed_is_refused_with_what_was_measured(build):
    model = build(WIDE)
    with pytest.raises(ValueError, match=r"span of head \d's B is not closed under rotation: 0\.\d+ .*rotate-at-read"):
        Cache(model, 8)


def test_a_closed_span_with_biases_is_refused(build):
    model = build(WIDE.with_(attention=replace(WIDE.attention, bias=True)))
    with pytest.raises(ValueError, match="does not go with biases"):
        Cache(model, 8)


def test_an_expanded_cache_asks_nothing_of_the_span(build, tokens, close):
    model = build(WIDE)
    cache = Cache(model, 64, page_size=4, expanded=True)
    with torch.no_grad():
        close(model(tokens, cache=cache.of(cache.add(), cache.add())), model(tokens), 1e-11)


def test_private_coordinates_that_cancel_the_shared_row_lose_nothing(build, tokens, close):
    """Private keys near minus the shared ones, a thousand times what is left of both."""
    model = build(WIDE.with_(attention=replace(WIDE.attention, keys="rotate-at-read", rank=8)))
    with torch.no_grad():
        k = model.attention(0).k
        left = k.W.clone()
        k.shared.weight.mul_(1000)
        k.B.copy_(torch.eye(8, dtype=torch.float64).expand(4, -1, -1))
        k.down.weight.copy_((left / 1000 - k.W_S).transpose(1, 2).flatten(0, 1))
        cache = Cache(model, 64, page_size=4)
        requests = cache.of(cache.add(), cache.add())
        steps = [model(part, cache=requests) for part in tokens.split(1, dim=1)]
        close(torch.cat(steps, dim=1), model(tokens), 1e-10)
