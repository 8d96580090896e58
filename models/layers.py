"""Which layers a caller means."""

from __future__ import annotations

from collections.abc import Sequence


def parse_layers(layers: str | Sequence[int] | None, count: int) -> list[int]:
    """Return the chosen layers, in order and once each.

    Raises
    ------
    ValueError
        If the text is none of ``3``, ``0:4`` (both ends included) and ``0,5,9``, or nothing is chosen.
    IndexError
        If a layer does not exist; names the range.
    """
    if layers is None:
        return list(range(count))
    if isinstance(layers, str):
        try:
            wanted: list[int] = []
            for piece in layers.split(","):
                first, colon, last = piece.partition(":")
                low, high = int(first or 0), int(last or count - 1) if colon else int(first)
                # Cut before it is written out: a slip like 0:9999999999 should be an error, not a list.
                wanted += range(low, min(high, count) + 1)
        except ValueError:
            raise ValueError(f"layers should be like 3, 0:4 or 0,5,9 but got {layers!r}") from None
    else:
        wanted = [int(layer) for layer in layers]
    for layer in wanted:
        if not 0 <= layer < count:
            raise IndexError(f"layer {layer} does not exist: this checkpoint has layers 0–{count - 1}")
    if not wanted:
        raise ValueError(f"layers {layers!r} choose none of 0–{count - 1}")
    return sorted(set(wanted))
