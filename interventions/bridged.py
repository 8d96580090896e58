"""Sweeps over models that run in TransformerLens's bridge: any causal model of Hugging Face, at any size.

Whole forward passes, one a head, through the bridge's own hooks: nothing of the prefix is reused. Keys have no shared
and private parts here (the bridge does not say how they are rotated); values have.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..checkpoints.bridge import LACKS
from .applying import apply
from .edits import Edit, Rows, SameNorm
from .paths import SHARED, view
from .plan import ALL, LayerScores, Plan, cell_kind, head_cells
from .tasks import Task, evaluate


class BridgeSweep:
    """A bridged model on a task, and what is to be done to it; see `Sweep`."""

    def __init__(self, model: Any, task: Task, plan: Plan) -> None:
        if plan.stop_early:
            raise ValueError("a bridged model's sweep does not stop early: leave stop_early out")
        self.model, self.task, self.plan = model, task, plan
        self._donors: Rows = tuple(sample.right.tokens for sample in task.samples)
        self._clean: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.model.cfg.n_layers

    @property
    def d_vocab(self) -> int:
        """Tokens that the model chooses from."""
        return self.model.cfg.d_vocab

    @property
    def kind(self) -> str:
        """What a cell's number counts."""
        return cell_kind(self.plan, self.model.cfg.n_heads, self._groups)

    @property
    def _groups(self) -> int:
        return getattr(self.model.cfg, "n_key_value_heads", None) or self.model.cfg.n_heads

    def describe(self, origin: dict[str, Any] | None) -> dict[str, Any]:
        """Return what the model is and where it comes from, for a record."""
        cfg = self.model.cfg
        fields = ("architecture", "n_layers", "n_heads", "n_key_value_heads", "d_model", "d_head", "n_ctx", "d_vocab")
        digest = hashlib.sha256()
        for key, tensor in self.model.state_dict().items():
            digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        found = {"path": None, "family": "TransformerLens bridge", "sha256": digest.hexdigest(), **(origin or {})}
        return {"checkpoint": found, "notes": [LACKS], "config": {field: getattr(cfg, field, None) for field in fields}}

    def cells(self, layer: int) -> tuple[int, ...]:
        """Return the heads of a layer's cells."""
        view(self.model, self.plan.path, layer, rotated=self.plan.rotated)
        return head_cells(self.plan, self.model.cfg.n_heads, self._groups)

    def clean(self) -> tuple[Float[np.ndarray, " sample"], Float[np.ndarray, " sample"]]:
        """Return score and accuracy of every sample on the unedited model."""
        if self._clean is None:
            self._clean = self._scores()
        return self._clean

    def layer(self, layer: int) -> LayerScores:
        """Go through the cells of one layer."""
        cells, plan = self.cells(layer), self.plan
        seeds = range(plan.seed, plan.seed + plan.seeds)
        edits = [[self._edit(plan.path, layer, head, seed) for seed in seeds] for head in cells]
        edited = [[self._scores(edit) for edit in each] for each in edits]
        controls = [
            [self._scores(SameNorm(of=e, seed=s))[0] for e, s in zip(each, seeds, strict=True)] for each in edits
        ]
        shared = None
        if self._has_shared(layer):
            other = SHARED[plan.path]
            shared = np.mean([self._scores(self._edit(other, layer, ALL, seed))[0] for seed in seeds], axis=0)
        score, right = (np.array([[found[i] for found in each] for each in edited]).mean(1) for i in (0, 1))
        unknown = np.full((len(cells), 2), np.nan)  # how far rows moved is seen inside the wrapper alone
        random = np.array(controls).mean(1)
        for scores in (score, random):
            for cell, sample in np.argwhere(~np.isfinite(scores))[:1]:
                raise ValueError(f"layer {layer}, head {cells[cell]}: the score of sample {sample} is not finite")
        return LayerScores(layer, cells, *self.clean(), score, right, random, shared, unknown)

    def _edit(self, path: str, layer: int, head: int, seed: int) -> Edit:
        heads = None if head == ALL else (head,)
        return dataclasses.replace(self.plan.edit(path, seed, self._donors), layers=(layer,), heads=heads)

    def _has_shared(self, layer: int) -> bool:
        other = SHARED.get(self.plan.path)
        if other is None:
            return False
        try:
            view(self.model, other, layer, rotated=self.plan.rotated)
        except ValueError:  # keys are not split here, and a single group shares nothing apart
            return False
        return True

    def _scores(self, *edits: Edit) -> tuple[np.ndarray, np.ndarray]:
        device = next(self.model.parameters()).device

        def run(tokens: Tensor, lengths: Sequence[int], samples: Sequence[int]) -> Tensor:
            mask = (torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]).long()
            with apply(self.model, *edits, samples=samples):
                return self.model(tokens.to(device), attention_mask=mask.to(device))

        found = evaluate(self.task, run, batch_size=self.plan.rows)
        return found["score"].to_numpy(), found["accuracy"].to_numpy()
