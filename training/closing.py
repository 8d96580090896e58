"""What a finished run says when it ends: its result in a few lines."""

from __future__ import annotations

from typing import Any


def closing(result: dict[str, Any]) -> list[str]:
    """Return the main numbers of a run's ``result.json`` in words, three lines.

    Parameters
    ----------
    result
        As `train` writes it; what an older run did not record is left out.

    Examples
    --------
    >>> result = {"seconds": 4240.0, "cpu_seconds": 4180.0, "test": {"loss": 2.4745, "bits_per_byte": 1.2669}}
    >>> result["baselines"] = {"bigram": 2.0152, "gzip": 2.07, "xz": 1.837}
    >>> result["induction"] = {"best": 0.1823, "first_loss": 9.49, "second_loss": 8.6627}
    >>> print(*closing(result), sep=chr(10))
    test split: 2.4745 nats a token, 1.267 bits a byte; without a network: bigram 2.015, gzip 2.070, xz 1.837
    random tokens shown twice: 9.490 nats a token, the second time 8.663; best head's induction score 0.182 of 1
    70.7 minutes, 69.7 of the processor
    """
    test, twice = result["test"], result["induction"]
    without = ", ".join(f"{name} {value:.3f}" for name, value in result["baselines"].items())
    return [
        f"test split: {test['loss']:.4f} nats a token, {test['bits_per_byte']:.3f} bits a byte; "
        f"without a network: {without}",
        f"random tokens shown twice: {twice['first_loss']:.3f} nats a token, "
        f"the second time {twice['second_loss']:.3f}; best head's induction score {twice['best']:.3f} of 1",
        _took(result["seconds"], result.get("cpu_seconds")),
    ]


def _took(wall: float, cpu: float | None) -> str:
    unit, length = ("minutes", 60) if wall >= 60 else ("seconds", 1)
    return f"{wall / length:.1f} {unit}" + ("" if cpu is None else f", {cpu / length:.1f} of the processor")
