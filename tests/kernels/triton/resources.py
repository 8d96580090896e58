"""Compile what the host code would launch, for a device that is not there, and print what each kernel takes as JSON.

Run as a process of its own, without TRITON_INTERPRET: a stand-in for the driver names the target, and every launch becomes
a compilation with the arguments it would have had.

    python resources.py ARCH WHAT [WHAT ...]      WHAT: lrkv, lrkv-turned, gqa, mla, ...; with -probes: looking as well
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from headscope.kernels import KeyPart, Pages, Probes, Problem, Turn, ValuePart
from headscope.kernels.triton.launch import decode_triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
PAGE = 64


class Driver:
    """As much of a driver as compiling asks for."""

    def __init__(self, arch: int) -> None:
        self.target = GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def real_step(kind: str, dtype: torch.dtype = torch.bfloat16) -> Problem:
    """Return a step with the shapes of a real model and one short request; the numbers in it do not matter."""
    pages = Pages(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32))

    def rows(group: int, width: int) -> torch.Tensor:
        return torch.zeros(group, 2, PAGE, width, dtype=dtype)

    def query(heads: int, width: int) -> torch.Tensor:
        return torch.zeros(1, heads, width, dtype=dtype)

    if kind == "mla":
        latent = rows(1, 512)
        keys = (KeyPart("content", query(128, 512), latent), KeyPart("position", query(128, 64), rows(1, 64)))
        return Problem(keys, (ValuePart("latent", latent),), pages, 0.07)
    if kind in ("mha", "gqa", "mqa"):
        groups = {"mha": 32, "gqa": 8, "mqa": 1}[kind]
        keys = (KeyPart("all", query(32, 128), rows(groups, 128)),)
        return Problem(keys, (ValuePart("all", rows(groups, 128)),), pages, 0.09)
    private = KeyPart("private", query(18, 56), rows(18, 56))
    if "turned" in kind:
        planes = torch.arange(64)
        turn = Turn(torch.zeros(18, 128, 56), torch.ones(64), planes, planes + 64)
        private = KeyPart("private", query(18, 128), rows(18, 56), turn)
    keys = (KeyPart("shared", query(18, 128), rows(1, 128)), private)
    values = (ValuePart("shared", rows(1, 128)), ValuePart("private", rows(18, 56)))
    return Problem(keys, values, pages, 0.09, rows(18, 1)[..., 0] if "normed" in kind else None)


def unused(kernel: Any) -> list[str]:
    """Return the pointers that a kernel was handed and does not touch."""
    code = kernel.asm["ttir"]
    handed = re.findall(r"%([\w.]+): !tt\.ptr", code[code.index("tt.func") :].split("\n", 1)[0])
    return [name for name in handed if len(re.findall(rf"%{re.escape(name)}(?![\w.])", code)) < 2]


def taken(kernel: Any) -> dict[str, Any]:
    """Return what a compiled kernel takes.

    Registers a thread, bytes of stack (where spilled registers go), bytes of shared memory, how many instructions use
    tensor cores and copy asynchronously, and pointers that it does not touch.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"{kernel.name}.*?REG:(\d+) STACK:(\d+)", usage, re.DOTALL)
    if found is None:
        raise ValueError(f"no resources of {kernel.name} in {usage}")
    return {
        "registers": int(found[1]),
        "stack": int(found[2]),
        "shared": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "tensor": len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", kernel.asm["ptx"])),
        "unused": unused(kernel),
        "async": len(re.findall(r"\bcp\.async\.cg", kernel.asm["ptx"])),
    }


def main() -> None:
    """Compile and print."""
    arch, *wanted = sys.argv[1:]
    triton.runtime.driver.set_active(Driver(int(arch)))
    compiled: dict[str, Any] = {}

    def compiling(self: JITFunction, grid: Any) -> Any:
        return lambda *args, **options: compiled.__setitem__(self.__name__, self.warmup(*args, grid=grid, **options))

    JITFunction.__getitem__ = compiling
    for what in wanted:
        compiled.clear()
        kind = what.removesuffix("-probes")
        probes = Probes(top=4, spans=torch.zeros(1, 4, 2, dtype=torch.int32)) if kind != what else None
        decode_triton(real_step(kind), probes)
        row = {"what": what, "kernels": {name: taken(kernel) for name, kernel in compiled.items()}}
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
