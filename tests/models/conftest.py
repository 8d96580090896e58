"""One matrix of tiny variants, crossed with every generic test, and the few helpers that the tests share.

`tests/` is no package (pytest runs with ``--import-mode=importlib``), so helpers come as fixtures that return functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from headscope.models import (
    FrequencyFactors,
    GroupedConfig,
    HookedModel,
    LinearScaling,
    Llama3Scaling,
    LRKVConfig,
    MLAConfig,
    MLPConfig,
    ModelConfig,
    NormConfig,
    QKNorm,
    Rotary,
    YarnScaling,
)
from torch import Tensor

GATED, PLAIN = MLPConfig(d_mlp=10), MLPConfig(d_mlp=9, act="gelu_new", gated=False, bias=True)
LAYER_NORM = NormConfig(kind="layer")
MLA = MLAConfig(n_heads=3, d_latent=10, d_nope=4, d_rope=2, d_value_head=5)
LRKV = LRKVConfig(n_heads=4, d_head=4, rank=2)


def grouped(groups: int | None = None, **options: Any) -> GroupedConfig:
    return GroupedConfig(**{"n_heads": 4, "d_head": 4, "n_kv_heads": groups} | options)


def tiny(attention: Any, **options: Any) -> ModelConfig:
    return ModelConfig(**{"d_model": 16, "n_layers": 2, "d_vocab": 19, "n_ctx": 12, "attention": attention} | options)


MATRIX: dict[str, ModelConfig] = {
    "mha-no_mlp": tiny(grouped()),
    "mha-learned": tiny(grouped(), positions="learned", mlp=GATED),
    "mha-no_positions": tiny(grouped(), positions="none", mlp=GATED),
    "mha-gpt2_like": tiny(
        grouped(bias=True, output_bias=True),
        positions="learned",
        norm=LAYER_NORM,
        mlp=PLAIN,
        tie_embeddings=True,
    ),
    "mha-layer_norm": tiny(grouped(), positions="none", norm=LAYER_NORM),
    "gqa": tiny(grouped(2), mlp=GATED),
    "gqa-bias": tiny(grouped(2, bias=True, output_bias=True), mlp=PLAIN),
    "gqa-wide_head": tiny(grouped(2, d_head=6), mlp=GATED),
    "gqa-partial_rotary": tiny(grouped(2, d_head=6), positions=Rotary(width=4)),
    "gqa-partial_interleaved": tiny(grouped(2, d_head=6), positions=Rotary(width=4, interleaved=True)),
    "gqa-interleaved": tiny(grouped(2), positions=Rotary(interleaved=True)),
    "gqa-tied": tiny(grouped(2), tie_embeddings=True),
    "gqa-scale": tiny(grouped(2, scale=0.3)),
    "gqa-yarn": tiny(grouped(2), positions=Rotary(scaling=YarnScaling(factor=4.0, original_context=6))),
    "gqa-linear": tiny(grouped(2), positions=Rotary(scaling=LinearScaling(2.0))),
    "gqa-llama3": tiny(grouped(2), positions=Rotary(scaling=Llama3Scaling(factor=8.0, original_context=6))),
    "gqa-factors": tiny(grouped(2), positions=Rotary(scaling=FrequencyFactors((1.0, 3.0)))),
    "qk_norm-before": tiny(grouped(2, qk_norm=QKNorm("before"))),
    "qk_norm-before_no_gain": tiny(grouped(2, qk_norm=QKNorm("before", gain=False))),
    "qk_norm-after": tiny(grouped(2, qk_norm=QKNorm("after"))),
    "qk_norm-after_no_gain": tiny(grouped(2, qk_norm=QKNorm("after", gain=False))),
    "qk_norm-no_positions": tiny(grouped(qk_norm=QKNorm("after")), positions="none"),
    "qk_norm-all_heads": tiny(grouped(2, qk_norm=QKNorm(span="all"))),
    "gqa-window": tiny(grouped(2, window=3), mlp=GATED),
    "gqa-softcap": tiny(grouped(2, softcap=0.7)),
    "gqa-slopes": tiny(grouped(2, slopes=(0.5, 0.25, 0.125, 0.0625)), positions="none"),
    "mqa": tiny(grouped(1), mlp=GATED),
    "mqa-layer_norm": tiny(grouped(1), positions="none", norm=LAYER_NORM),
    "lrkv": tiny(LRKV, mlp=GATED),
    "lrkv-bias": tiny(replace(LRKV, bias=True, output_bias=True), norm=LAYER_NORM, positions="learned"),
    "lrkv-no_positions": tiny(LRKV, positions="none"),
    "lrkv-qk_norm": tiny(replace(LRKV, rank=3, qk_norm=QKNorm("before"))),
    "lrkv-qk_norm_after": tiny(replace(LRKV, qk_norm=QKNorm("after")), positions=Rotary(width=2)),
    "lrkv-rotary_bias": tiny(replace(LRKV, bias=True), positions=Rotary(interleaved=True)),
    "lrkv-full_rank": tiny(replace(LRKV, rank=4), norm=LAYER_NORM, positions="none"),
    "mla": tiny(MLA, mlp=GATED),
    "mla-query_latent": tiny(replace(MLA, d_q_latent=7), positions=Rotary(interleaved=True)),
    "mla-bias": tiny(replace(MLA, bias=True, output_bias=True, d_q_latent=7), mlp=PLAIN),
    "mla-learned": tiny(MLA, positions="learned", norm=LAYER_NORM),
    "mla-no_positions": tiny(replace(MLA, d_rope=0, d_q_latent=7), positions="none"),
    "mla-no_latent_norm": tiny(replace(MLA, latent_norm=False), positions=Rotary(width=2)),
}


def of_variant(*variants: str) -> list[str]:
    return [name for name, config in MATRIX.items() if config.attention.variant in variants]


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tiny tensors: handing them to several threads costs more than the work itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchecked():
    """Turn the annotations' run-time check (tests/conftest.py) off: a caller's mistake then meets what users meet."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def matrix() -> dict[str, ModelConfig]:
    return MATRIX


@pytest.fixture(params=list(MATRIX))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    """Every configuration of the matrix in turn."""
    return MATRIX[request.param]


@pytest.fixture(params=of_variant("mha", "gqa", "mqa"))
def grouped_config(request: pytest.FixtureRequest) -> ModelConfig:
    return MATRIX[request.param]


@pytest.fixture(params=of_variant("lrkv"))
def lrkv_config(request: pytest.FixtureRequest) -> ModelConfig:
    return MATRIX[request.param]


@pytest.fixture(params=of_variant("mla"))
def mla_config(request: pytest.FixtureRequest) -> ModelConfig:
    return MATRIX[request.param]


@pytest.fixture(params=["mha-learned", "gqa", "mqa", "lrkv", "mla"])
def family(request: pytest.FixtureRequest) -> ModelConfig:
    """One configuration a variant, where the whole matrix would add nothing."""
    return MATRIX[request.param]


def build_model(config: ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> HookedModel:
    """Return a model whose gains, biases and factors are all far from their initial zeros and ones."""
    torch.manual_seed(seed)
    model = HookedModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".w"):
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif name.endswith((".b", "bias")):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif name.endswith((".B", "embed.weight")):
                parameter.copy_(torch.randn_like(parameter) / 2)
    return model.to(dtype)


@pytest.fixture(scope="session")
def build() -> Callable[..., HookedModel]:
    return build_model


@pytest.fixture
def model(config: ModelConfig) -> HookedModel:
    """A float64 model of every configuration in turn."""
    return build_model(config)


@pytest.fixture
def family_model(family: ModelConfig) -> HookedModel:
    return build_model(family)


@pytest.fixture
def tokens() -> Tensor:
    return torch.tensor([[3, 7, 1, 18, 0, 5, 5], [9, 2, 2, 11, 4, 17, 6]])


def hook_total(model: HookedModel) -> int:
    """Count every hook that torch or TransformerLens knows of."""
    return sum(
        len(p.fwd_hooks) + len(p.bwd_hooks) + len(p._forward_hooks) + len(p._backward_hooks)
        for p in model.hook_dict.values()
    )


@pytest.fixture(scope="session")
def count_hooks() -> Callable[[HookedModel], int]:
    return hook_total


def run_everything(model: HookedModel, tokens: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits and the cache of every hook point, ``hook_result`` included."""
    with torch.no_grad():
        return model.run_with_cache(tokens, names_filter=lambda name: True, return_cache_object=False, **options)


@pytest.fixture(scope="session")
def run_all() -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    return run_everything


@pytest.fixture(scope="session")
def close() -> Callable[..., None]:
    """`torch.testing.assert_close` at float64's tolerance."""

    def check(actual: Tensor, expected: Tensor, tol: float = 1e-10) -> None:
        torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)

    return check
