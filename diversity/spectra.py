"""Spectral measures of a layer's heads: from inner products to effective rank and its company.

Eigenvalues ``lambda`` are those of a Gram matrix, so ``lambda = sigma**2`` for the singular values of the stacked,
normalised forms. Two definitions of effective rank are in use and differ in what is treated as a probability:

- ``"gram"``: ``p ∝ lambda = sigma**2`` (the LRKV paper's);
- ``"roy"``: ``p ∝ sigma`` (Roy & Vetterli's).

References
----------
O'Neill et al. (arXiv 2601.11471v3), appendix C. Roy & Vetterli, The effective rank, EUSIPCO 2007.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.stats import entropy

Definition = Literal["gram", "roy"]
Array = np.ndarray

DEGENERATE = 1e3
"""A centred spectrum whose trace is below this many rounding errors of the uncentred one carries no digits."""


def cosine(gram: Float[Array, "head head"]) -> Float[Array, "head head"]:
    """Return the cosine similarities of a matrix of inner products.

    A head whose form is zero has no direction: its row and column are NaN.
    """
    norm = np.sqrt(np.diag(gram).clip(min=0))
    safe = np.where(norm > 0, norm, np.nan)
    similarity = gram / safe[:, None] / safe[None, :]
    np.fill_diagonal(similarity, np.where(norm > 0, 1.0, np.nan))
    return similarity


def centre(gram: Float[Array, "head head"]) -> Float[Array, "head head"]:
    """Return ``J G J`` with ``J = I - 11^T / H``: every head minus the mean head."""
    rows = gram - gram.mean(0, keepdims=True)
    return rows - rows.mean(1, keepdims=True)


def eigenvalues(gram: Float[Array, "head head"], scale: float | None = None) -> Float[Array, " head"]:
    """Return the eigenvalues, largest first; those below ``H * eps * scale`` are rounding and become zero.

    Parameters
    ----------
    gram
        Symmetric, positive semidefinite but for rounding.
    scale
        Size that rounding is relative to; None: the largest eigenvalue. For a centred matrix it is the largest
        eigenvalue before centring, since centring removes size but no rounding.
    """
    values = np.linalg.eigvalsh((gram + gram.T) / 2)[::-1]
    floor = len(values) * np.finfo(np.float64).eps * max(values[0] if scale is None else scale, 0.0)
    return np.where(values > floor, values, 0.0)


def effective_rank(eigs: Float[Array, " head"], definition: Definition = "gram") -> float:
    """Return ``exp(entropy of p)``: how many equally important directions the spectrum is worth.

    Parameters
    ----------
    eigs
        Non-negative Gram eigenvalues, any scale.
    definition
        ``"gram"``: p proportional to the eigenvalues; ``"roy"``: to their square roots (the singular values).

    Returns
    -------
    float
        Between 1 and the number of non-zero eigenvalues; 0 for a spectrum of zeros.

    Examples
    --------
    >>> round(effective_rank(np.array([9.0, 1.0, 0.0]), "roy"), 4)
    1.7548
    """
    if definition not in get_args(Definition):
        raise ValueError(f"definition should be one of {get_args(Definition)} but got {definition!r}")
    weights = _checked(eigs) if definition == "gram" else np.sqrt(_checked(eigs))
    return math.exp(float(entropy(weights))) if weights.sum() > 0 else 0.0


def participation_ratio(eigs: Float[Array, " head"]) -> float:
    """Return ``(sum lambda)**2 / sum lambda**2``; 0 for a spectrum of zeros."""
    eigs = _scaled(eigs)
    return float(eigs.sum() ** 2 / (eigs**2).sum()) if eigs.sum() > 0 else 0.0


def stable_rank(eigs: Float[Array, " head"]) -> float:
    """Return ``sum lambda / largest lambda``; 0 for a spectrum of zeros."""
    eigs = _scaled(eigs)
    return float(eigs.sum()) if eigs.sum() > 0 else 0.0


def components_for(eigs: Float[Array, " head"], share: float = 0.9) -> int:
    """Return how many leading eigenvalues it takes to reach `share` of their sum; 0 for a spectrum of zeros."""
    eigs = np.sort(_scaled(eigs))[::-1]
    if not eigs.sum() > 0:
        return 0
    # A share reached to within rounding is reached: ten equal eigenvalues need nine for 90 %.
    reached = np.cumsum(eigs) / eigs.sum() >= share - 1e-12
    return int(np.argmax(reached)) + 1


def first_component(eigs: Float[Array, " head"]) -> float:
    """Return the largest eigenvalue's share of the sum; 0 for a spectrum of zeros."""
    eigs = _scaled(eigs)
    return float(1 / eigs.sum()) if eigs.sum() > 0 else 0.0


def mean_off_diagonal(similarity: Float[Array, "head head"]) -> float:
    """Return the mean similarity of two different heads; NaN for one head alone."""
    heads = len(similarity)
    if heads < 2:
        return math.nan
    return float((similarity.sum() - np.trace(similarity)) / (heads * (heads - 1)))


def _checked(eigs: Array) -> Array:
    eigs = np.asarray(eigs, dtype=np.float64)
    if not np.isfinite(eigs).all() or (eigs < 0).any():
        raise ValueError(f"eigenvalues should be finite and >= 0 but got {eigs.tolist()}")
    return eigs


def _scaled(eigs: Array) -> Array:
    """Scale the largest to 1, so that no square over- or underflows."""
    eigs = _checked(eigs)
    return eigs / eigs.max() if eigs.size and eigs.max() > 0 else eigs


def _nothing_left(centred: Float[Array, "head head"]) -> bool:
    """Whether a centred trace is noise, not a spectrum: cosines are known to some rounding errors."""
    return bool(np.trace(centred) <= DEGENERATE * len(centred) ** 2 * np.finfo(np.float64).eps)


def shares(similarity: Float[Array, "head head"], *, centred: bool) -> Float[Array, " component"]:
    """Return each component's share of the sum of the eigenvalues, largest first.

    Parameters
    ----------
    similarity
        What `cosine` returned.
    centred
        Of the spectrum with the mean head taken away, which has H - 1 components, or of the whole one, which has H.

    Returns
    -------
    numpy.ndarray
        From 0 to 1; NaN throughout where the spectrum does not exist, as `measure` says why.

    Examples
    --------
    >>> shares(np.array([[1.0, 0.5], [0.5, 1.0]]), centred=False).tolist()
    [0.75, 0.25]
    """
    heads = len(similarity)
    if np.isnan(np.diag(similarity)).any():
        return np.full(heads - centred, math.nan)
    eigs = eigenvalues(similarity)
    if centred:
        left = centre(similarity)
        if _nothing_left(left):
            return np.full(heads - 1, math.nan)
        eigs = eigenvalues(left, scale=float(eigs[0]))[:-1]  # the last is the mean head's, zero but for rounding
    return eigs / eigs.sum()


@dataclass(frozen=True)
class Measures:
    """The measures of one layer's part. NaN where a measure does not exist; `status` then says why.

    `erank` is uncentred (at most H). `erank_centred` (at most H - 1) and all that follows is of the centred spectrum,
    except `mean_similarity`, the mean cosine of two different heads.
    """

    n_heads: int
    erank: float
    erank_centred: float
    participation_ratio: float
    stable_rank: float
    components_90: float
    first_component: float
    mean_similarity: float
    status: str


def measure(similarity: Float[Array, "head head"], definition: Definition = "gram") -> Measures:
    """Measure a layer from its heads' cosine similarities.

    Parameters
    ----------
    similarity
        What `cosine` returned.
    definition
        Which effective rank.

    Returns
    -------
    Measures
        With status ``"ok"``, or ``"degenerate: ..."`` when a head's form is zero (nothing can be measured) or all
        heads have the same form (the centred measures do not exist).
    """
    heads, nan = len(similarity), math.nan
    zero = np.flatnonzero(np.isnan(np.diag(similarity)))
    if len(zero):
        which = ", ".join(str(head) for head in zero)
        return Measures(heads, nan, nan, nan, nan, nan, nan, nan, f"degenerate: the form of head {which} is zero")
    uncentred = eigenvalues(similarity)
    erank, alike = effective_rank(uncentred, definition), mean_off_diagonal(similarity)
    centred = centre(similarity)
    if heads == 1:
        return Measures(1, erank, nan, nan, nan, nan, nan, nan, "degenerate: one head, so nothing is left once centred")
    if _nothing_left(centred):
        status = "degenerate: all heads have the same form, so nothing is left once centred"
        return Measures(heads, erank, nan, nan, nan, nan, nan, alike, status)
    eigs = eigenvalues(centred, scale=float(uncentred[0]))
    return Measures(
        heads,
        erank,
        effective_rank(eigs, definition),
        participation_ratio(eigs),
        stable_rank(eigs),
        components_for(eigs, 0.9),
        first_component(eigs),
        alike,
        "ok",
    )
