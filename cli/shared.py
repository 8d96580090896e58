"""What the verbs of the command line have in common: progress, printing and saving, mistakes as one line."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the JSON and nothing else.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", help="Write one HTML file with everything here, to look at or to send.", metavar="FILE"),
]


def claim(out: Path | None, html: Path | None = None) -> None:
    """Make the directory to save to: a place that cannot be written to is better known before the work."""
    if html is not None:
        _claim_file(html.expanduser())
    if out is not None:
        out.expanduser().mkdir(parents=True, exist_ok=True)


def _claim_file(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"--html should be a file but {path} is a directory: try {path / 'page.html'}")
    if not path.parent.is_dir():
        raise ValueError(f"--html {path} cannot be written: there is no directory {path.parent}")
    part = path.with_name(f".{path.name}.claimed")
    try:
        part.touch()
    except OSError as error:
        raise ValueError(f"--html {path} cannot be written: {error.strerror}") from None
    part.unlink(missing_ok=True)  # another process of the same sweep may have been quicker


def give(result: Any, out: Path | None, *, as_json: bool, pictures: bool = True, html: Path | None = None) -> None:
    """Save a result if asked, and print it, as JSON or for people: whoever reads may stop reading."""
    written = [] if out is None else result.save(out, pictures=pictures)
    if html is not None:
        written.append(_page([result], html))
    if as_json:
        sys.stdout.write(result.to_json() + "\n")
    else:
        from ..plots.terminal import show

        show(*result.terminal())
    for path in [] if as_json else written:
        typer.echo(f"wrote {path}")


def give_saved(result: Any, out: Path | None, *, as_json: bool, html: Path | None = None) -> None:
    """Print a result that its verb has saved already."""
    written = [] if html is None else [_page([result], html)]
    give(result, None, as_json=as_json)
    names = [] if out is None else [out / name for name in result.files()]
    for path in [] if as_json else [*names, *written]:
        typer.echo(f"wrote {path}")


def give_page(results: Sequence[Any], html: Path | None, *, as_json: bool) -> None:
    """Write results to one page if asked."""
    if html is not None and not as_json:
        typer.echo(f"wrote {_page(results, html)}")
    elif html is not None:
        _page(results, html)


def _page(results: Sequence[Any], html: Path) -> Path:
    from ..results import save_html_page

    return save_html_page(results, html)


@contextmanager
def mistakes() -> Iterator[None]:
    """Turn the user's mistakes into one line on standard error and exit status 2, and our warnings into notes there.

    With ``HEADSCOPE_DEBUG`` set the traceback is shown instead.
    """
    from ..errors import HeadscopeError

    try:
        with _notes():
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
def _notes() -> Iterator[None]:
    """Print each `HeadscopeWarning` as a line on standard error; other warnings are shown as ever."""
    from ..errors import HeadscopeWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", HeadscopeWarning)
        show = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, HeadscopeWarning):
                typer.echo(f"note: {message}", err=True)
            else:
                show(message, category, *rest, **more)

        warnings.showwarning = note
        yield


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar with the remaining time on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, step: bar.update(task, completed=done, total=total, description=step)
