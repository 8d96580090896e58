"""Time a training step of each preset, against MHA's in the same run.

The minutes that runs record are by the clock, with whatever else the machine did. Here the presets take turns, round
after round, a few steps each, so that all of them meet the same machine; seconds are the processor's. Printed is, for
each preset, the median over rounds of its step, and of its ratio to MHA's step in the same round, with the range.

    python benchmarks/training.py [--rounds 8] [--steps 8] [--size reference]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from headscope.models import HookedModel
from headscope.training import Recipe, build
from headscope.training.optimiser import Optimisers
from headscope.training.presets import BACKBONES, PRESETS
from rich.console import Console
from rich.table import Table


class Runner:
    """One preset's model, and its optimisers, on tokens drawn at random: what they are does not change the time."""

    def __init__(self, preset: str, size: str, recipe: Recipe) -> None:
        self.model = HookedModel(build(preset, size))
        self.optimisers = Optimisers(self.model, recipe.muon_lr, recipe.adam_lr, recipe.weight_decay)
        shape = (recipe.batch_size, self.model.config.n_ctx)
        self.tokens = torch.randint(self.model.config.d_vocab, shape)

    def steps(self, count: int) -> float:
        """Take some steps; return the processor's seconds for one."""
        began = time.process_time()
        for _ in range(count):
            self.model(self.tokens, return_type="loss").backward()
            self.optimisers.step(0.5)
        return (time.process_time() - began) / count


def main() -> None:
    """Run the benchmark and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--steps", type=int, default=8)
    options.add_argument("--size", default="reference", choices=list(BACKBONES))
    asked = options.parse_args()
    recipe = Recipe()
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(0)
    runners = {preset: Runner(preset, asked.size, recipe) for preset in PRESETS}
    for runner in runners.values():
        runner.steps(1)  # what happens once
    seconds = {preset: np.empty(asked.rounds) for preset in PRESETS}
    for turn in range(asked.rounds):
        for preset, runner in runners.items():
            seconds[preset][turn] = runner.steps(asked.steps)
    table = Table("preset", "ms a step", "tokens a second", "of MHA's step, median", "range")
    for preset, took in seconds.items():
        ratio = took / seconds["mha"]
        windows = runners[preset].tokens.numel()
        middle = float(np.median(took))
        table.add_row(
            preset, f"{1000 * middle:.0f}", f"{windows / middle:,.0f}",
            f"{np.median(ratio):.2f}", f"{ratio.min():.2f}–{ratio.max():.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
