"""The null: what the same architecture scores at random initialisation.

Random queries alone decorrelate the forms ``W_Q[h] W_K[h]^T``, whatever the keys share, so that every variant starts
near the cap. A high effective rank is therefore no evidence of specialisation; only its place against the null is.
"""

from __future__ import annotations

import torch

from ..models.attention import build_attention
from ..models.config import ModelConfig
from ..models.factors import Factors


def random_factors(config: ModelConfig, seed: int, *, fold_norm: bool = True) -> Factors:
    """Return the forms of one freshly initialised attention layer of an architecture.

    Layers of one shape share their null, so one layer a seed is enough. torch's global random state is left as it was.

    Parameters
    ----------
    config
        The architecture.
    seed
        Of the draw.
    fold_norm
        As for the checkpoint (a fresh norm's gain is 1; LayerNorm's mean subtraction still matters).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = build_attention(config.attention, config.d_model, config.rotary)
    return attention.factors(0, config.norm.build(config.d_model) if fold_norm else None)
