"""How a step is laid out on the device: how many heads a program serves, and with what it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..operands import KeyPart, Problem, ValuePart

WIDE = 256
"""Rows wider than this, like MLA's latents, leave registers for fewer heads."""
COMPUTED = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Layout:
    """The choices of a launch.

    Parameters
    ----------
    tile_heads, padded_heads
        Heads a program serves, and the power of two that holds them.
    warps, stages
        Of 32 threads a program; tiles under way at a time.
    programs
        Wanted on each multiprocessor at a time.
    """

    tile_heads: int
    padded_heads: int
    warps: int
    stages: int
    programs: int

    def compiled_for(self) -> dict[str, int]:
        """Return what Triton takes beside a kernel's own arguments."""
        return {"num_warps": self.warps, "num_stages": self.stages}


def unsupported(problem: Problem) -> str | None:
    """Return why the kernels cannot take this step, or None if they can."""
    for part in (*problem.keys, *problem.values):
        if part.rows.dtype not in COMPUTED:
            return f"part {part.name!r} is {part.rows.dtype}, and the kernels read {COMPUTED}"
        if part.rows.stride(3) != 1:
            return f"the numbers of a row of part {part.name!r} are {part.rows.stride(3)} apart, not side by side"
    return None


def layout_of(problem: Problem, looking: bool) -> Layout:
    """Choose a layout, `looking` if there are probes.

    As many heads are served together as share rows in some part, so that what a group shares is read once a program and
    what is a head's own is read beside it. The limits are where registers do not spill when compiled for devices of
    compute capability 8.0 and 9.0; how fast each choice is has not been measured.
    """
    parts = (*problem.keys, *problem.values)
    wide = max(part.rows.shape[3] for part in parts) > WIDE
    full = any(part.rows.dtype == torch.float32 for part in parts)
    most = 16 if not wide else 8 if looking or full else 32
    sharing = [heads_a_group(part, problem) for part in parts]
    tile_heads = max(
        heads
        for heads in range(1, min(most, max(sharing)) + 1)
        if problem.n_heads % heads == 0 and all(heads % shared == 0 or shared % heads == 0 for shared in sharing)
    )
    heavy = wide or any(part.turn is not None for part in problem.keys)
    return Layout(
        tile_heads=tile_heads,
        padded_heads=padded(tile_heads, 8),
        warps=8 if heavy else 4,
        stages=1 if wide and full else 2,
        programs=1 if heavy else 2,
    )


def heads_a_group(part: KeyPart | ValuePart, problem: Problem) -> int:
    """Return how many heads share a row of this part."""
    return problem.n_heads // part.rows.shape[0]


def padded(width: int, least: int = 16) -> int:
    """Return the smallest power of two that holds `width`, at least `least`."""
    return max(least, 1 << (width - 1).bit_length())
