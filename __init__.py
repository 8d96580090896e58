"""headscope: how different the heads of an attention layer are, what they share, and what is private to each.

The verbs:

- `report`: effective rank of every layer beside its bounds and its null;
- `ablate`: disturb one head after another, and measure what changes in a task;
- `routing`: where one head looks on one text, before and after an edit;
- `probe`: generate, and see what each head looked at when a token was chosen;
- `needle`: hide something at different depths, and see which heads find it;
- `over_training`: the same over the saved steps of a training run;
- `convert`: a trained model into another attention variant;
- `compare`: models that were trained alike, side by side;
- `explore`: a picture of a result or a model with choices beside it, for notebooks;
- `budget`, `audit`: what a variant costs before anyone trains it; what printed figures cannot be true together;
- `load`: a checkpoint as a hooked model, with TransformerLens's interface;
- `open_checkpoint`, `save`: weights on disk, lazily by layer or whole.

Names are imported when first used, so that ``import headscope`` costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budgets import Audit, Budget, audit, budget
    from .checkpoints import open_checkpoint, save
    from .checkpoints.opening import load
    from .conversion import Conversion, convert
    from .diversity import Offsets, Report, Trajectory, over_training, report
    from .errors import CheckpointError, HeadscopeError, TokenizerError
    from .exploring import Explorer, explore
    from .interventions import Ablation, Routing, ablate, routing
    from .models import (
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
    from .probing import Needle, Probe, needle, probe
    from .training import Comparison, compare

_WHERE = {
    ".budgets": ("Audit", "Budget", "audit", "budget"),
    ".checkpoints": ("open_checkpoint", "save"),
    ".checkpoints.opening": ("load",),
    ".conversion": ("Conversion", "convert"),
    ".diversity": ("Offsets", "Report", "Trajectory", "over_training", "report"),
    ".exploring": ("Explorer", "explore"),
    ".interventions": ("Ablation", "Routing", "ablate", "routing"),
    ".errors": ("CheckpointError", "HeadscopeError", "TokenizerError"),
    ".models": (
        "FrequencyFactors",
        "GroupedConfig",
        "HookedModel",
        "LRKVConfig",
        "LinearScaling",
        "Llama3Scaling",
        "MLAConfig",
        "MLPConfig",
        "ModelConfig",
        "NormConfig",
        "QKNorm",
        "Rotary",
        "YarnScaling",
    ),
    ".probing": ("Needle", "Probe", "needle", "probe"),
    ".training": ("Comparison", "compare"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Ablation",
    "Audit",
    "Budget",
    "CheckpointError",
    "Comparison",
    "Conversion",
    "Explorer",
    "FrequencyFactors",
    "GroupedConfig",
    "HeadscopeError",
    "HookedModel",
    "LRKVConfig",
    "LinearScaling",
    "Llama3Scaling",
    "MLAConfig",
    "MLPConfig",
    "ModelConfig",
    "NormConfig",
    "Needle",
    "Offsets",
    "Probe",
    "QKNorm",
    "Report",
    "Rotary",
    "Routing",
    "TokenizerError",
    "Trajectory",
    "YarnScaling",
    "ablate",
    "audit",
    "budget",
    "compare",
    "convert",
    "explore",
    "load",
    "needle",
    "open_checkpoint",
    "over_training",
    "probe",
    "report",
    "routing",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("headscope")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'headscope' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
