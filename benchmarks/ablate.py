"""Time a sweep over all heads against one hooked forward pass a head through TransformerLens, on the same inputs.

The model is a Llama with random weights, once in headscope's wrapper and once in TransformerLens's bridge; every head's
output is set to zero in turn and the task scored. Printed is the time of each side, the ratio by edit (headscope also
runs each edit's control, so it does twice the edits), and how far the scores are apart.

    python benchmarks/ablate.py [--layers 8] [--heads 8] [--d-model 256] [--vocabulary 8000] [--threads 1]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import headscope as hs
import numpy as np
import torch
from headscope.interventions.plan import Plan
from headscope.interventions.sweep import Sweep
from headscope.interventions.tasks import Task, induction, row_scores
from rich.console import Console
from rich.table import Table
from transformer_lens.model_bridge.sources import build_bridge_from_module
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES = ((1, 32), (4, 32), (16, 32), (16, 128))
"""Prompts, and tokens in each."""


def one_pass_a_head(bridge: Any, task: Task, layers: int, heads: int) -> np.ndarray:
    """Return the scores ``[layer * head, sample]`` by whole forward passes of all prompts at once."""
    tokens = torch.tensor([sample.right.tokens for sample in task.samples])
    scores = []
    for layer in range(layers):
        for head in range(heads):

            def silence(z: torch.Tensor, hook: Any, head: int = head) -> torch.Tensor:
                z = z.clone()
                z[:, :, head] = 0
                return z

            logits = bridge.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", silence)])
            rows = [(logits[i, list(sample.right.scored)], sample.right) for i, sample in enumerate(task.samples)]
            scores.append([row_scores(found, row)[0] for found, row in rows])
    return np.array(scores)


def main() -> None:
    """Run the benchmark and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 8), ("heads", 8), ("d-model", 256), ("vocabulary", 8000), ("threads", 1)):
        options.add_argument(f"--{name}", type=int, default=default)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=asked.d_model, intermediate_size=int(2.7 * asked.d_model), num_hidden_layers=asked.layers,
        num_attention_heads=asked.heads, num_key_value_heads=asked.heads, vocab_size=asked.vocabulary,
        max_position_embeddings=512,
    )  # fmt: skip
    plain = LlamaForCausalLM(config).eval()
    with tempfile.TemporaryDirectory() as place:
        plain.save_pretrained(place)
        model = hs.load(place)
    bridge = build_bridge_from_module(plain, "LlamaForCausalLM", hf_config=config)
    row = torch.randint(1, asked.vocabulary, (5000,))
    table = Table("prompts", "tokens each", "one pass a head (s)", "sweep (s)", "faster by edit", "scores apart")
    for prompts, length in SHAPES:
        task = induction(row, 512, prompts, 0, block=length // 2)
        sweep = Sweep(model, task, Plan(path="z", how="zero"))
        began = time.perf_counter()
        ours = np.concatenate([sweep.layer(layer).edit for layer in range(asked.layers)])
        middle = time.perf_counter()
        with torch.no_grad():
            theirs = one_pass_a_head(bridge, task, asked.layers, asked.heads)
        took, peers = middle - began, time.perf_counter() - middle
        apart = f"{np.abs(ours - theirs).max():.1e}"
        table.add_row(str(prompts), str(length), f"{peers:.2f}", f"{took:.2f}", f"{2 * peers / took:.1f} x", apart)
    Console().print(table)


if __name__ == "__main__":
    main()
