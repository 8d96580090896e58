"""How different the heads of a layer are: inner products of forms, spectra, nulls, and the report over them."""

from .forms import gram
from .offsets import Offsets
from .over_training import over_training
from .report import report
from .result import Report
from .spectra import Measures, cosine, effective_rank, measure
from .trajectory import Trajectory

__all__ = [
    "Measures",
    "Offsets",
    "Report",
    "Trajectory",
    "cosine",
    "effective_rank",
    "gram",
    "measure",
    "over_training",
    "report",
]
