"""The null: what the same architecture scores at random initialisation.

Random queries alone decorrelate the forms ``W_Q[h] W_K[h]^T``, whatever the keys share, so that every variant starts
near the cap. A high effective rank is therefore no evidence of specialisation; only its place against the null is.
"""

from __future__ import annotations

import torch

from ..models.attention import build_attention
from ..models.block import no_norm
from ..models.config import ModelConfig
from ..models.factors import Factors


def random_factors(config: ModelConfig, seed: int, *, fold_norm: bool = True) -> Factors:
    """Return the forms of one freshly initialised attention layer of an architecture.

    Layers of one shape share their null, so one layer a seed is enough. torch's global random state is left as it was.

    Parameters
    ----------
    config
        The architecture, all of whose layers are alike (`ModelConfig.at`).
    seed
        Of the draw.
    fold_norm
        As for the checkpoint (a fresh norm's gain is 1; LayerNorm's mean subtraction still matters).
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        attention = build_attention(config.attention, config.d_model, config.rotary)
    norm = config.build_norm(config.arrangement != "post") or no_norm(config.d_model)
    return attention.factors(0, norm if fold_norm else None)
