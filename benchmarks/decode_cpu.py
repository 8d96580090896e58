"""One decode step of one LRKV layer on a CPU, against writing keys and values out and against a dense cache.

    python benchmarks/decode_cpu.py [--lengths 2048,8192] [--heads 18] [--d-head 128] [--rank 55] [--rounds 15]

One request, float32, pages in one run. All arms run in turns, in random order, each from cold caches (a buffer larger
than the last-level cache is gone through before); figures are medians of the process's CPU seconds. The read rate is
that of a sum over as many bytes as the LRKV cache has. Probes: entropy, parts of the score, the four strongest
positions, two spans.

Tried and not kept: the step in loops compiled by numba 0.68, with prefetching, was 1.19 to 1.34 times as fast as torch
at 2048 tokens and 1.27 to 1.41 times at 8192 (four runs), and with keys rotated at read 0.64 to 0.89 times.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from headscope.kernels import KeyPart, Pages, Probes, Problem, Turn, ValuePart, decode

PAGE = 64
COLD = torch.zeros(48 * 2**20 // 4)


def arms(heads: int, d_head: int, rank: int, length: int) -> tuple[dict[str, Callable[[], object]], dict[str, int]]:
    """Return what is timed, by name, and the bytes that each reads once."""
    torch.manual_seed(0)
    stored, pages = -(-rank // 8) * 8, -(-length // PAGE)

    def rows(groups: int, width: int, kept: int) -> torch.Tensor:
        made = torch.zeros(groups, pages, PAGE, kept)
        made[..., :width] = torch.randn(groups, pages, PAGE, width)
        return made

    k_shared, v_shared = rows(1, d_head, d_head), rows(1, d_head, d_head)
    k_coords, v_coords = rows(heads, rank, stored), rows(heads, rank, stored)
    up_k, up_v = (F.pad(torch.randn(heads, d_head, rank) * rank**-0.5, (0, stored - rank)) for _ in "kv")
    q = torch.randn(1, heads, d_head)
    where = Pages(torch.arange(pages)[None], torch.tensor([length]))
    planes = torch.arange(d_head // 2)
    turn = Turn(up_k, 10000.0 ** (-planes / (d_head // 2)), planes, planes + d_head // 2)
    values = ValuePart("shared", v_shared), ValuePart("private", v_coords)

    def step(private: Callable[[], KeyPart], probes: Probes | None = None) -> torch.Tensor:
        problem = Problem((KeyPart("shared", q, k_shared), private()), values, where, d_head**-0.5)
        found = decode(problem, probes, path="torch")
        return found.values[0] + torch.einsum("bhr,hdr->bhd", found.values[1], up_v)

    def absorbed() -> KeyPart:
        return KeyPart("private", torch.einsum("bhd,hdr->bhr", q, up_k), k_coords)

    def expanded(shared: torch.Tensor, coords: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return shared.flatten(1, 2)[:, :length] + coords.flatten(1, 2)[:, :length] @ up.mT

    def materialise() -> torch.Tensor:
        k, v = expanded(k_shared, k_coords, up_k), expanded(v_shared, v_coords, up_v)
        return F.scaled_dot_product_attention(q[:, :, None], k[None], v[None])[:, :, 0]

    dense_k, dense_v = (torch.randn(1, heads, length, d_head) for _ in "kv")

    def dense() -> torch.Tensor:
        return F.scaled_dot_product_attention(q[:, :, None], dense_k, dense_v)[:, :, 0]

    torch.testing.assert_close(step(absorbed), materialise(), rtol=1e-4, atol=1e-5)
    spans = torch.tensor([[[0, length // 2], [10, 40]]])
    cache = torch.cat([x.flatten() for x in (k_shared, v_shared, k_coords, v_coords)])
    timed = {
        "lrkv": lambda: step(absorbed),
        "lrkv, probes": lambda: step(absorbed, Probes(top=4, spans=spans)),
        "lrkv, keys rotated at read": lambda: step(lambda: KeyPart("private", q, k_coords, turn)),
        "written out + sdpa": materialise,
        "dense cache, sdpa": dense,
        "reading the lrkv cache": lambda: cache.sum(),
    }
    held = cache.nbytes
    sizes = dict.fromkeys(timed, held)
    return timed, sizes | {"dense cache, sdpa": dense_k.nbytes + dense_v.nbytes}


def measure(timed: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each arm's median seconds, all run in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    order = random.Random(0)
    for _ in range(rounds + 1):
        for name, run in order.sample(list(timed.items()), len(timed)):
            COLD.add_(1)
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def main() -> None:
    """Print a table a length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,8192")
    parser.add_argument("--heads", type=int, default=18)
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--rank", type=int, default=55)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {}
    with torch.no_grad():
        for length in map(int, options.lengths.split(",")):
            timed, sizes = arms(options.heads, options.d_head, options.rank, length)
            took = measure(timed, options.rounds)
            found[length] = {name: {"seconds": took[name], "bytes": sizes[name]} for name in took}
    if options.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return
    for length, rows in found.items():
        base = rows["lrkv"]["seconds"]
        sys.stdout.write(f"{length} tokens, {options.heads} heads of {options.d_head}, rank {options.rank}, float32\n")
        for name, row in rows.items():
            rate = row["bytes"] / row["seconds"] / 1e9
            line = f"{name:28}{1e3 * row['seconds']:9.2f} ms{row['seconds'] / base:8.2f} x{rate:8.1f} GB/s\n"
            sys.stdout.write(line)


if __name__ == "__main__":
    main()
