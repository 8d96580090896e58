"""Jinja's templates of this folder, with everything that is filled in escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(__name__.rpartition(".")[0], ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **values: Any) -> str:
    """Fill in a template; whatever is no template's own text is escaped."""
    return _environment().get_template(name).render(**values)
