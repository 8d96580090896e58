"""The decode step straight from the formulas, in float64: what every faster path is measured against.

All functions take one query a head and the cached rows of one request, and return each head's output before the output
projection. Scores of shared and private parts meet *before* the one softmax, and both value parts use the same weights;
history is never expanded: the query is projected once, and values are reduced before they are expanded.

References
----------
O'Neill et al. (arXiv 2601.11471v3), equations 6-7; DeepSeek-V2 (arXiv 2405.04434), section 2.1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def dense_decode(
    q: Float[Tensor, "head d_key"],
    k: Float[Tensor, "pos group d_key"],
    v: Float[Tensor, "pos group d_value"],
    scale: float,
) -> Float[Tensor, "head d_value"]:
    """Attend over plain keys and values (MHA, GQA, MQA; query heads share a group's rows in order).

    Parameters
    ----------
    q
        The query of each head, rotated if positions are rotary.
    k, v
        Cached rows of each group.
    scale
        Factor on the scores, ``1 / sqrt(d_key)`` as a rule.
    """
    per_group = len(q) // k.shape[1]
    k, v = (x.double().repeat_interleave(per_group, dim=1) for x in (k, v))
    weights = (torch.einsum("hd,phd->hp", q.double(), k) * scale).softmax(-1)
    return torch.einsum("hp,phd->hd", weights, v)


def lrkv_decode(
    q: Float[Tensor, "head d_head"],
    k_shared: Float[Tensor, "pos d_head"],
    k_coords: Float[Tensor, "pos head rank"],
    k_up: Float[Tensor, "head d_head rank"],
    v_shared: Float[Tensor, "pos d_head"],
    v_coords: Float[Tensor, "pos head rank"],
    v_up: Float[Tensor, "head d_head rank"],
    scale: float,
) -> Float[Tensor, "head d_head"]:
    """Attend over LRKV's factored cache, for keys without rotation.

    ``score[h, j] = (q_h . S_K[j] + (q_h B_K[h]) . R_K[h, j]) * scale``,
    ``out[h] = sum_j a[h, j] S_V[j] + (sum_j a[h, j] R_V[h, j]) B_V[h]^T``.

    Parameters
    ----------
    q
        The query of each head.
    k_shared, v_shared
        Cached shared rows S.
    k_coords, v_coords
        Cached private coordinates R.
    k_up, v_up
        The weights B that take coordinates to residuals.
    scale
        Factor on the scores, with the full key width: ``1 / sqrt(d_head)``, never ``1 / sqrt(rank)``.
    """
    q, k_shared, k_coords, k_up, v_shared, v_coords, v_up = (
        x.double() for x in (q, k_shared, k_coords, k_up, v_shared, v_coords, v_up)
    )
    private_q = torch.einsum("hd,hdr->hr", q, k_up)
    scores = q @ k_shared.T + torch.einsum("hr,phr->hp", private_q, k_coords)
    weights = (scores * scale).softmax(-1)
    private = torch.einsum("hp,phr->hr", weights, v_coords)
    return weights @ v_shared + torch.einsum("hr,hdr->hd", private, v_up)


def mla_decode(
    q_content: Float[Tensor, "head d_nope"],
    q_rotated: Float[Tensor, "head d_rope"],
    latent: Float[Tensor, "pos d_latent"],
    k_rotated: Float[Tensor, "pos d_rope"],
    k_up: Float[Tensor, "head d_latent d_nope"],
    v_up: Float[Tensor, "head d_latent d_value"],
    scale: float,
) -> Float[Tensor, "head d_value"]:
    """Attend over MLA's latent cache with both up-projections absorbed.

    ``score[h, j] = ((q_n W_UK[h]^T) . c_j + q_r . k_r,j) * scale``, ``out[h] = (sum_j a[h, j] c_j) W_UV[h]``.

    Parameters
    ----------
    q_content, q_rotated
        Content and (rotated) position columns of each head's query.
    latent
        Cached normalised latents.
    k_rotated
        Cached shared keys of the position channel, rotated.
    k_up, v_up
        Up-projections ``W_UK``, ``W_UV``.
    scale
        Factor on the scores, ``1 / sqrt(d_nope + d_rope)`` times YaRN's factor, if any.
    """
    q_content, q_rotated, latent, k_rotated, k_up, v_up = (
        x.double() for x in (q_content, q_rotated, latent, k_rotated, k_up, v_up)
    )
    absorbed = torch.einsum("hn,hcn->hc", q_content, k_up)
    weights = ((absorbed @ latent.T + q_rotated @ k_rotated.T) * scale).softmax(-1)
    return torch.einsum("hc,hcv->hv", weights @ latent, v_up)
