"""Pictures of results and models with choices beside them: another layer, head or distance, and look again."""

from ..plots.explorer import Explorer
from .explore import explore

__all__ = ["Explorer", "explore"]
