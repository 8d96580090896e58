"""Reading and writing weights: the native format, Hugging Face families, GGUF; lazily by layer or whole."""

from .checkpoint import Checkpoint, Layout, Source
from .native import save
from .opening import load, open_checkpoint

__all__ = ["Checkpoint", "Layout", "Source", "load", "open_checkpoint", "save"]
