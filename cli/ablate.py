"""`headscope ablate`: one head after another disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import Html, Json, claim, give_saved, mistakes, progress


def ablate(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="As for report. Default: the LRKV model that ships.", metavar="[CHECKPOINT]", show_default=False
        ),
    ] = "",
    path: Annotated[
        str, typer.Option(help="q, k, k_shared, k_private, v, v_shared, v_private, z, result, latent or k_rot.")
    ] = "k_private",
    how: Annotated[
        str, typer.Option(help="shuffle, shuffle-past, shuffle-token, resample, mean, zero or noise.")
    ] = "shuffle",
    task: Annotated[
        str, typer.Option(help="induction, retrieval, next-token, brackets, indentation, or a file of JSON lines.")
    ] = "induction",
    layers: Annotated[
        str | None, typer.Option(help="Layers: 3, 0:4 (both ends included) or 0,5,9. Default: all.")
    ] = None,
    heads: Annotated[str, typer.Option(help="each, all (together), or numbers: 0,3.")] = "each",
    samples: Annotated[int, typer.Option(help="Samples of the task.", min=1)] = 64,
    seeds: Annotated[int, typer.Option(help="Repeats of what is random in the edit.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="Of the samples and of the edit.", min=0)] = 0,
    stop_early: Annotated[
        bool, typer.Option("--stop-early", help="Leave a head once its samples so far decide it.")
    ] = False,
    rotated: Annotated[
        bool, typer.Option("--rotated", help="Edit queries or keys as they are after the rotation.")
    ] = False,
    bridge: Annotated[
        bool, typer.Option("--bridge", help="Load through TransformerLens: any Hugging Face model.")
    ] = False,
    device_map: Annotated[
        str | None, typer.Option(help="With the bridge: auto spreads a large model over all devices.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="Text file or folder to make samples from. Default: held-out standard library."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save tables and the heat map here; a killed sweep goes on from here.", file_okay=False),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Disturb one head after another, and measure what changes in a task, beside controls."""
    with mistakes():
        from ..checkpoints.bridge import LACKS
        from ..checkpoints.reference import DEFAULT
        from ..interventions import ablate, load_bridge
        from ..interventions.tasks import named
        from ..training.corpus import documents

        claim(out, html)
        source = checkpoint or DEFAULT
        if device_map is not None and not bridge:
            raise ValueError("--device-map is for models in the bridge: give --bridge, too")
        model: Any = source
        work: Any = task
        if bridge:
            model, tokenizer = load_bridge(source, device_map)
            typer.echo(f"note: {source} is loaded {LACKS}", err=True)
            work = named(task, tokenizer, documents(text), min(model.cfg.n_ctx, 512), samples, seed)
        with progress("ablating layers") as tick:
            result = ablate(
                model,
                work,
                path=path,
                how=how,
                rotated=rotated,
                layers=layers,
                heads=_heads(heads),
                seeds=seeds,
                seed=seed,
                stop_early=stop_early,
                text=text,
                samples=samples,
                origin={"path": source},
                out=out,
                progress=tick,
            )
        if result is not None:  # one of several processes prints
            give_saved(result, out, as_json=json, html=html)


def _heads(text: str) -> str | tuple[int, ...]:
    if text in ("each", "all"):
        return text
    try:
        return tuple(int(piece) for piece in text.split(","))
    except ValueError:
        raise ValueError(f"heads should be each, all or numbers like 0,3 but got {text!r}") from None
