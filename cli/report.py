"""`headscope report`: effective rank of every layer, and on request what each head does on a text."""

from __future__ import annotations

import sys
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import Html, Json, claim, give, give_page, give_saved, mistakes, progress


class CircuitOption(StrEnum):
    """Circuits to report on."""

    qk = "qk"
    ov = "ov"
    both = "both"


class DefinitionOption(StrEnum):
    """Definitions of effective rank."""

    gram = "gram"
    roy = "roy"


def report(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="Directory (native or Hugging Face), .gguf file, a model that ships (headscope models), org/name of a "
            "hub model, or a training run, which is followed over its saved steps. Default: the LRKV model that ships.",
            metavar="[CHECKPOINT]",
            show_default=False,
        ),
    ] = "",
    circuit: Annotated[
        CircuitOption, typer.Option(help="qk: where heads look; ov: what they bring.")
    ] = CircuitOption.both,
    offsets: Annotated[
        str,
        typer.Option(
            help="Distance of query and key under rotary positions: 3, 0:255 (averaged, both ends included) or none."
        ),
    ] = "0",
    layers: Annotated[
        str | None, typer.Option(help="Layers: 3, 0:4 (both ends included) or 0,5,9. Default: all.")
    ] = None,
    definition: Annotated[
        DefinitionOption, typer.Option(help="gram: p ∝ σ² (the LRKV paper's); roy: p ∝ σ (Roy & Vetterli's).")
    ] = DefinitionOption.gram,
    null: Annotated[
        int, typer.Option(help="Random initialisations of the same architecture to compare with.", min=0)
    ] = 20,
    fold: Annotated[bool, typer.Option("--fold/--no-fold", help="Fold the norms' gains into the forms.")] = True,
    text: Annotated[
        Path | None,
        typer.Option(help="Text file or folder, or stdlib (held-out): also report what each head does on it."),
    ] = None,
    edit: Annotated[
        str | None,
        typer.Option(help="With --text: what to change there, HOW:PATH[:LAYERS[:HEADS]], like shuffle:v_private:2:5."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Save tables (JSON, CSV, parquet) and pictures here; a killed report goes on from here.",
            file_okay=False,
        ),
    ] = None,
    html: Html = None,
    json: Json = False,
) -> None:
    """Effective rank of every layer's heads, beside its bounds and its null."""
    with mistakes():
        from ..checkpoints.reference import DEFAULT
        from ..checkpoints.runs import is_run
        from ..diversity import over_training, report

        if edit is not None and text is None:
            raise ValueError("--edit changes what heads do on a text: give one with --text")
        claim(out, html)
        source = checkpoint or DEFAULT
        followed = is_run(source)
        if followed and text is not None:
            raise ValueError(f"{source} is a training run: --text goes with one checkpoint, such as a saved step")
        seen = None if text is None else _behaviour(source, text, edit, layers)
        with progress("reading layers") as tick:
            result = (over_training if followed else report)(
                source,
                circuit=circuit.value,
                offsets=offsets,
                layers=layers,
                definition=definition.value,
                null=null,
                fold_norm=fold,
                out=out,
                progress=tick,
            )
        if seen is None:
            give_saved(result, out, as_json=json, html=html)
        else:
            _give_both(result, seen, out, as_json=json)
            give_page([result, seen], html, as_json=json)


def _behaviour(source: str, text: Path, edit: str | None, layers: str | None) -> Any:
    """Return what each head does on a text: windows of the model's context, one a document."""
    from ..checkpoints import open_checkpoint
    from ..interventions import behaviour
    from ..interventions.plan import edit_from_text
    from ..interventions.tasks import named
    from ..training.corpus import documents

    opened = open_checkpoint(source)
    model = opened.load()
    work = named("next-token", model.tokenizer, documents(text), min(model.config.n_ctx, 512), 32, 0)
    rows = tuple(sample.right.tokens for sample in work.samples)
    change = None if edit is None else edit_from_text(edit, rows, model.config.n_layers)
    return behaviour(model, rows, edit=change, layers=layers, text=str(text), origin=opened.describe())


def _give_both(result: Any, seen: Any, out: Path | None, *, as_json: bool) -> None:
    if as_json:
        both = result.to_dict() | {"behaviour": seen.to_dict()}
        sys.stdout.write(dumps(both, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        if out is not None:
            seen.save(out)
        return
    give_saved(result, out, as_json=False)
    give(seen, out, as_json=False)
