"""`headscope budget`, and `headscope budget audit`: what variants cost; what printed figures contradict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import Html, Json, claim, give, mistakes

if TYPE_CHECKING:
    from typer import Context as _Context
else:
    _Context = typer.Context.__base__  # what a group's callback is given, though the class itself is to be named


def budget(
    context: _Context,
    config: Annotated[
        Path | None, typer.Option(help="A configuration, .json: headscope's own or Hugging Face's config.json.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint or a model that ships, as for report.", metavar="PATH")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="The LRKV paper's models: 128M, 1.2B, 2.5B or 6.3B, or one: 2.5B-lrkv. Default: 2.5B."),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Batches of requests, in tokens: 2048,8192 are two; 8x8192+100 is one of nine requests.")
    ] = "2048,8192",
    devices: Annotated[int, typer.Option(help="Devices that the heads are dealt out over.", min=1)] = 1,
    device: Annotated[
        str, typer.Option(help="h200, h200-sheet, h100, a100, l40s, mi300x, or TB/s,TFLOP/s like 3.35,989.")
    ] = "h200",
    out: Annotated[Path | None, typer.Option(help="Save tables (JSON, CSV, parquet) here.", file_okay=False)] = None,
    plot: Annotated[bool, typer.Option("--plot", help="With --out: draw the pictures, too.")] = False,
    html: Html = None,
    json: Json = False,
) -> None:
    """Cache, parameters, arithmetic and a floor under the time of attention variants, before anyone trains them."""
    if context.invoked_subcommand is not None:
        return
    with mistakes():
        from ..budgets import budget, preset_models

        given = [source for source in (config, checkpoint, preset) if source is not None]
        if len(given) > 1:
            raise ValueError("give one of --config, --checkpoint and --preset, not several")
        if config is not None and config.suffix != ".json":
            raise ValueError(
                f"--config should be a .json file but is {config}: a model's directory goes with --checkpoint"
            )
        if plot and out is None:
            raise ValueError("--plot needs a directory to draw into: give one with --out")
        if preset is not None:
            preset_models(preset)
        claim(out, html)
        result = budget(*given, lengths=lengths, devices=devices, device=device)
        give(result, out, as_json=json, pictures=plot, html=html)


def audit(
    table: Annotated[
        Path | None,
        typer.Argument(
            help="CSV of printed figures (columns: docs/budget.md). Default: what the LRKV paper prints.",
            metavar="[TABLE]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Save the checks (JSON, CSV, parquet) here.", file_okay=False)
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Recompute printed figures: what cannot be true together, and which settings would explain it."""
    with mistakes():
        from ..budgets import audit

        claim(out, html)
        give(audit(table), out, as_json=json, html=html)
