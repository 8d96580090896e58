"""How far a cached step is from the forward pass in float64, by way of keeping keys, and by the type that is stored.

    python benchmarks/decode_error.py [--tokens 128] [--converted DIR]

The shipped LRKV model (and variants of it: B closed on rotary planes, joint keys normed, no positions), MHA, GQA, MQA
and MLA read held-out source code, the second half token by token from the cache. Printed is the largest error of a
logit over the largest logit, against the same weights in float64 without a cache; and the same for the paper's
rotation, which turns coordinates apart from ``B`` and is exact for no B that is not closed: there with the loss it
costs. `--converted` names another LRKV checkpoint for that last table.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import replace
from typing import Any

import headscope as hs
import torch
from headscope.models import Cache, HookedModel, QKNorm, Rotary
from headscope.models.rope import rotate
from headscope.training.corpus import documents
from torch import Tensor

KEPT = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def models() -> dict[str, HookedModel]:
    """Return what is measured, in float64."""
    base = hs.load("lrkv").double()
    found = {"lrkv, rotated at read": base}
    found["lrkv, closed B"] = _changed(base, keys="plane-closed")
    found["lrkv, joint norm"] = _changed(base, qk_norm=QKNorm())
    found["lrkv, no positions"] = _changed(base, positions="none")
    for name in ("mha", "gqa", "mqa", "mla"):
        found[name] = hs.load(name).double()
    return found


def _changed(model: HookedModel, positions: Any = None, **attention: Any) -> HookedModel:
    """Return the model with another way of keys; where B has to be closed, only its first planes are left."""
    config = model.config.with_(attention=replace(model.config.attention, **attention))
    config = config if positions is None else config.with_(positions=positions)
    made = HookedModel(config, model.tokenizer).double()
    made.load_state_dict(copy.deepcopy(model.state_dict()), strict=False)
    if attention.get("keys") == "plane-closed":
        with torch.no_grad():
            for block in made.layers:
                up = block.attn.k.B
                half, rank = up.shape[1] // 2, up.shape[2]
                kept = [*range(rank // 2), *range(half, half + rank // 2)]
                others = [i for i in range(up.shape[1]) if i not in kept]
                up[:, others] = 0
    return made.eval()


@torch.no_grad()
def cached_error(model: HookedModel, tokens: Tensor, kind: torch.dtype) -> float:
    """Return the largest relative error of a logit, of the second half read token by token from a cache of `kind`."""
    exact = model(tokens)
    working = model if kind == torch.float64 else copy.deepcopy(model).float()
    cache = Cache(working, tokens.shape[1] + 64, dtype=kind)
    request, half = cache.add(), tokens.shape[1] // 2
    parts = [tokens[:, :half], *tokens[:, half:].split(1, dim=1)]
    found = torch.cat([working(part, cache=cache.of(request)) for part in parts], dim=1)
    return float((found.double() - exact).abs().max() / exact.abs().max())


@torch.no_grad()
def paper_rotation(model: HookedModel, rows: Tensor) -> dict[str, float]:
    """Return what ``RoPE(K_S) + RoPE(R) B^T`` does, coordinates turned like a key of their width."""
    rotary = model.config.rotary
    if rotary is None:
        raise ValueError("without rotary positions there is nothing to rotate")
    positions = torch.arange(rows.shape[1]).expand(len(rows), -1)

    def hook_for(attn: Any) -> Any:
        seen: dict[str, Tensor] = {}
        even = attn.k.rank // 2 * 2

        def turned(tensor: Tensor, hook: Any) -> Tensor:
            z = seen["coords"]
            head = rotate(z[..., :even], positions, Rotary(base=rotary.base, interleaved=rotary.interleaved))
            private = attn.k.expand(torch.cat((head, z[..., even:]), dim=-1))
            return attn.turn(seen["shared"][:, :, None], positions) + private

        return (
            ("hook_k_shared", lambda tensor, hook: seen.update(shared=tensor)),
            ("hook_k_coords", lambda tensor, hook: seen.update(coords=tensor)),
            ("hook_rot_k", turned),
        )

    hooks = [
        (f"blocks.{layer}.attn.{point}", hook)
        for layer, block in enumerate(model.layers)
        for point, hook in hook_for(block.attn)
    ]
    exact, loss = model(rows, return_type="both")
    with model.hooks(hooks):
        moved, after = model(rows, return_type="both")
    chances, others = exact.log_softmax(-1), moved.log_softmax(-1)
    return {
        "relative": float((moved - exact).abs().max() / exact.abs().max()),
        "kl": float((chances.exp() * (chances - others)).sum(-1).mean()),
        "loss": float(loss),
        "after": float(after),
    }


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--converted", help="An LRKV checkpoint for the paper's rotation.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = "\n\n".join(documents())
    say = sys.stdout.write
    say(f"{'largest logit error, cache in':28}" + "".join(f"{kind:>12}" for kind in KEPT) + "\n")
    for name, model in models().items():
        tokens = _rows(model, text, 1, options.tokens)
        cells = "".join(f"{cached_error(model, tokens, kind):12.1e}" for kind in KEPT.values())
        say(f"{name:28}{cells}\n")
    say(f"\n{'the paper rotation':28}{'logit error':>12}{'KL, nats':>12}{'loss':>10}{'after':>10}\n")
    named = {"lrkv": "lrkv"} | ({"converted": options.converted} if options.converted else {})
    for name, where in named.items():
        model = hs.load(where)
        found = paper_rotation(model, _rows(model, text, 16, min(256, model.config.n_ctx)))
        say(f"{name:28}{found['relative']:12.3f}{found['kl']:12.4f}{found['loss']:10.4f}{found['after']:10.4f}\n")


def _rows(model: HookedModel, text: str, count: int, length: int) -> Tensor:
    tokens = torch.tensor(model.tokenizer.encode(text[: 12 * count * length]))  # pyright: ignore[reportOptionalMemberAccess]
    return tokens[: count * length].view(count, length)


if __name__ == "__main__":
    main()
