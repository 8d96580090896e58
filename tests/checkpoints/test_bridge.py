"""Models in TransformerLens's bridge against Hugging Face's own forward pass, and what goes wrong there refused."""

from __future__ import annotations

import copy
from typing import Any

import headscope as hs
import pytest
import torch
from headscope.checkpoints.bridge import bridged, load_bridge
from headscope.interventions import Zero, apply
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
VOCABULARY: dict[str, Any] = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def phi() -> PreTrainedModel:
    return PhiForCausalLM(PhiConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
        attn_implementation="eager", **VOCABULARY,
    ))  # fmt: skip


def falcon(**fields: Any) -> PreTrainedModel:
    return FalconForCausalLM(FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, attn_implementation="eager", **VOCABULARY, **fields
    ))  # fmt: skip


def bigcode(*, multi_query: bool) -> PreTrainedModel:
    return GPTBigCodeForCausalLM(GPTBigCodeConfig(
        n_embd=32, n_layer=2, n_head=4, n_positions=64, multi_query=multi_query, attn_implementation="eager",
        **VOCABULARY,
    ))  # fmt: skip


def deepseek() -> PreTrainedModel:
    return DeepseekV3ForCausalLM(DeepseekV3Config(
        hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=2, n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1,
        max_position_embeddings=64, attn_implementation="eager", **VOCABULARY,
    ))  # fmt: skip


def save(model: PreTrainedModel, place) -> None:
    from headscope.training.tokens import train_tokenizer

    model.save_pretrained(place)
    train_tokenizer(["import os\nimport sys\n"], 300).save_pretrained(place)


@torch.no_grad()
def test_a_family_that_the_wrapper_lacks_loads_when_asked_for(tmp_path):
    torch.manual_seed(0)
    plain = phi().eval()
    save(plain, tmp_path)
    with pytest.raises(hs.CheckpointError, match=r"model_type 'phi' .* load\(path, bridge=True\)"):
        hs.load(tmp_path)
    with pytest.warns(UserWarning, match="no factors .* keys not split into shared and private"):
        model = hs.load(tmp_path, bridge=True)
    torch.testing.assert_close(model(TOKENS), plain(TOKENS).logits, rtol=1e-4, atol=1e-5)
    _, cache = model.run_with_cache(TOKENS)
    assert cache["blocks.1.attn.hook_z"].shape == (1, 8, 4, 8)
    assert model.tokenizer.decode(model.tokenizer.encode("import os")) == "import os"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: falcon(new_decoder_architecture=True, num_kv_heads=2), "Falcon of the new decoder architecture"),
        (lambda: bigcode(multi_query=False), "GPT-BigCode with multi_query false"),
    ],
)
def test_what_the_bridge_splits_wrongly_is_refused_by_name(make, words, tmp_path):
    torch.manual_seed(0)
    save(make(), tmp_path)
    with pytest.raises(hs.CheckpointError, match=words):
        load_bridge(tmp_path)


@pytest.mark.parametrize("make", [lambda: falcon(multi_query=True), lambda: bigcode(multi_query=True)])
@torch.no_grad()
def test_their_kind_with_one_key_is_as_hugging_face_has_it(make):
    torch.manual_seed(0)
    plain = make().eval()
    expected = plain(TOKENS).logits
    torch.testing.assert_close(bridged(plain, "small")(TOKENS), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_what_the_bridge_does_not_know_is_refused_by_name(theirs):
    with pytest.raises(
        hs.CheckpointError, match="tiny is not carried by TransformerLens's bridge: .*Gemma3nForCausalLM"
    ):
        bridged(theirs("gemma3n"), "tiny")


def test_other_logits_than_hugging_faces_are_refused(monkeypatch):
    from transformer_lens.model_bridge import sources

    torch.manual_seed(0)
    build = sources.build_bridge_from_module

    def spoilt(plain, *args, **kwargs):
        found = build(plain, *args, **kwargs)
        next(found.parameters())[3] *= -1
        return found

    monkeypatch.setattr(sources, "build_bridge_from_module", spoilt)
    with pytest.raises(hs.CheckpointError, match="small .PhiForCausalLM. gives other logits"):
        bridged(phi().eval(), "small")


@torch.no_grad()
def test_a_head_of_latent_attention_is_silenced_as_in_hugging_face():
    """Zeroed columns of o_proj are the oracle: TransformerLens alone shows 8 heads of width 4 where there are 4 of 8."""
    torch.manual_seed(0)
    plain = deepseek().eval()
    silent = copy.deepcopy(plain)
    silent.model.layers[0].self_attn.o_proj.weight[:, 8:16] = 0
    bridge = bridged(plain, "small")
    _, cache = bridge.run_with_cache(TOKENS)
    assert cache["blocks.0.attn.hook_z"].shape == (1, 8, 4, 8)
    with apply(bridge, Zero(path="z", layers=(0,), heads=(1,))):
        torch.testing.assert_close(bridge(TOKENS), silent(TOKENS).logits, rtol=1e-4, atol=1e-5)
