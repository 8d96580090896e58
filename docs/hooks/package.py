"""The API reference describes the package that is imported, whatever its checkout's folder is called."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

_holder: list[tempfile.TemporaryDirectory[str]] = []


def on_startup(**_: Any) -> None:
    """Leave out the folder of `mkdocs` itself: the command `headscope` lies there, too, and is no package."""
    sys.path[:] = [place for place in sys.path if not (Path(place) / "headscope").is_file()]


def on_config(config: Any) -> Any:
    """Tell mkdocstrings where to find a folder called `headscope`."""
    root = Path(config.config_file_path).resolve().parent
    paths = [str(root.parent)]
    if root.name != "headscope":
        holder = tempfile.TemporaryDirectory()
        _holder.append(holder)  # kept until the build is over
        (Path(holder.name) / "headscope").symlink_to(root, target_is_directory=True)
        paths = [holder.name]
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = paths
    return config


def on_post_build(**_: Any) -> None:
    """Remove the folder again."""
    while _holder:
        _holder.pop().cleanup()
