"""Bytes of real caches: by the formula, of the tensors, and what the process grows by while they are filled.

    python benchmarks/cache_memory.py [--tokens 8192] [--layers 4]

Heads as in the LRKV paper's 2.5B models (18 of 128) in a narrow model, float32, one request. Each variant runs in a
process of its own; its peak is the resident set's, less what it was before the cache was made.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

VARIANTS = ("mha", "gqa", "mqa", "mla", "lrkv")
MIB = 2**20


def build(variant: str) -> object:
    """Return the variant's configuration."""
    from headscope.models import GroupedConfig, LRKVConfig, MLAConfig

    heads = {"n_heads": 18}
    return {
        "mha": lambda: GroupedConfig(**heads, d_head=128),
        "gqa": lambda: GroupedConfig(**heads, d_head=128, n_kv_heads=6),
        "mqa": lambda: GroupedConfig(**heads, d_head=128, n_kv_heads=1),
        "mla": lambda: MLAConfig(**heads, d_latent=384, d_nope=128, d_rope=64, d_value_head=128),
        "lrkv": lambda: LRKVConfig(**heads, d_head=128, rank=55),
    }[variant]()


def one(variant: str, layers: int, tokens: int) -> dict[str, int]:
    """Return one variant's bytes; run in a process of its own."""
    import torch
    from headscope.budgets.cache import Storage, cache_bytes
    from headscope.models import Cache, HookedModel, ModelConfig

    torch.set_num_threads(1)
    attention = build(variant)
    model = HookedModel(ModelConfig(d_model=64, n_layers=layers, d_vocab=16, n_ctx=tokens, attention=attention))
    block = torch.zeros(1, 256, dtype=torch.long)
    with torch.no_grad():
        model(block)
        before = _resident()
        cache = Cache(model, tokens)
        made = _resident()
        for rows in (rows for layer in cache.stored for rows in layer.values()):
            rows.fill_(1.0)  # every page is touched, as by a full history
        filled = _resident()
    found = cache_bytes(attention, layers, [tokens], Storage(element_bytes=4))
    return {"formula": found.allocated, "tensors": cache.bytes_allocated, "grown": max(made, filled) - before}


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print a line a variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(one(options.one, options.layers, options.tokens)))
        return
    sys.stdout.write(f"{'':6}{'formula MiB':>14}{'tensors MiB':>14}{'process grew by MiB':>22}\n")
    for variant in VARIANTS:
        again = [sys.executable, __file__, "--one", variant, f"--tokens={options.tokens}", f"--layers={options.layers}"]
        row = json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
        cells = "".join(f"{row[name] / MIB:{width}.2f}" for name, width in zip(row, (14, 14, 22), strict=True))
        sys.stdout.write(f"{variant:6}{cells}\n")


if __name__ == "__main__":
    main()
