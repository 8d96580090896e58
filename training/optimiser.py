"""Muon for the blocks' matrices, AdamW for the rest, one schedule for both; their state in and out as plain tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

WARMUP = 0.05
"""Share of the steps over which the rate rises; over the last `DECAY` of them it falls to zero."""
DECAY = 0.5


class Optimisers:
    """The two optimisers of a model, stepped together.

    Muon takes the weights of linear layers inside the blocks (matrices that map residual streams); AdamW takes
    embeddings, norms, biases and LRKV's way up ``B`` (a stack of matrices, which torch's Muon does not take).

    Parameters
    ----------
    model
        Whose parameters to train; tied ones are taken once.
    muon_lr, adam_lr
        Peak rates.
    weight_decay
        Decoupled decay of Muon's matrices; AdamW's parameters do not decay.

    References
    ----------
    Jordan et al., Muon (2024); torch.optim.Muon. Loshchilov & Hutter, AdamW (arXiv 1711.05101).
    """

    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float, weight_decay: float) -> None:
        self._names = dict(model.named_parameters())
        hidden = {
            f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name.startswith("blocks.")
        }
        matrices = [p for n, p in self._names.items() if n in hidden]
        others = [p for n, p in self._names.items() if n not in hidden]
        self._muon = torch.optim.Muon(matrices, lr=muon_lr, weight_decay=weight_decay, momentum=0.95)
        self._adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._peak = {id(self._muon): muon_lr, id(self._adam): adam_lr}

    def step(self, share: float) -> None:
        """Update the parameters at the rate that belongs to `share` of the run done, and clear the gradients."""
        for optimiser in (self._muon, self._adam):
            for group in optimiser.param_groups:
                group["lr"] = self._peak[id(optimiser)] * rate(share)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the whole state as ``parameter name + "//" + entry`` -> tensor."""
        return {
            f"{name}//{entry}": torch.as_tensor(value)
            for name, parameter in self._names.items()
            for entry, value in self._state_of(parameter).items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` returned."""
        for name, parameter in self._names.items():
            entries = {key.split("//")[1]: value for key, value in state.items() if key.split("//")[0] == name}
            self._state_of(parameter).update(entries)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        in_muon = any(parameter is p for p in self._parameters(self._muon))
        return (self._muon if in_muon else self._adam).state[parameter]

    @staticmethod
    def _parameters(optimiser: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
        return (p for group in optimiser.param_groups for p in group["params"])


def rate(share: float) -> float:
    """Return the factor on the peak rate when `share` (0-1) of the run is done: up, flat, down along a cosine."""
    if share < WARMUP:
        return share / WARMUP
    if share < 1 - DECAY:
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (share - (1 - DECAY)) / DECAY))
