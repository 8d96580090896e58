"""What the columns of a comparison hold."""

from __future__ import annotations

MEASURED = {
    "loss": "cross-entropy on the test split (nats a token)",
    "bits_per_byte": "the same by byte of text",
    "induction": "the best head's induction score, 0 to 1",
    "repeated_loss": "loss on the second copy of a random block (nats a token)",
    "qk_erank_pct_heads": "effective rank of where heads look, percent of H, mean over layers",
    "qk_centred_pct_cap": "the same centred, percent of H - 1",
    "ov_erank_pct_heads": "effective rank of what heads bring, percent of H, mean over layers",
    "ov_centred_pct_cap": "the same centred, percent of H - 1",
    "qk_below_null": "layers whose effective rank of where heads look is below all draws of the null",
    "ov_below_null": "layers whose effective rank of what heads bring is below all draws of the null",
    "seconds": "time that training took by the clock",
}
"""What differs between seeds -> what it is. Percentages are means over layers of the last step."""
TESTED_AS = {
    "induction": "induction score",
    "qk_centred_pct_cap": "centred effective rank of QK",
    "ov_centred_pct_cap": "of OV",
}
"""What is tested for differences besides the loss -> how a sentence calls it."""
_ENDS = {"mean": "mean over seeds", "low": "lower end of the 95 % interval", "high": "upper end of the 95 % interval"}
MEANING = {
    "control": "what is held equal: the backbone, or the number of parameters",
    "model": "which model",
    "baseline": "the model whose last validation loss is to be reached",
    "other": "the model that is subtracted",
    "seeds": "runs of the model, or pairs of runs",
    "seed": "seed of the run",
    "path": "directory of the run",
    "d_mlp": "width of the MLP",
    "n_layers": "layers",
    "in_backbone": "whether the run stands in the control of the same backbone",
    "in_parameters": "whether it stands in the control of the same number of parameters",
    "qk_part": "part of the QK circuit that is reported: MLA's between residual streams, all of the others'",
    "ov_part": "the same of the OV circuit",
    "parameters": "parameters of the model",
    "kv_parameters": "weights that make keys and values",
    "cache_bytes": "cache a token over all layers, 2 bytes an element",
    "cache_bytes_physical": "the same with ranks padded to a multiple of 8",
    "tokens": "tokens that it was trained on",
    "steps": "optimiser steps",
    "qk_null_pct_heads": "effective rank of random layers in percent of H: where heads look",
    "ov_null_pct_heads": "effective rank of random layers in percent of H: what heads bring",
    "qk_null_centred_pct_cap": "centred effective rank of random layers in percent of H - 1: where heads look",
    "ov_null_centred_pct_cap": "centred effective rank of random layers in percent of H - 1: what heads bring",
    "reached": "seeds that reached the baseline's last validation loss",
    "step_mean": "step at which they did, mean over seeds",
    "step_low": "lower end of its 95 % interval",
    "step_high": "upper end of it",
    "saved_pct_mean": "share of the steps that was left then (percent), mean over seeds",
    "saved_pct_low": "lower end of its 95 % interval",
    "saved_pct_high": "upper end of it",
    "measure": "what is compared: a column of the runs",
    "difference": "the model's minus the other's, paired by seed, in the measure's unit",
    "low": "lower end of the difference's 95 % interval",
    "high": "upper end of it",
    "p": "chance of a difference as large between equal models (t-test)",
    "p_holm": "p after Holm's correction over a measure's pairs in both controls",
    "detectable": "difference that it would take to pass the first of these tests with this pair's spread over seeds",
    **MEASURED,
    **{f"{name}_{end}": f"{what}; {words}" for name, what in MEASURED.items() for end, words in _ENDS.items()},
}
"""Column -> what it holds."""
