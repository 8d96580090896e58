"""The command line. Thin: a verb reads its options, calls the verb of the same name, prints.

One file a verb or two; heavy imports wait until a verb needs them.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from .ablate import ablate
from .budget import audit, budget
from .convert import convert
from .models import models, prepare
from .probe import probe
from .report import report
from .train import compare, train

app = typer.Typer(
    help="Look inside attention heads: how different they are, what they share, what is private to each.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for verb in (report, ablate, probe, compare, convert, models):
    app.command()(verb)

_budget = typer.Typer(rich_markup_mode="rich")
_budget.callback(invoke_without_command=True)(budget)
_budget.command()(audit)
app.add_typer(_budget, name="budget")

for verb in (train, prepare):
    app.command()(verb)


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


def main() -> None:
    """Run the command line; a mistake in the call itself is one line and exit status 2 like any other."""
    try:
        status = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        status = 130
    except typer.TyperException as error:
        if message := " ".join(error.format_message().split()):  # empty where the help was shown instead
            sys.stderr.write(f"error: {message}\n")
        status = 2
    sys.exit(status if isinstance(status, int) else 0)
