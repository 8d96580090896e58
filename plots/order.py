"""Heads in an order in which alike ones stand together."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform


def similarity_order(matrix: np.ndarray) -> np.ndarray:
    """Return the heads in hierarchical order: average linkage on ``1 - cosine``, leaves turned to their best order.

    The sign counts: an opposed head is the farthest there is. Heads that lack a value come last, by number.

    Parameters
    ----------
    matrix
        Cosines ``[head, head]``; rows and columns of NaN where a head has no direction.

    References
    ----------
    Bar-Joseph, Gifford, Jaakkola, Fast optimal leaf ordering for hierarchical clustering, Bioinformatics 17 (2001).

    Examples
    --------
    >>> alike = np.array([[1.0, 0.1, 0.8], [0.1, 1.0, 0.2], [0.8, 0.2, 1.0]])
    >>> similarity_order(alike).tolist()
    [1, 2, 0]
    """
    known = np.flatnonzero(~np.isnan(np.diag(matrix)))
    known = known[~np.isnan(matrix[np.ix_(known, known)]).any(axis=1)]
    if len(known) > 2:
        among = matrix[np.ix_(known, known)]
        # Rounding may carry a cosine past 1 and make a matrix lopsided.
        apart = np.clip(1.0 - (among + among.T) / 2, 0.0, None)
        np.fill_diagonal(apart, 0.0)
        tree = linkage(squareform(apart, checks=False), method="average", optimal_ordering=True)
        known = known[leaves_list(tree)]
    return np.concatenate([known, np.setdiff1d(np.arange(len(matrix)), known)])
