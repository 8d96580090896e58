"""Time `headscope report` on layers as large as released models', against what its products take on this machine.

For each shape a Hugging Face directory with random bfloat16 weights is written (attention only: a report reads nothing
else) and reported on, a process each. Between layers a large float64 product is timed, so that rate and report are
measured side by side. Seconds are the processor's, of all threads together: waiting for other work on the machine is
not counted, though such work slows memory down. Printed is, for the median layer:

- the products that the inner products of its forms need, in GFLOP, counted by hand for each shape, symmetric ones half;
- its seconds, all told: reading, checking, upcasting, products, spectra; and the share of the measured rate at which
  the needed products ran within them;
- the peak of memory above what was there before, in attention weights of the working type (float64);
- the same for the forms written out, ``d_model x d_model`` each: measured where they fit, else computed from the rate
  (in brackets).

    python benchmarks/report.py [--shapes llama-3-8b llama-3-70b deepseek-v3] [--layers 2] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headscope as hs
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

GEMM = 1536
"""Side of the square product that the rate is measured with."""
FITS = 8 * 2**30
"""Bytes that forms written out may take to be measured."""


@dataclass(frozen=True)
class Shape:
    """A layer of a released model.

    Parameters
    ----------
    config
        Fields of its ``config.json`` that say the shape.
    tensors
        Name under ``model.layers.N.`` -> shape.
    needed
        Multiply-adds of the inner products, two operations each.
    """

    config: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    needed: int

    @property
    def weights(self) -> int:
        """Attention weights of a layer."""
        return sum(int(np.prod(shape)) for shape in self.tensors.values())


def llama(d: int, heads: int, groups: int, width: int = 128) -> Shape:
    """Return a Llama layer."""
    pairs = groups * (groups + 1) // 2
    # Keys: products of all pairs of groups, K_g^T K_g'. Queries: each head times that of its group with each group
    # before, Q_j (K_g^T K_g'), and its inner product with the heads there. Values and outputs alike.
    circuit = 2 * d * width * (width * pairs + width * heads * (groups + 1) // 2 + heads * (heads + 1) // 2)
    config = {
        "model_type": "llama", "hidden_size": d, "num_attention_heads": heads, "num_key_value_heads": groups,
        "head_dim": width, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    }  # fmt: skip
    tensors = {
        "self_attn.q_proj": (heads * width, d),
        "self_attn.k_proj": (groups * width, d),
        "self_attn.v_proj": (groups * width, d),
        "self_attn.o_proj": (d, heads * width),
    }
    return Shape(config, tensors, 2 * circuit)


def deepseek(d: int, heads: int, q: int, kv: int, rope: int, nope: int, value: int) -> Shape:
    """Return a DeepSeek-V3 layer."""
    pairs = heads * (heads + 1) // 2
    # Forms between latents are narrow, so they are written out: [q, kv] and [kv, d] a head, then all pairs' products.
    content = heads * q * nope * kv + pairs * q * kv
    value_output = heads * d * value * kv + pairs * d * kv
    # One rotary key for all heads: a product with its Gram matrix, and all pairs.
    position = d * rope**2 + heads * q * rope**2 + pairs * q * rope
    # Between residual streams the latents' Gram matrices stand in between: made, applied, written out once more.
    grams = d * (q**2 + kv**2) // 2 + heads * nope * (q**2 + kv**2)
    config = {
        "model_type": "deepseek_v3", "hidden_size": d, "num_attention_heads": heads, "q_lora_rank": q,
        "kv_lora_rank": kv, "qk_rope_head_dim": rope, "qk_nope_head_dim": nope, "v_head_dim": value,
        "first_k_dense_replace": 0, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    }  # fmt: skip
    tensors = {
        "self_attn.q_a_proj": (q, d),
        "self_attn.q_b_proj": (heads * (nope + rope), q),
        "self_attn.kv_a_proj_with_mqa": (kv + rope, d),
        "self_attn.kv_b_proj": (heads * (nope + value), kv),
        "self_attn.o_proj": (d, heads * value),
    }
    return Shape(config, tensors, 2 * (2 * content + value_output + position + grams))


SHAPES = {
    "llama-3-8b": llama(4096, 32, 8),
    "llama-3-70b": llama(8192, 64, 8),
    "deepseek-v3": deepseek(7168, 128, 1536, 512, 64, 128, 128),
}


def write(place: Path, shape: Shape, layers: int) -> None:
    """Write a checkpoint, a shard a layer."""
    common = {"num_hidden_layers": layers, "vocab_size": 8, "intermediate_size": 8, "max_position_embeddings": 8192}
    if "first_k_dense_replace" in shape.config:  # every MLP dense: there is none here, and experts would want a width
        common["first_k_dense_replace"] = layers
    (place / "config.json").write_text(json.dumps(shape.config | common))
    where = {}
    for layer in range(layers):
        root, file = f"model.layers.{layer}.", f"layer-{layer}.safetensors"
        held = {
            f"{root}{name}.weight": torch.randn(size, dtype=torch.bfloat16) * size[-1] ** -0.5
            for name, size in shape.tensors.items()
        }
        held[f"{root}input_layernorm.weight"] = torch.ones(shape.config["hidden_size"], dtype=torch.bfloat16)
        for name in ("q_a", "kv_a"):
            if (down := f"{name}_proj") in {key.split(".")[1].removesuffix("_with_mqa") for key in shape.tensors}:
                width = shape.config["q_lora_rank" if down == "q_a_proj" else "kv_lora_rank"]
                held[f"{root}self_attn.{name}_layernorm.weight"] = torch.ones(width, dtype=torch.bfloat16)
        save_file(held, place / file)
        where |= dict.fromkeys(held, file)
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def rate() -> float:
    """Return this moment's rate of a large float64 product, in operations a second: torch's or NumPy's, the better."""
    best = 0.0
    for a in (torch.ones(GEMM, GEMM, dtype=torch.float64), np.ones((GEMM, GEMM))):
        b = a + 1  # NumPy takes a square of one matrix for half the work
        began = time.process_time()
        for _ in range(2):
            a @ b
        best = max(best, 2 * 2 * GEMM**3 / (time.process_time() - began))
    return best


def peak() -> int:
    """Return the largest resident set since `forget_peak`, in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def forget_peak() -> int:
    """Count the peak from here on, and return what is there now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def measure(place: Path, offsets: str) -> dict[str, Any]:
    """Report on a checkpoint; return seconds a layer, the rates around it, and the peak."""
    rates, seconds = [rate(), rate()], []
    before, began = forget_peak(), 0.0

    def tick(done: int, total: int, what: str) -> None:
        nonlocal began
        if what.startswith("layer"):
            seconds.append(time.process_time() - began)
            rates.append(rate())
        began = time.process_time()

    hs.report(place, offsets=offsets, null=0, progress=tick)
    grown = peak() - before
    between = [(a + b) / 2 for a, b in zip(rates[1:], rates[2:], strict=False)]
    return {"seconds": seconds, "rates": between, "peak": grown}


def written_out(place: Path, shape: Shape) -> dict[str, Any]:
    """Do the same with forms ``d_model x d_model``, one circuit after the other; None where they do not fit."""
    opened = hs.open_checkpoint(place)
    factors = opened.factors(0)
    d, heads = shape.config["hidden_size"], shape.config["num_attention_heads"]
    size = heads * d * d * 8
    width = shape.config.get("head_dim") or shape.config["qk_nope_head_dim"]
    work = 2 * (heads * d * d * width + heads * heads * d * d)
    if size > FITS:
        return {"size": size, "work": 2 * work}
    rates, began = [rate()], time.process_time()
    for parts in factors.circuits.values():
        ((form,),) = parts.values()
        forms = torch.empty(heads, d, d, dtype=torch.float64)
        for head in range(heads):
            torch.mm(form.left.dense(head), form.right.dense(head).T, out=forms[head])
        flat = forms.flatten(1)
        flat @ flat.T
        del forms, flat
    took = time.process_time() - began
    return {"size": size, "work": 2 * work, "seconds": took, "rates": [*rates, rate()]}


def child(name: str, layers: int, threads: int) -> None:
    """Measure one shape and print it as JSON."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), SHAPES[name], layers)
        hs.report("lrkv", null=0)  # imports, and whatever else happens once
        found = {offsets: measure(Path(folder), offsets) for offsets in ("0", "0:255")}
        found["forms"] = written_out(Path(folder), SHAPES[name])
    sys.stdout.write(json.dumps(found))


def main() -> None:
    """Run the benchmark and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--child", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.child:
        return child(asked.child, asked.layers, asked.threads)
    table = Table(
        "layer", "offsets", "needed (GFLOP)", "GEMM rate (GFLOP/s)", "products alone (s)", "layer (s)",
        "share of the rate", "peak / weights", "forms written out (s)", "their size / weights",
    )  # fmt: skip
    for name in asked.shapes:
        command = [
            sys.executable,
            __file__,
            "--child",
            name,
            *(f"--{k}={getattr(asked, k)}" for k in ("layers", "threads")),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found, shape = json.loads(done.stdout), SHAPES[name]
        forms = found.pop("forms")
        for offsets, seen in found.items():
            seconds, speed = np.array(seen["seconds"]), np.array(seen["rates"])
            middle = int(np.argsort(seconds)[len(seconds) // 2])
            alone = shape.needed / speed
            written = f"{forms['seconds']:.1f}" if "seconds" in forms else f"({forms['work'] / speed.mean():.0f})"
            table.add_row(
                name, offsets, f"{shape.needed / 1e9:.0f}", f"{speed[middle] / 1e9:.0f}",
                f"{alone[middle]:.2f}", f"{seconds[middle]:.2f}", f"{100 * np.median(alone / seconds):.0f} %",
                f"{seen['peak'] / (8 * shape.weights):.2f}", written, f"{forms['size'] / (8 * shape.weights):.0f}",
            )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return None


if __name__ == "__main__":
    main()
