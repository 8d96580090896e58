"""`headscope train` and `headscope compare`: matched small models, and how they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared import Html, Json, claim, give, mistakes, progress


def train(
    preset: Annotated[str, typer.Argument(help="Variant: mha, gqa, mqa, mla or lrkv.", metavar="PRESET")],
    out: Annotated[
        Path, typer.Option(help="Directory of the run; must not exist or be empty, unless --resume.", file_okay=False)
    ],
    size: Annotated[str, typer.Option(help="reference (about a million parameters) or tiny.")] = "reference",
    text: Annotated[
        Path | None, typer.Option(help="Text file, or folder of them, to train on. Default: Python's standard library.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps.", min=1)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows a step.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of the initial weights and of the order of the data.", min=0)] = 0,
    save_every: Annotated[int | None, typer.Option(help="Steps between saved checkpoints.", min=1)] = None,
    rank: Annotated[int | None, typer.Option(help="LRKV's rank.")] = None,
    cache_ratio: Annotated[
        float | None, typer.Option(help="LRKV's cache as a share of MHA's, instead of a rank.")
    ] = None,
    same_parameters: Annotated[
        bool, typer.Option("--same-parameters", help="Widen the MLP until the model has as many parameters as mha.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch; another number may round differently.", min=1)] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Train a small model of one variant, matched with the others; a killed run resumes to the same bits."""
    with mistakes():
        from .. import training
        from ..checkpoints.store import read_json
        from ..training.closing import closing

        corpus = training.standard_library() if text is None else training.from_path(text)
        make = training.matched if same_parameters else training.build
        config = make(preset, size, rank=rank, cache_ratio=cache_ratio)
        asked = {"steps": steps, "batch_size": batch_size, "save_every": save_every}
        recipe = training.Recipe(
            seed=seed, threads=threads, **{name: value for name, value in asked.items() if value is not None}
        )
        with progress("training") as tick:
            final = training.train(
                config,
                corpus,
                out,
                recipe,
                resume=resume,
                progress=lambda done, total, seen: tick(
                    done, total, f"loss {seen['loss']:.3f}, {seen['tokens_per_second']:,.0f} tokens/s"
                ),
            )
        for line in [*closing(read_json(out.expanduser() / "result.json")), final]:
            typer.echo(line)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished training runs.", metavar="DIR...")],
    offsets: Annotated[str, typer.Option(help="As for report.")] = "0",
    null: Annotated[int, typer.Option(help="As for report.", min=0)] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Save tables (JSON, CSV, parquet) and the picture here.", file_okay=False)
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Compare matched models: loss against cache, diversity against null, with intervals over seeds."""
    with mistakes():
        from ..training import compare

        claim(out, html)
        with progress("measuring runs") as tick:
            result = compare(runs, offsets=offsets, null=null, progress=tick)
        give(result, out, as_json=json, html=html)
