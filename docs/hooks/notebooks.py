"""The notebooks as pages of the site: as they are stored, or executed where HEADSCOPE_RUN_NOTEBOOKS is set.

Stored notebooks have no outputs. `HEADSCOPE_RUN_NOTEBOOKS=1 mkdocs build` runs each once, in a folder of its own beside
a link to SmolLM2 where the checkout has it, and shows its tables and pictures.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

SWITCH = "HEADSCOPE_RUN_NOTEBOOKS"
INDEX = "notebooks/index.md"
STORED = "!!! note\n    Shown without outputs, as it is stored. `{switch}=1 mkdocs build` runs it and shows them.\n\n"


def on_config(config: Any) -> Any:
    """Put every notebook into the navigation, below the page that lists them."""
    pages = [{_title(nbformat.read(path, as_version=4)): f"notebooks/{path.stem}.md"} for path in _stored(config)]
    for entry in config.nav:
        if "Notebooks" in entry:
            entry["Notebooks"] = [{"All of them": INDEX}, *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, with its pictures, and list them all."""
    listed = []
    for path in _stored(config):
        notebook = nbformat.read(path, as_version=4)
        if os.environ.get(SWITCH):
            _run(notebook, path.parents[1])
        text, resources = MarkdownExporter().from_notebook_node(notebook, resources={"unique_key": path.stem})
        title = _title(notebook)
        rest = re.sub(r"\A\s*# .*\n", "", text)
        stored = "" if os.environ.get(SWITCH) else STORED.format(switch=SWITCH)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=f"# {title}\n\n{stored}{rest}"))
        for name, data in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
        listed.append(f"- [{title}]({path.stem}.md): {_first_sentence(rest)}")
    files.get_file_from_path(INDEX).content_string += "\n".join(listed) + "\n"
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to stored notebooks lead to their pages."""
    markdown = re.sub(r"\]\(\.\./notebooks/([\w-]+)\.ipynb\)", r"](notebooks/\1.md)", markdown)
    return re.sub(r"\]\(\.\./notebooks/(README\.md)?\)", f"]({INDEX})", markdown)


def _run(notebook: Any, root: Path) -> None:
    """Execute in place, in a folder that is thrown away."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        if (root / "smollm2").exists():
            (Path(folder) / "smollm2").symlink_to(root / "smollm2")
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()


def _stored(config: Any) -> list[Path]:
    return sorted((Path(config.config_file_path).parent / "notebooks").glob("*.ipynb"))


def _title(notebook: Any) -> str:
    """Return a notebook's first heading, which its first cell has."""
    return next(line for line in notebook.cells[0].source.splitlines() if line.startswith("# ")).removeprefix("# ")


def _first_sentence(text: str) -> str:
    paragraph = re.sub(r"\s+", " ", text.strip().split("\n\n")[0])
    return re.split(r"(?<=[.?!:]) ", paragraph)[0].rstrip(":")
