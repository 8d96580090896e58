"""One sweep on several processes: which of them this is, and how their parts come together.

Started by ``torchrun --nproc-per-node N -m headscope ablate …``; by itself a process is the only one. Layers go round
the processes, each layer is worked out whole by one of them, so that the numbers do not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed

from ..errors import HeadscopeError

T = TypeVar("T")
PATIENCE = timedelta(hours=24)
"""How long a process waits for the others at the end: as long as the slowest may take."""


@dataclass(frozen=True)
class Workers:
    """One process among all.

    Parameters
    ----------
    rank, count
        Which it is, of how many.
    """

    rank: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process gathers, saves and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Return this process's items."""
        return list(items[self.rank :: self.count])

    def gather(self, mine: Any) -> list[Any] | None:
        """Return what every process brings, by rank, on the leading one; None on the others.

        Raises
        ------
        HeadscopeError
            If another process has died.
        """
        if self.count == 1:
            return [mine]
        brought: list[Any] | None = [None] * self.count if self.leads else None
        try:
            distributed.gather_object(mine, brought)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise HeadscopeError(f"another of the {self.count} processes has stopped ({reason})") from error
        return brought


@contextmanager
def workers() -> Iterator[Workers]:
    """Join the other processes that torchrun started, if it did, for the length of a ``with`` block."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or not distributed.is_available():
        yield Workers()
        return
    # Objects are gathered through host memory, so gloo serves GPUs, too.
    distributed.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Workers(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
