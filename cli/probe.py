"""`headscope probe`: what heads look at while the model generates."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .shared import Html, Json, claim, give, mistakes, progress


class ViaOption(StrEnum):
    """Whose model generates."""

    headscope = "headscope"
    transformers = "transformers"


def probe(
    checkpoint: Annotated[
        str, typer.Argument(help="Checkpoint, or the name of a model that ships.", metavar="[CHECKPOINT]")
    ] = "lrkv",
    prompt: Annotated[str | None, typer.Option(help="Text to go on from.")] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(help="Stretch of the prompt to watch: name=start:end in tokens, or name=text.", metavar="SPAN"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens to generate, at most.", min=1)] = 20,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token.", min=0)] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample among so many likeliest.", min=1)] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample among the likeliest of this probability.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling, and of needles.", min=0)] = 0,
    top: Annotated[int, typer.Option(help="Strongest positions to keep a head and step.", min=1)] = 4,
    via: Annotated[
        ViaOption, typer.Option(help="Which model runs: headscope's, or transformers' own.")
    ] = ViaOption.headscope,
    needle: Annotated[
        str | None,
        typer.Option(help="Instead of a prompt: hide needles so many tokens back, such as 8,32,96. Who finds them?"),
    ] = None,
    samples: Annotated[int, typer.Option(help="Needles in all.", min=2)] = 64,
    out: Annotated[
        Path | None, typer.Option(help="Save tables (JSON, CSV, parquet) and pictures here.", file_okay=False)
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Generate, and see what every head looked at when each token was chosen."""
    with mistakes():
        if (prompt is None) == (needle is None):
            raise ValueError("give --prompt TEXT, or --needle DISTANCES")
        claim(out, html)
        from .. import probing

        if needle is not None:
            distances = _numbers("--needle", needle)
            with progress("needles") as tick:
                result = probing.needle(checkpoint, distances=distances, samples=samples, seed=seed, progress=tick)
            return give(result, out, as_json=json, html=html)
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        run = probing.probe if via is ViaOption.headscope else probing.probe_transformers
        result = run(
            checkpoint,
            prompt or "",
            spans=span or (),
            max_new_tokens=max_new_tokens,
            top=top,
            on_text=None if json else lambda text: typer.echo(_harmless(text), nl=False),
            **sampling,
        )
        if not json:
            typer.echo("\n")
        return give(result, out, as_json=json, html=html)


def _harmless(text: str) -> str:
    """Return text without what would steer a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(piece) for piece in text.split(","))
    except ValueError:
        raise ValueError(f"{name} should be numbers like 8,32,96 but got {text!r}") from None
