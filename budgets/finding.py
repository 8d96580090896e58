"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass

AGREES, CONTRADICTS, UNKNOWN = "agrees", "contradicts", "cannot be checked"


@dataclass(frozen=True)
class Finding:
    """A check with its outcome.

    Parameters
    ----------
    name, variant, source
        Whose figure it is and where it stands.
    check
        What was checked.
    printed, computed
        What is printed, and what comes out, with units.
    verdict
        `AGREES`, `CONTRADICTS` or `UNKNOWN`.
    explanation
        What would make it true, or what is missing.
    """

    name: str
    variant: str
    source: str
    check: str
    printed: str
    computed: str
    verdict: str
    explanation: str = ""
