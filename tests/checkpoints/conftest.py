"""Tiny Hugging Face models of every supported family with weights that hide nothing, and how to save and compare them.

`tests/` is no package (pytest runs with ``--import-mode=importlib``), so helpers come as fixtures that return functions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 37
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
}
PLAIN = COMMON | {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-3,  # large enough that a wrong one shows
}
GPT2 = COMMON | {
    "n_embd": 24,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 32,
    "layer_norm_epsilon": 1e-2,
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
MLA = PLAIN | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": None,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "first_k_dense_replace": 2,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
    "rope_theta": 1000.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}


def llama(**options: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**PLAIN | options))


def mistral(**options: Any) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**PLAIN | {"sliding_window": None} | options))


def gpt2(**options: Any) -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(**GPT2 | options))


def v2(**options: Any) -> PreTrainedModel:
    return DeepseekV2ForCausalLM(DeepseekV2Config(**MLA | options))


def v3(**options: Any) -> PreTrainedModel:
    return DeepseekV3ForCausalLM(DeepseekV3Config(**MLA | options))


def made(config: Any, model: Any, fixed: dict[str, Any]) -> Callable[..., PreTrainedModel]:
    """Return a maker of one family's models out of its classes and the options that it always gets."""
    return lambda **options: model(config(**fixed | options))


HIDDEN = {name: PLAIN[name] for name in PLAIN if name not in ("num_key_value_heads", "rms_norm_eps")}
SMALL_GPT2 = {name: GPT2[name] for name in GPT2 if not name.endswith("pdrop")}
PADDED = PLAIN | {"pad_token_id": None}
EXPERTS = {
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 8,  # Hugging Face's grouped products want rows of 16 bytes
    "n_group": 3,
    "topk_group": 2,
}
neox = made(GPTNeoXConfig, GPTNeoXForCausalLM, HIDDEN | {"layer_norm_eps": 1e-2})
gptj = made(GPTJConfig, GPTJForCausalLM, SMALL_GPT2 | {"rotary_dim": 4})
bigcode = made(GPTBigCodeConfig, GPTBigCodeForCausalLM, GPT2)
falcon = made(
    FalconConfig,
    FalconForCausalLM,
    {name: HIDDEN[name] for name in HIDDEN if name != "intermediate_size"} | {"layer_norm_epsilon": 1e-2},
)
opt = made(
    OPTConfig,
    OPTForCausalLM,
    {name: HIDDEN[name] for name in HIDDEN if name != "intermediate_size"} | {"ffn_dim": 20, "pad_token_id": None},
)
bloom = made(BloomConfig, BloomForCausalLM, COMMON | {"hidden_size": 24, "n_head": 4, "n_layer": 2})
mpt = made(MptConfig, MptForCausalLM, COMMON | {"d_model": 24, "n_heads": 4, "n_layers": 2, "max_seq_len": 32})
qwen2 = made(Qwen2Config, Qwen2ForCausalLM, PLAIN)
qwen3 = made(Qwen3Config, Qwen3ForCausalLM, PLAIN | {"head_dim": 10})
phi3 = made(Phi3Config, Phi3ForCausalLM, PADDED)
mixtral = made(MixtralConfig, MixtralForCausalLM, PLAIN | {"num_local_experts": 4})
olmo2 = made(Olmo2Config, Olmo2ForCausalLM, PADDED)
gemma = made(GemmaConfig, GemmaForCausalLM, PADDED | {"head_dim": 10})
gemma2 = made(Gemma2Config, Gemma2ForCausalLM, PADDED | {"head_dim": 10, "query_pre_attn_scalar": 5})
TEXT = PADDED | {"head_dim": 10, "query_pre_attn_scalar": 5, "sliding_window": 4}
gemma3 = made(Gemma3TextConfig, Gemma3ForCausalLM, TEXT)
KINDS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
SHARED = PADDED | {
    "num_hidden_layers": 5,
    "layer_types": KINDS,
    "num_kv_shared_layers": 2,
    "sliding_window": 4,
    "head_dim": 10,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 6,
}
THETAS = {
    "full_attention": {"rope_type": "default", "rope_theta": 700.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
}
gemma3n = made(Gemma3nTextConfig, Gemma3nForCausalLM, SHARED | {"laurel_rank": 4, "altup_num_inputs": 3})
gemma4 = made(
    Gemma4TextConfig,
    Gemma4ForCausalLM,
    SHARED | {"num_hidden_layers": 6, "layer_types": KINDS + KINDS[1:2], "global_head_dim": 12},
)
SLIDING = {"use_sliding_window": True, "sliding_window": 5}


def seeing_gemma3(**options: Any) -> PreTrainedModel:
    """Gemma 3 that also sees; its text model is what is read."""
    vision = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sight = vision | {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=TEXT | options, vision_config=sight, mm_tokens_per_image=4)
    config._attn_implementation = "eager"
    return Gemma3ForConditionalGeneration(config)


MATRIX: dict[str, tuple[Callable[..., PreTrainedModel], dict[str, Any]]] = {
    "llama-mha": (llama, {"num_key_value_heads": 4}),
    "llama-gqa-wide_head": (llama, {"head_dim": 10}),
    "llama-mqa": (llama, {"num_key_value_heads": 1}),
    "llama-biases": (llama, {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": (llama, {"tie_word_embeddings": True}),
    "llama-theta": (llama, {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    "llama-linear": (llama, {"rope_parameters": LINEAR}),
    "llama-llama3": (llama, {"rope_parameters": LLAMA3}),
    "llama-yarn": (llama, {"rope_parameters": YARN}),
    "llama-yarn_factor": (llama, {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}}),
    "llama-gelu": (llama, {"hidden_act": "gelu_pytorch_tanh"}),
    "mistral": (mistral, {}),
    "mistral-narrow_head": (mistral, {"head_dim": 4, "num_key_value_heads": 4}),
    "gpt2": (gpt2, {}),
    "gpt2-untied": (gpt2, {"tie_word_embeddings": False}),
    "gpt2-unscaled": (gpt2, {"scale_attn_weights": False, "n_inner": 30, "activation_function": "relu"}),
    "v2": (v2, {}),
    "v2-query_latent": (v2, {"q_lora_rank": 7}),
    "v2-yarn": (v2, {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}}),
    "v2-biases": (v2, {"q_lora_rank": 7, "attention_bias": True, "mlp_bias": True}),
    "v2-tied": (v2, {"tie_word_embeddings": True, "attention_bias": True}),
    "v3": (v3, {}),
    "v3-query_latent": (v3, {"q_lora_rank": 7, "attention_bias": True}),
    "v3-half_split": (v3, {"q_lora_rank": 7, "rope_interleave": False}),
    "v3-yarn": (v3, {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.6}, "v_head_dim": 9}),
}
"""Families that are crossed with every test."""
OTHERS: dict[str, tuple[Callable[..., PreTrainedModel], dict[str, Any]]] = {
    "v2-experts": (v2, EXPERTS | {"topk_method": "greedy", "routed_scaling_factor": 1.3}),
    "v2-expert_groups": (v2, EXPERTS | {"topk_method": "group_limited_greedy", "topk_group": 1, "mlp_bias": True}),
    "v3-experts": (v3, EXPERTS | {"q_lora_rank": 7, "routed_scaling_factor": 1.3}),
    "v3-experts_as_they_are": (v3, EXPERTS | {"norm_topk_prob": False, "first_k_dense_replace": 0}),
    "mistral-window": (mistral, {"sliding_window": 5}),
    "gpt2-scale_by_layer": (gpt2, {"scale_attn_by_inverse_layer_idx": True}),
    "qwen2": (qwen2, {}),
    "qwen2-window": (qwen2, SLIDING | {"max_window_layers": 1}),
    "qwen3": (qwen3, {}),
    "qwen3-window": (qwen3, SLIDING | {"max_window_layers": 0, "attention_bias": True}),
    "phi3": (phi3, {}),
    "phi3-partial": (phi3, {"partial_rotary_factor": 0.67, "sliding_window": 5, "num_key_value_heads": 4}),
    "mixtral": (mixtral, {}),
    "olmo2": (olmo2, {}),
    "gemma": (gemma, {"hidden_act": "gelu"}),
    "gemma2": (gemma2, {"sliding_window": 5, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5}),
    "gemma2-uncapped": (gemma2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": (gemma3, {"sliding_window_pattern": 2, "num_hidden_layers": 3}),
    "gemma3-all_local": (gemma3, {}),
    "gemma3-that_sees": (seeing_gemma3, {"sliding_window_pattern": 2}),
    "neox": (neox, {"rotary_pct": 0.67}),
    "neox-sequential": (neox, {"use_parallel_residual": False, "rotary_pct": 1.0, "attention_bias": False}),
    "gptj": (gptj, {}),
    "bigcode": (bigcode, {}),
    "bigcode-mha": (bigcode, {"multi_query": False}),
    "opt": (opt, {}),
    "falcon-7b": (falcon, {}),
    "falcon-40b": (falcon, {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-11b": (
        falcon,
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 30},
    ),
    "falcon-sequential": (falcon, {"parallel_attn": False, "multi_query": False}),
    "bloom": (bloom, {}),
    "bloom-6_heads": (bloom, {"n_head": 6}),
    "mpt": (mpt, {}),
    "mpt-6_heads": (mpt, {"n_heads": 6, "attn_config": {"softmax_scale": 0.4}}),
}
"""Families and choices that share what is tested on the first ones, but for what their own tables say."""
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.5, 2.0, 4.0],
    "long_factor": [3.0, 5.0, 9.0],
    "rope_theta": 1000.0,
}
REPORTED: dict[str, tuple[Callable[..., PreTrainedModel], dict[str, Any]]] = {
    "phi3-longrope": (phi3, {"rope_parameters": LONG, "original_max_position_embeddings": 24}),
    "opt-norms_behind": (opt, {"do_layer_norm_before": False}),
    "opt-projected": (opt, {"word_embed_proj_dim": 12}),
    "falcon-alibi": (falcon, {"alibi": True}),
    "bloom-normed_stream": (bloom, {"apply_residual_connection_post_layernorm": True}),
    "mpt-clipped": (mpt, {"attn_config": {"clip_qkv": 50.0}}),
    "gemma3n": (gemma3n, {"rope_parameters": THETAS}),
    "gemma3n-own_keys": (gemma3n, {"num_kv_shared_layers": 0, "intermediate_size": [20, 24, 20, 20, 28]}),
    "gemma4": (gemma4, {"use_double_wide_mlp": True, "rope_parameters": THETAS}),
    "gemma4-keys_as_values": (gemma4, {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
}
"""What can be reported on but not run."""
EVERYTHING = MATRIX | OTHERS | REPORTED
FAMILIES = ("llama-gqa-wide_head", "mistral", "gpt2", "v2", "v3-query_latent")


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny tensors: handing them to several threads costs more than the work itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def randomise(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """Draw every weight anew: gains away from 1, biases away from 0, attention away from uniform."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim > 1:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.copy_(0.3 * noise + (0 if name.endswith("bias") else 1))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # learned, though not by gradients
                buffer.copy_(0.3 * torch.randn_like(buffer))
    return model.eval()


@pytest.fixture(scope="session")
def weighted() -> Callable[..., PreTrainedModel]:
    return randomise


@pytest.fixture(scope="session")
def theirs() -> Callable[..., PreTrainedModel]:
    """Hugging Face model of a name in the matrix, always with the same weights; options change the configuration."""

    def build(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
        make, fixed = EVERYTHING[name]
        return randomise(make(**fixed | options)).to(dtype)

    return build


@pytest.fixture(scope="session")
def saved(theirs, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Directory that Hugging Face saved a model of the matrix to; made once, to be read only."""
    made: dict[tuple[Any, ...], Path] = {}

    def save(name: str, dtype: torch.dtype = torch.float32, shard: str = "5GB") -> Path:
        if (name, dtype, shard) not in made:
            directory = tmp_path_factory.mktemp(name)
            theirs(name, dtype).save_pretrained(directory, max_shard_size=shard)
            made[name, dtype, shard] = directory
        return made[name, dtype, shard]

    return save


@pytest.fixture(params=list(MATRIX))
def name(request: pytest.FixtureRequest) -> str:
    """Every name of the matrix in turn."""
    return request.param


@pytest.fixture(params=list(OTHERS))
def other(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list(REPORTED))
def reported(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[name for name in EVERYTHING if not name.startswith(("v2", "v3"))])
def grouped(request: pytest.FixtureRequest) -> str:
    """Every name whose heads are plain or grouped."""
    return request.param


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    """One name a family, where the whole matrix would add nothing."""
    return request.param


@pytest.fixture(scope="session")
def tokens() -> Tensor:
    """Longer than the matrix's original contexts, so that every scaling rule shows."""
    return torch.randint(0, VOCABULARY, (2, 19), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def error() -> Callable[[Tensor, Tensor], float]:
    """Largest difference over the largest expected value."""

    def relative(actual: Tensor, expected: Tensor) -> float:
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        assert bool(expected.isfinite().all())
        return float((actual - expected).abs().max() / expected.abs().max())

    return relative


@pytest.fixture(scope="session")
def fingerprint() -> Callable[[Path], dict[str, str]]:
    """Hash of every file below a directory (and of what links point to)."""

    def of(directory: Path) -> dict[str, str]:
        return {
            str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            if path.is_file()
            else "no file"
            for path in sorted(directory.rglob("*"))
        }

    return of
