"""What can be asked of a decode step besides its output, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Probes:
    """What to look at while attending.

    Entropy, distance and the parts of the score always come; the rest is asked for.

    Parameters
    ----------
    top
        How many of the strongest positions.
    spans
        For each request, first and one-past-last position of each span whose mass is wanted; an empty span (0, 0) has
        none.
    """

    top: int = 4
    spans: Int[Tensor, "batch span 2"] | None = None

    def __post_init__(self) -> None:
        if self.top < 0:
            raise ValueError(f"top should be >= 0 but got {self.top}")
        if self.spans is not None and bool((self.spans[..., 0] > self.spans[..., 1]).any()):
            raise ValueError(f"spans should run from first to last position but are {self.spans.tolist()}")


@dataclass(frozen=True, eq=False)
class ProbeValues:
    """What one query of each head looked at, and why.

    Parameters
    ----------
    entropy
        Of the attention weights, nats.
    distance
        Mean number of positions between query and key.
    score
        Mean scaled score of each key part under the attention weights; the sum over parts is the mean score.
    score_everywhere
        The same with all positions weighed alike. ``score - score_everywhere`` is how far a part lifts what is looked
        at above the average position, which no constant added to a part changes.
    top_positions, top_weights
        The strongest positions, strongest first, and their weights; −1 and 0 where there are fewer tokens.
    span_mass
        Sum of weights in each span.
    """

    entropy: Float[Tensor, "batch head"]
    distance: Float[Tensor, "batch head"]
    score: Float[Tensor, "batch head part"]
    score_everywhere: Float[Tensor, "batch head part"]
    top_positions: Int[Tensor, "batch head top"]
    top_weights: Float[Tensor, "batch head top"]
    span_mass: Float[Tensor, "batch head span"]
