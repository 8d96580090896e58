"""Where heads look and what they bring, as plain functions of patterns, tokens and outputs.

Patterns are ``[batch, head, query_pos, key_pos]`` with rows that sum to one; a score is a mean over the queries for
which it exists, and NaN where there is none.

References
----------
Olsson et al., In-context Learning and Induction Heads (2022). Song et al., Feature selection via dependence
maximization, JMLR 13 (2012), the unbiased HSIC; Kornblith et al., Similarity of neural network representations
revisited (2019).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST_SAMPLES = 4
"""Of the unbiased HSIC."""


def entropy(
    pattern: Float[Tensor, "batch head query_pos key_pos"], valid: Bool[Tensor, "batch query_pos"]
) -> Float[Tensor, " head"]:
    """Return the mean entropy of each head's pattern, in nats."""
    logs = pattern.clamp_min(torch.finfo(pattern.dtype).tiny).log()
    return _mean(-(pattern * logs).sum(-1), valid)


def distance(
    pattern: Float[Tensor, "batch head query_pos key_pos"], valid: Bool[Tensor, "batch query_pos"]
) -> Float[Tensor, " head"]:
    """Return how many positions back each head looks, on average."""
    place = torch.arange(pattern.shape[-1], device=pattern.device)
    back = (place[:, None] - place).clamp_min(0).to(pattern.dtype)
    return _mean((pattern * back).sum(-1), valid)


def mass(
    pattern: Float[Tensor, "batch head query_pos key_pos"],
    keys: Bool[Tensor, "batch query_pos key_pos"],
    valid: Bool[Tensor, "batch query_pos"],
) -> Float[Tensor, " head"]:
    """Return each head's attention to chosen keys, over the queries that have one."""
    return _mean((pattern * keys[:, None]).sum(-1), valid & keys.any(-1))


def previous_keys(valid: Bool[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos pos"]:
    """Return for each query the key right before it."""
    count = valid.shape[1]
    before = torch.ones(count, count, dtype=torch.bool, device=valid.device).tril(-1).triu(-1)
    return before & valid[:, None, :] & valid[:, :, None]


def duplicate_keys(tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos pos"]:
    """Return for each query the earlier keys that hold the same token."""
    count = tokens.shape[1]
    earlier = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril(-1)
    return (tokens[:, :, None] == tokens[:, None, :]) & earlier & valid[:, None, :] & valid[:, :, None]


def induction_keys(tokens: Int[Tensor, "batch pos"], valid: Bool[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos pos"]:
    """Return for each query the keys behind earlier occurrences of its token."""
    behind = torch.zeros_like(duplicate_keys(tokens, valid))
    behind[:, :, 1:] = duplicate_keys(tokens, valid)[:, :, :-1]
    # Where the query repeats the token right before it, the key behind that is the query itself: no earlier place.
    return behind & torch.ones_like(behind[0]).tril(-1)


def agreement(
    pattern: Float[Tensor, "batch head query_pos key_pos"], valid: Bool[Tensor, "batch query_pos"]
) -> Float[Tensor, "head head"]:
    """Return how much of their attention two heads put on the same keys: ``1 - total variation``, from 0 to 1."""
    heads = pattern.shape[1]
    found = torch.ones(heads, heads, dtype=pattern.dtype)
    for head in range(heads):
        apart = 0.5 * (pattern - pattern[:, head : head + 1]).abs().sum(-1)
        found[head] = (1 - _mean(apart, valid)).cpu()
    return found


def debiased_cka(outputs: Float[Tensor, "head sample width"]) -> Float[Tensor, "head head"]:
    """Return the linear CKA of every pair of heads' outputs from the unbiased estimate of HSIC.

    Unlike the plain one it is near zero for independent outputs however few the samples (and may be below). NaN where a
    head's output does not vary.

    Raises
    ------
    ValueError
        If there are fewer than four samples.
    """
    heads, n, _ = outputs.shape
    if n < LEAST_SAMPLES:
        raise ValueError(f"debiased CKA needs at least {LEAST_SAMPLES} samples but got {n}")
    outputs = outputs.double() - outputs.double().mean(1, keepdim=True)
    kernels = outputs @ outputs.transpose(1, 2)
    kernels.diagonal(dim1=1, dim2=2).zero_()
    sums, totals = kernels.sum(-1), kernels.sum((-1, -2))
    inner = torch.einsum("gij,hij->gh", kernels, kernels)
    hsic = inner + totals[:, None] * totals / ((n - 1) * (n - 2)) - 2 / (n - 2) * sums @ sums.T
    own = hsic.diagonal()
    size = torch.where(own > 1e-12 * inner.diagonal().clamp_min(1e-300), own, torch.full_like(own, math.nan))
    return hsic / (size[:, None] * size).sqrt()


def _mean(values: Float[Tensor, "batch head query_pos"], valid: Bool[Tensor, "batch query_pos"]) -> Tensor:
    chosen = valid[:, None].expand_as(values)
    count = chosen.sum((0, 2))
    return torch.where(chosen, values, torch.zeros_like(values)).sum((0, 2)) / torch.where(count > 0, count, math.nan)
