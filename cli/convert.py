"""`headscope convert`: a trained model into another variant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import Html, Json, claim, give, mistakes, progress


def convert(
    checkpoint: Annotated[
        str, typer.Argument(help="What to convert, of MHA, GQA or MQA: as for report.", metavar="CHECKPOINT")
    ],
    destination: Annotated[
        Path, typer.Argument(help="Directory for the new checkpoint; must not exist.", metavar="DESTINATION")
    ],
    to: Annotated[str, typer.Option(help="lrkv, gqa or mqa.")] = "lrkv",
    rank: Annotated[int | None, typer.Option(help="LRKV's rank.")] = None,
    cache_ratio: Annotated[
        float | None, typer.Option(help="LRKV's cache as a share of the source's, instead of a rank.")
    ] = None,
    groups: Annotated[int | None, typer.Option(help="GQA's groups.")] = None,
    keys: Annotated[
        str,
        typer.Option(help="LRKV's private keys: rotate-at-read (any directions) or plane-closed (rotated once)."),
    ] = "rotate-at-read",
    align: Annotated[bool, typer.Option("--align/--no-align", help="Bring the heads' bases together first.")] = True,
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Text file or folder to fit to. Default: the standard library's train split."),
    ] = None,
    calibration_samples: Annotated[int, typer.Option(help="Windows of it, of 512 tokens.", min=1)] = 24,
    text: Annotated[
        Path | None, typer.Option(help="Text to measure the loss on. Default: held-out standard library.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Windows of it.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Of the choice of windows.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Save the tables (JSON, CSV, parquet) here, too.", file_okay=False)
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Turn a trained model into LRKV, or pool its keys and values to GQA or MQA; says what it costs."""
    with mistakes():
        from ..conversion import convert

        claim(out, html)
        with progress("converting") as tick:
            result = convert(
                checkpoint,
                destination,
                to=to,  # pyright: ignore[reportArgumentType]  (checked there)
                rank=rank,
                cache_ratio=cache_ratio,
                groups=groups,
                keys=keys,  # pyright: ignore[reportArgumentType]
                align=align,
                calibrate=calibrate,
                calibration_samples=calibration_samples,
                text=text,
                samples=samples,
                seed=seed,
                progress=tick,
            )
        give(result, out, as_json=json, html=html)
        if not json:
            typer.echo(f"wrote {destination}")
