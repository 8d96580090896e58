"""Tables for a terminal, from the same tables that are saved; only what is shown here is rounded."""

from __future__ import annotations

from .ablation import ablation_table
from .budget import MIB, batch_table, equal_table, findings_table, model_table, parallel_table
from .compared import comparison_tables
from .heads import behaviour_table, conversion_table, effective_rank_table
from .printing import show
from .probes import needle_table, probe_table
from .routing import routing_table
from .runs import over_training_table, shipped_table

__all__ = [
    "MIB",
    "ablation_table",
    "batch_table",
    "behaviour_table",
    "comparison_tables",
    "conversion_table",
    "effective_rank_table",
    "equal_table",
    "findings_table",
    "model_table",
    "needle_table",
    "over_training_table",
    "parallel_table",
    "probe_table",
    "routing_table",
    "shipped_table",
    "show",
]
