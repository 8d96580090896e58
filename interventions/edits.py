"""Edits as values: frozen, checked when built; what becomes of a path's tensor.

An edit names a path inside attention, layers, heads (groups, for a grouped model's keys and values) and positions.
`apply` puts it into a model for the length of a ``with`` block. Random choices depend on the seed and the sample's
number, not on the batch, the device or the order of calls: the same shuffle meets a private part and the shared one.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .paths import PATHS, check_path
from .site import Site, derangement, earlier, generator

_PLACES = ("layers", "heads", "positions")
_ROWS = ("donors", "reference")
Among = Literal["sample", "past", "token"]
Rows = tuple[tuple[int, ...], ...]
"""Rows of tokens."""


@dataclass(frozen=True, kw_only=True)
class Edit(ABC):
    """A change at one path of attention.

    Parameters
    ----------
    path
        One of `PATHS`.
    layers
        Layers to edit; None: all.
    heads
        Heads (for ``k``, ``v`` and their private parts: groups) to edit; None: all. Shared paths have no heads.
    positions
        Positions (for ``pattern``: query positions) to edit, counted from a row's first token; None: all.
    rotated
        Edit queries or keys as they are after the rotation, instead of before their norm and rotation.

    Raises
    ------
    ValueError
        If the path is unknown or has no rotation, or heads are named on a path that all heads share.
    """

    path: str
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    rotated: bool = False

    reference_rows: ClassVar[Rows | None] = None
    """Rows on which the path is needed as the model is when the edit is applied; a field in edits that need one."""

    def __post_init__(self) -> None:
        check_path(self.path, rotated=self.rotated)
        if PATHS[self.path] is None and self.heads is not None:
            raise ValueError(f"path {self.path!r} is shared by all heads: it has no heads {self.heads} of its own")
        for name in ("layers", "heads", "positions"):
            value = getattr(self, name)
            if value is None:
                continue
            indices = isinstance(value, tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
            if not indices or not value or min(value) < 0 or len(set(value)) < len(value):
                raise ValueError(f"{name} should be a tuple of distinct indices >= 0, or None, but got {value!r}")

    def describe(self) -> dict[str, Any]:
        """Return the edit for a record: its name and fields, rows of tokens by their number alone."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {
            name: value.describe() if isinstance(value, Edit) else f"{len(value)} rows" if name in _ROWS else value
            for name, value in fields.items()
            if value is not None
        }
        return {"edit": type(self).__name__, **plain}

    def __str__(self) -> str:
        where = [
            f"{name} {', '.join(map(str, getattr(self, name)))}" for name in _PLACES if getattr(self, name) is not None
        ]
        turned = " after the rotation" if self.rotated else ""
        return ", ".join([f"{type(self).__name__.lower()} of {self.path}{turned}", *where])

    @abstractmethod
    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the path's changed tensor, whole; the argument must be left as it is.

        Only the chosen heads and positions of what is returned are taken over.
        """

    def chosen(self, part: Float[Tensor, "*shape"], site: Site) -> Tensor:
        """Return a mask, to be broadcast over `part`, of what the edit takes over; IndexError names the range."""
        mask = torch.ones((1,) * part.ndim, dtype=torch.bool)
        where, axis = f"{self.path} of layer {site.layer}", PATHS[self.path]
        if axis is not None and self.heads is not None:
            _check_range("head", self.heads, part.shape[axis], where)
            line = torch.zeros(part.shape[axis], dtype=torch.bool)
            line[list(self.heads)] = True
            mask = mask & line.view([-1 if a == axis else 1 for a in range(part.ndim)])
        if self.positions is not None:
            # Counted from each row's first token, so that pads before it do not matter.
            valid = site.valid.cpu()
            if site.past is None:
                _check_range("position", self.positions, int(valid.sum(1).max()), where)
            before = torch.tensor([site.first_position(row) for row in range(len(valid))])
            place = valid.long().cumsum(1) - 1 + before[:, None]
            rows = torch.isin(place, torch.tensor(self.positions)) & valid
            position_axis = 2 if self.path == "pattern" else 1
            mask = mask & rows.view(
                [len(rows) if a == 0 else -1 if a == position_axis else 1 for a in range(part.ndim)]
            )
        return mask.to(part.device)

    def edited(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the tensor with the chosen heads and positions changed."""
        return torch.where(self.chosen(part, site), self.change(part, site), part)


def _check_range(what: str, wanted: tuple[int, ...], count: int, where: str) -> None:
    for index in wanted:
        if index >= count:
            raise IndexError(f"{what} {index} does not exist at {where}: it has {what}s 0–{count - 1}")


@dataclass(frozen=True, kw_only=True)
class Zero(Edit):
    """Set to zero: a stress test rather than an ablation, since no forward pass ever has zeros there."""

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return zeros, also where the tensor is not finite."""
        return torch.zeros_like(part)


@dataclass(frozen=True, kw_only=True)
class Scale(Edit):
    """Multiply by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.factor):
            raise ValueError(f"factor should be finite but got {self.factor}")

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return ``factor * part``."""
        return part * self.factor


@dataclass(frozen=True, kw_only=True)
class Seeded(Edit):
    """What edits with random choices have.

    Parameters
    ----------
    seed
        Of the choices.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed should be an integer >= 0 but got {self.seed!r}")


@dataclass(frozen=True, kw_only=True)
class Shuffle(Seeded):
    """Give each position another position's row of the same sample; all heads and layers by the same plan.

    Parameters
    ----------
    among
        ``"sample"``: a derangement of all positions (no row stays), which lets rows of the future into the past;
        ``"past"``: each position takes a random earlier one's row, so that nothing comes from the future (the first
        position keeps its own); ``"token"``: from an earlier position that holds the same token, or its own if there is
        none. Pads stay where they are. Where a history is gone on with, what it holds stays as it was shuffled, and
        single tokens behind it keep their own rows.
    """

    among: Among = "sample"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.among not in get_args(Among):
            raise ValueError(f"among should be one of {', '.join(get_args(Among))} but got {self.among!r}")
        if self.path == "pattern":
            raise ValueError("path 'pattern' is not shuffled: a row of it belongs to its query position's past")

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return rows in their new places."""
        source = torch.arange(part.shape[1]).expand(part.shape[0], -1).clone()
        for row in range(part.shape[0]):
            places = site.row_positions(row)
            source[row, places] = torch.from_numpy(places[self._plan(row, places, site)])
        index = source.to(part.device).view(*source.shape, *(1,) * (part.ndim - 2)).expand_as(part)
        return part.gather(1, index)

    def _plan(self, row: int, places: np.ndarray, site: Site) -> np.ndarray:
        rng = generator("shuffle", self.seed, site.samples[row])
        if self.among == "sample":
            return derangement(len(places), rng)
        if self.among == "past":
            return earlier([0] * len(places), rng)
        if site.tokens is None:
            raise ValueError("a shuffle among equal tokens needs the tokens: run the model on tokens")
        return earlier(site.tokens[row].cpu().numpy()[places].tolist(), rng)


@dataclass(frozen=True, kw_only=True)
class Resample(Seeded):
    """Give each row what the same position held in another sample.

    Parameters
    ----------
    donors
        Rows of tokens that the unedited model is run on; each sample draws one of them that does not begin with the
        sample's own tokens. A donor that is shorter is gone through again from its start. None: the other samples of
        the batch, by a derangement of it (then the batch decides).
    paired
        Donor ``i`` is sample ``i``'s own row, and is not drawn for it.
    """

    donors: Rows | None = None
    paired: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.donors is not None:
            object.__setattr__(self, "donors", _rows("donors", self.donors))
        if self.path == "pattern":
            raise ValueError("path 'pattern' is not resampled: rows of other lengths do not fit")

    @property
    def reference_rows(self) -> Rows | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The donors."""
        return self.donors

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the donors' rows at the same positions, counted from each sample's first token."""
        pool, valid = (part, site.valid) if self.donors is None else _reference(site)
        if self.donors is None and len(part) < 2:
            raise ValueError("resampling within the batch needs at least two samples in it: give donors")
        order = derangement(len(part), generator("donor", self.seed)) if self.donors is None else None
        new = part.clone()
        for row in range(part.shape[0]):
            places = site.row_positions(row)
            donor = int(order[row]) if order is not None else self._draw(row, site)
            held = torch.nonzero(valid[donor])[:, 0].cpu().numpy()
            taken = held[(site.first_position(row) + np.arange(len(places))) % len(held)]
            new[row, places] = pool[donor, taken].to(part.device, part.dtype)
        return new

    def _draw(self, row: int, site: Site) -> int:
        donors, sample, own = self.donors or (), site.samples[row], site.all_tokens(row)
        fit = [
            i
            for i, donor in enumerate(donors)
            if not (self.paired and i == sample) and (not own or donor[: len(own)] != own)
        ]
        if not fit:
            raise ValueError(f"no donor is another than sample {sample} itself")
        return fit[generator("donor", self.seed, sample).integers(len(fit))]


@dataclass(frozen=True, kw_only=True)
class Mean(Edit):
    """Set every row to the mean over a reference set, each head (or group) its own.

    Parameters
    ----------
    reference
        Rows of tokens that the unedited model is run on; the mean is over all their positions.
    """

    reference: Rows

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "reference", _rows("reference", self.reference))
        if self.path == "pattern":
            raise ValueError("path 'pattern' has no mean: its rows are as long as their past")

    @property
    def reference_rows(self) -> Rows:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The reference set."""
        return self.reference

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the mean everywhere."""
        held, valid = _reference(site)
        mean = held[valid].mean(0).to(part.device, part.dtype)
        return mean.expand_as(part).clone()


@dataclass(frozen=True, kw_only=True)
class Swap(Edit):
    """Give a head another head's rows.

    Parameters
    ----------
    other
        The head (or group) whose rows are taken.
    """

    other: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if PATHS[self.path] is None:
            raise ValueError(f"path {self.path!r} is shared by all heads: there is no other to swap with")

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the other head's rows for all heads."""
        axis = PATHS[self.path] or 0
        if not 0 <= self.other < part.shape[axis]:
            raise IndexError(f"head {self.other} does not exist: {self.path!r} has heads 0–{part.shape[axis] - 1}")
        return part.select(axis, self.other).unsqueeze(axis).expand_as(part).clone()


@dataclass(frozen=True, kw_only=True)
class Noise(Seeded):
    """Add a random direction whose norm is `factor` times the row's own.

    Parameters
    ----------
    factor
        Norm of what is added, in norms of the row.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"factor should be finite and > 0 but got {self.factor}")
        if self.path == "pattern":
            raise ValueError("path 'pattern' takes no noise: it would no longer be a distribution")

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return the rows with the noise added."""
        norm = part.norm(dim=-1, keepdim=True)
        return part + self.factor * norm * random_directions("noise", part, site, self.seed)


@dataclass(frozen=True, kw_only=True)
class SameNorm(Seeded):
    """The control of another edit: move each row as far as that edit does, but in a random direction.

    Parameters
    ----------
    of
        The edit; path, layers, heads, positions and `rotated` are its own.
    """

    path: str = ""
    of: Edit

    def __post_init__(self) -> None:
        for name in ("path", "layers", "heads", "positions", "rotated"):
            object.__setattr__(self, name, getattr(self.of, name))
        super().__post_init__()
        if self.path == "pattern":
            raise ValueError("path 'pattern' has no control of the same norm: it would no longer be a distribution")

    @property
    def reference_rows(self) -> Rows | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the other edit needs."""
        return self.of.reference_rows

    def change(self, part: Float[Tensor, "*shape"], site: Site) -> Float[Tensor, "*shape"]:
        """Return rows as far away as the other edit moves them."""
        distance = (self.of.change(part, site) - part).norm(dim=-1, keepdim=True)
        return part + distance * random_directions("control", part, site, self.seed)


def _rows(name: str, rows: Rows) -> Rows:
    """Return rows of tokens as tuples, so that an edit stays a value; ValueError if one is empty or there is none."""
    found = tuple(tuple(int(token) for token in row) for row in rows)
    if not found or not all(found):
        raise ValueError(f"{name} should hold at least one row, of at least one token each")
    return found


def random_directions(
    purpose: str, part: Float[Tensor, "batch pos *rest"], site: Site, seed: int
) -> Float[Tensor, "batch pos *rest"]:
    """Return a random unit vector for every row: by purpose, seed, sample, layer and place in the sample."""
    found = torch.zeros(part.shape, dtype=torch.float64)
    for row in range(part.shape[0]):
        places = site.row_positions(row)
        rng, first = generator(purpose, seed, site.samples[row], site.layer), site.first_position(row)
        drawn = rng.standard_normal((first + len(places), *part.shape[2:]))
        found[row, places] = torch.from_numpy(drawn[first:])
    found = found / found.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return found.to(part.device, part.dtype)


def _reference(site: Site) -> tuple[Tensor, Tensor]:
    if site.reference is None:
        raise ValueError("this edit needs the path's tensor on its reference rows: use apply, which measures it")
    return site.reference
