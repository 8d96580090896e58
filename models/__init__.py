"""The hooked wrapper and the attention variants it can carry."""

from .attention import Attention
from .config import ModelConfig
from .experts import ExpertsConfig
from .factors import Factors
from .grouped import GroupedConfig
from .hooked import HookedModel
from .lrkv import LRKVConfig
from .memory import Cache, OutOfPages
from .mla import MLAConfig
from .mlp import MLPConfig
from .norms import NormConfig
from .per_layer import LayerChanges
from .rope import FrequencyFactors, LinearScaling, Llama3Scaling, ProportionalScaling, Rotary, YarnScaling
from .variant import VARIANTS, AttentionConfig, QKNorm

__all__ = [
    "VARIANTS",
    "Attention",
    "AttentionConfig",
    "Cache",
    "ExpertsConfig",
    "Factors",
    "FrequencyFactors",
    "GroupedConfig",
    "HookedModel",
    "LRKVConfig",
    "LayerChanges",
    "LinearScaling",
    "Llama3Scaling",
    "MLAConfig",
    "MLPConfig",
    "ModelConfig",
    "NormConfig",
    "OutOfPages",
    "ProportionalScaling",
    "QKNorm",
    "Rotary",
    "YarnScaling",
]
