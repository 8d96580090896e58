"""What heads look at while a model generates: probes of every decode step, and needles at different depths."""

from .hugging_face import probe_transformers, register, watching
from .needle import Needle, needle
from .probe import probe
from .result import Probe
from .spans import Span

__all__ = ["Needle", "Probe", "Span", "needle", "probe", "probe_transformers", "register", "watching"]
