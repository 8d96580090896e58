"""Models of Hugging Face's hub, by the name that they have there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import CheckpointError

FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
"""What is fetched of a model: configuration, safetensors, tokenizer."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def is_model_name(name: str | os.PathLike[str]) -> bool:
    """Whether something is ``organisation/name`` and no path: neither it nor the folder it would lie in exists."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return False
    return not Path(name).exists() and not Path(name).parent.exists()


def fetch(name: str) -> Path:
    """Return the directory of a hub model's files in Hugging Face's cache, fetched if they are not there.

    Raises
    ------
    CheckpointError
        If they cannot be had; names what was tried.
    """
    import httpx
    from huggingface_hub import constants, snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{name} is no path here, and as a model of the hub it cannot be had: tried {constants.ENDPOINT}/{name} "
            f"and the cache {constants.HF_HUB_CACHE} ({reason}). Name a directory, or fetch it where there is a network"
        ) from error
