"""What a variant stores and multiplies while decoding, against a decode step written out and counted by torch."""

from __future__ import annotations

import pytest
import torch
from headscope.models import GroupedConfig, LRKVConfig, MLAConfig, QKNorm
from torch.utils.flop_counter import FlopCounterMode

H, D, R, T = 6, 8, 3, 11


def dense(attention: GroupedConfig) -> None:
    q, k, v = torch.ones(H, D), torch.ones(H, T, D), torch.ones(H, T, D)
    torch.einsum("ht,htd->hd", torch.einsum("hd,htd->ht", q, k), v)


def factored(attention: LRKVConfig) -> None:
    q, shared, private, up = torch.ones(H, D), torch.ones(T, D), torch.ones(H, T, R), torch.ones(H, D, R)
    scores = torch.einsum("hd,td->ht", q, shared)
    scores = scores + torch.einsum("hr,htr->ht", torch.einsum("hd,hdr->hr", q, up), private)
    out = torch.einsum("ht,td->hd", scores, shared)
    out + torch.einsum("hr,hdr->hd", torch.einsum("ht,htr->hr", scores, private), up)


def rebuilt(q, z, shared, up, weights):
    keys = torch.einsum("htr,hdr->htd", z, up) + shared  # then rotated, which no product counts
    torch.einsum("hd,htd->ht", q, keys)
    torch.einsum("hr,hdr->hd", torch.einsum("ht,htr->hr", weights, z), up) + torch.einsum("ht,td->hd", weights, shared)


def test_rebuilding_private_keys_multiplies_by_rank():
    tensors = torch.ones(H, D), torch.ones(H, T, R), torch.ones(T, D), torch.ones(H, D, R), torch.ones(H, T)
    with FlopCounterMode(display=False) as counter:
        rebuilt(*tensors)
    attention = LRKVConfig(n_heads=H, d_head=D, rank=R)
    assert 2 * attention.decode_products_rotary(T) == counter.get_total_flops()


def absorbed(attention: MLAConfig) -> None:
    latent, rotary = torch.ones(T, 10), torch.ones(T, 4)
    inside = torch.einsum("hn,hnc->hc", torch.ones(H, 5), torch.ones(H, 5, 10))
    scores = torch.einsum("hc,tc->ht", inside, latent) + torch.einsum("hr,tr->ht", torch.ones(H, 4), rotary)
    torch.einsum("hc,hcv->hv", torch.einsum("ht,tc->hc", scores, latent), torch.ones(H, 10, 7))


@pytest.mark.parametrize(
    ("attention", "step"),
    [
        (GroupedConfig(n_heads=H, d_head=D), dense),
        (GroupedConfig(n_heads=H, d_head=D, n_kv_heads=2), dense),
        (LRKVConfig(n_heads=H, d_head=D, rank=R), factored),
        (MLAConfig(n_heads=H, d_latent=10, d_nope=5, d_rope=4, d_value_head=7), absorbed),
    ],
    ids=["mha", "gqa", "lrkv", "mla"],
)
def test_decode_products_are_those_of_a_step_written_out(attention, step):
    with FlopCounterMode(display=False) as counter:
        step(attention)
    assert 2 * attention.decode_products(T) == counter.get_total_flops()


@pytest.mark.parametrize(("rank_multiple", "stored"), [(1, 3), (8, 8)])
def test_a_joint_key_norm_leaves_one_scalar_a_head_which_is_not_padded(rank_multiple, stored):
    plain = LRKVConfig(n_heads=H, d_head=D, rank=R)
    normed = LRKVConfig(n_heads=H, d_head=D, rank=R, qk_norm=QKNorm())
    assert plain.cache_width(rank_multiple) == 2 * (D + H * stored)
    assert normed.cache_width(rank_multiple) == 2 * (D + H * stored) + H
    assert GroupedConfig(n_heads=H, d_head=D, qk_norm=QKNorm()).cache_width() == 2 * H * D


def test_deepseek_v3_leaves_576_elements_a_token_where_heads_of_their_own_leave_32768():
    """arXiv 2412.19437: 128 heads, latent 512, position channel 64, content and value 128: as much as 2.25 groups."""
    v3 = MLAConfig(n_heads=128, d_latent=512, d_nope=128, d_rope=64, d_value_head=128, d_q_latent=1536)
    assert (v3.cache_width(), v3.dense_width) == (576, 32_768)
    assert round(100 * v3.cache_width() / v3.dense_width, 2) == 1.76
    assert v3.cache_width() / (2 * 128) == 2.25
    assert [(part.name, part.elements, part.groups) for part in v3.streams()] == [
        ("latent", 512, 1),
        ("k_rot", 64, 1),
    ]


def test_every_variant_is_measured_against_mha_of_its_heads():
    mha = GroupedConfig(n_heads=H, d_head=D)
    for attention in (mha, GroupedConfig(n_heads=H, d_head=D, n_kv_heads=1), LRKVConfig(n_heads=H, d_head=D, rank=R)):
        assert attention.dense_width == mha.cache_width()
