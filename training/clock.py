"""What a run has taken so far, over all its processes: time on the wall, the processor's time, and which one it was."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Spent:
    """Time that training took, without what was measured at the end.

    Parameters
    ----------
    seconds
        On the wall: a busy machine makes it longer.
    cpu_seconds
        Of the processor, all threads together; None if a part of the run did not record it.
    cpus
        Names of the processors that the run was on, in order; None for one that does not say its name.
    """

    seconds: float = 0.0
    cpu_seconds: float | None = 0.0
    cpus: tuple[str | None, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "cpus": list(self.cpus)}

    @classmethod
    def from_dict(cls, held: dict[str, Any]) -> Spent:
        """Return what `to_dict` gave; what was kept before processors were recorded says only the time on the wall."""
        return cls(held["seconds"], held.get("cpu_seconds"), tuple(held.get("cpus", [None])))


class Clock:
    """Goes on from what was spent before."""

    def __init__(self, before: Spent) -> None:
        cpu = cpu_name()
        self._before = before
        self._cpus = before.cpus if cpu in before.cpus else (*before.cpus, cpu)
        self._wall, self._cpu = time.monotonic(), time.process_time()

    @property
    def here(self) -> float:
        """Seconds on the wall since this clock was started."""
        return time.monotonic() - self._wall

    def spent(self) -> Spent:
        """Return what was spent until now, in all."""
        cpu, before = time.process_time() - self._cpu, self._before.cpu_seconds
        return Spent(self._before.seconds + self.here, None if before is None else before + cpu, self._cpus)


def cpu_name() -> str | None:
    """Return the processor's name, as Linux gives it (``model name``); None where it does not."""
    if not _CPUINFO.exists():
        return None
    lines = (line.partition(":") for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == "model name"), None)
