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
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
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
    return model.eval()


@pytest.fixture(scope="session")
def weighted() -> Callable[..., PreTrainedModel]:
    return randomise


@pytest.fixture(scope="session")
def theirs() -> Callable[..., PreTrainedModel]:
    """Hugging Face model of a name in the matrix, always with the same weights; options change the configuration."""

    def build(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> PreTrainedModel:
        make, fixed = MATRIX[name]
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
