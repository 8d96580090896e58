"""What probes cost while a model generates, and what a cache saves: one process, arms in turns, CPU seconds.

    python benchmarks/generation.py [--prompt 512] [--new 16] [--rounds 5] [--size small|shipped]

``small`` is a random LRKV model of 8 layers of 16 heads of 64, rank 24, width 1,024 and gated MLP of 2,736, float32;
``shipped`` the LRKV model that ships (probes of a model of a million parameters cost as much as the model). Probes:
entropy, distance, parts of the score, the four strongest positions, two spans.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from headscope.kernels import Probes
from headscope.models import HookedModel, LRKVConfig, MLPConfig, ModelConfig


def build(size: str) -> HookedModel:
    """Return the model."""
    if size == "shipped":
        import headscope as hs

        return hs.load("lrkv")
    torch.manual_seed(0)
    attention = LRKVConfig(n_heads=16, d_head=64, rank=24)
    config = ModelConfig(
        d_model=1024, n_layers=8, d_vocab=8192, n_ctx=2048, attention=attention, mlp=MLPConfig(d_mlp=2736)
    )
    return HookedModel(config).eval()


def main() -> None:
    """Print a line an arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=("small", "shipped"), default="small")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build(options.size)
    prompt = torch.randint(model.config.d_vocab, (1, options.prompt), generator=torch.Generator().manual_seed(0))
    probes = Probes(top=4, spans=torch.tensor([[[0, options.prompt // 2], [10, 40]]]))

    def run(**how: object) -> float:
        """Return the CPU seconds of a new token, the first (which reads the prompt) left out."""
        steps = model.stream(prompt, options.new + 1, stop_at_eos=False, **how)
        next(steps)
        began = time.process_time()
        for _ in steps:
            pass
        return (time.process_time() - began) / options.new

    arms: dict[str, Callable[[], float]] = {
        "with the cache": run,
        "with the cache and probes": lambda: run(probes=probes),
        "without a cache": lambda: run(use_cache=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order = random.Random(0)
    for _ in range(options.rounds):
        for name, arm in order.sample(list(arms.items()), len(arms)):
            seconds[name].append(arm())
    base = statistics.median(seconds["with the cache"])
    for name, found in seconds.items():
        middle = statistics.median(found)
        sys.stdout.write(f"{name:28}{1e3 * middle:9.2f} ms a token{middle / base:8.2f} x\n")


if __name__ == "__main__":
    main()
