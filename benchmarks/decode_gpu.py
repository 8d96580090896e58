"""Time decode steps on one GPU: bandwidth reached, the cost of probes, and torch's own attention beside it.

First the kernels are checked against float64 (`tests/kernels/triton/cases.py`, and under compute-sanitizer where that
is installed) and the rate at which this device reads is measured. Then every shape is timed at every load under a CUDA
graph that goes through enough layers for no cache to hold them. Prints one table and saves it with the circumstances.

    python benchmarks/decode_gpu.py [--out decode_gpu.json] [--minutes 5] [--rehearse]

``--rehearse`` goes through the same motions with tiny sizes on the CPU, by the torch path and unchecked, to see that
the script works; its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from decode_peers import Run, flex, sdpa
from decode_steps import SHAPES, Shape, bytes_read, step
from headscope.kernels import Probes, Problem, decode
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "kernels" / "triton" / "cases.py"
BEYOND_CACHE = 1 << 29
"""Bytes that a timed run reads at least, several times what a device's cache holds."""
MOST_LAYERS = 18


def loads(scale: int) -> dict[str, list[int]]:
    """Return tokens of each request, by name; `scale` divides them."""
    ragged = [(1 << 9) + 977 * (17 * i % 32) // 2 for i in range(64)]
    full = {"1 x 8k": [8192], "8 x 8k": [8192] * 8, "64 x 8k": [8192] * 64, "64 of 0.5k to 16k": ragged}
    return {name: [max(1, length // scale) for length in found] for name, found in full.items()}


def graphed(run: Run) -> Run:
    """Return what replays a run as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def milliseconds(run: Run, device: torch.device) -> float:
    """Return how long a run takes: the median of seven, after a first that does not count."""
    if device.type != "cuda":
        run()
        began = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - began)
    run = graphed(run)
    run()
    took = []
    for _ in range(7):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        took.append(first.elapsed_time(last))
    return statistics.median(took)


def read_rate(device: torch.device) -> float:
    """Return bytes a second of reading a large tensor once, the faster of two ways."""
    numbers = torch.ones((1 << 32 if device.type == "cuda" else 1 << 24) // 4, device=device)
    best = min(milliseconds(numbers.sum, device), milliseconds(numbers.amax, device))
    return numbers.nbytes / best * 1e3


def all_layers(layers: list[Problem], probes: Probes | None, path: str) -> Run:
    """Return a run of one step through all layers."""
    return lambda: [decode(layer, probes, path=path) for layer in layers]  # type: ignore[arg-type]


def measure(shape: Shape, lengths: list[int], device: torch.device, with_peers: bool) -> dict[str, float | None]:
    """Time one shape at one load; all times are milliseconds a layer."""
    path = "triton" if device.type == "cuda" else "torch"
    first = step(shape, lengths, device)
    size = bytes_read(first)
    count = min(MOST_LAYERS, -(-BEYOND_CACHE // size)) if device.type == "cuda" else 1
    layers = [first, *(step(shape, lengths, device) for _ in range(count - 1))]
    spans = torch.tensor([[[0, 1], [length // 2, length]] for length in lengths], device=device)
    found: dict[str, float | None] = {"bytes": size, "layers": count}
    asked = {"plain": None, "cheap_probes": Probes(top=0, spans=spans), "all_probes": Probes(top=4, spans=spans)}
    for name, probes in asked.items():
        found[name] = milliseconds(all_layers(layers, probes, path), device) / count
    del layers, first
    # A peer's cache is at least as large, so as many layers of it are beyond the device's cache as well.
    for name, peer in (("sdpa", sdpa), ("flex", flex)):
        run = peer(shape, lengths, count, device) if with_peers else None
        found[name] = None if run is None else milliseconds(run, device) / count
    return found


def checked(command: list[str], seconds: int) -> str:
    """Return the last line that a check printed, or how it failed."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished after {seconds} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()] or ["nothing printed"]
    return f"{'passed' if done.returncode == 0 else 'FAILED'}: {lines[-1]}"


def checks() -> dict[str, str]:
    """Check the kernels against float64, and a small case under compute-sanitizer where there is one."""
    cases = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    found = {"against float64": checked([*cases, "-k", "every_kind or half_precision"], 120)}
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        return {**found, "compute-sanitizer": "not installed"}
    small = [sanitizer, "--error-exitcode", "1", *cases, "-k", "any_page_size"]
    return {**found, "compute-sanitizer": checked(small, 60)}


def table(rows: list[dict], rate: float) -> Table:
    """Return the table that is printed."""
    columns = ("shape", "load", "MB a layer", "ms a layer", "of read rate", "cheap probes", "all", "SDPA ms", "Flex ms")
    out = Table(*columns)

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.4f}"

    for row in rows:
        share = row["bytes"] / row["plain"] * 1e3 / rate
        cheap, everything = (f"{row[name] / row['plain'] - 1:+.0%}" for name in ("cheap_probes", "all_probes"))
        size = f"{row['bytes'] / 1e6:.1f}"
        peers = shown(row["sdpa"]), shown(row["flex"])
        out.add_row(row["shape"], row["load"], size, shown(row["plain"]), f"{share:.0%}", cheap, everything, *peers)
    return out


def main() -> int:
    """Run the benchmark, print a table and save it."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path("decode_gpu.json"))
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--rehearse", action="store_true")
    asked = options.parse_args()
    console = Console(width=150)
    if not asked.rehearse and not torch.cuda.is_available():
        console.print("This benchmark needs a GPU, and torch finds none (--rehearse tries the script on the CPU).")
        return 2
    device = torch.device("cpu" if asked.rehearse else "cuda")
    torch.manual_seed(0)
    began = time.monotonic()
    record = {
        "device": "rehearsal on a CPU, times mean nothing" if asked.rehearse else torch.cuda.get_device_name(),
        **{name: version(name) for name in ("torch", "triton")},
        "checks": {} if asked.rehearse else checks(),
        "read_rate": read_rate(device),
    }
    rows = []
    for load, lengths in loads(2048 if asked.rehearse else 1).items():
        for shape in SHAPES:
            spent = (time.monotonic() - began) / 60
            if spent > asked.minutes * 0.9:
                console.print(f"out of time: {shape.name} at {load} was not timed")
                continue
            found = measure(shape, lengths, device, with_peers=spent < asked.minutes * 0.7)
            rows.append({"shape": shape.name, "load": load, **found})
    record["rows"] = rows
    asked.out.write_text(json.dumps(record, indent=1))
    console.print(table(rows, record["read_rate"]))
    console.print(f"{record['device']}: reads {record['read_rate'] / 1e12:.2f} TB/s; {record['checks']}; {asked.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
