"""Each notebook runs from top to bottom, shows what it promises, says nothing on stderr, and is stored without outputs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import matplotlib.image
import nbclient
import nbformat
import numpy as np
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
NEED_SMOLLM2 = ("1-", "5-")
SECONDS = 300
"""For one cell, on a busy machine; a quiet one needs less than sixty for a notebook."""
DRAWS = (".plot(", ".plot_", "hs.explore(", "plt.subplots(", ".looked(", '.map("')
"""What a code cell that shows a picture holds."""
WIDGET = "application/vnd.jupyter.widget-view+json"


def test_they_are_numbered_in_order():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{number}-" for number in range(1, 7)]


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request, tmp_path_factory) -> nbformat.NotebookNode:
    folder = tmp_path_factory.mktemp("run")
    if request.param.name.startswith(NEED_SMOLLM2):
        (folder / "smollm2").symlink_to(request.getfixturevalue("smollm2"))
    notebook = nbformat.read(request.param, as_version=4)
    nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(cell: nbformat.NotebookNode) -> list[np.ndarray]:
    found = (output.get("data", {}).get("image/png") for output in cell.outputs)
    return [matplotlib.image.imread(io.BytesIO(base64.b64decode(png))) for png in found if png]


def kinds(notebook: nbformat.NotebookNode, model: str) -> set[str]:
    """What a front end would show of a widget, by the messages that came from the kernel."""
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    found = set()
    for child in state[model]["state"]["children"]:
        name = state[child.removeprefix("IPY_MODEL_")]["model_name"]
        found.add({"HBoxModel": "controls", "ImageModel": "picture"}[name])
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs_and_shows_its_pictures(executed):
    for cell in code(executed):
        drawn = pictures(cell)
        wanted = any(word in cell.source for word in DRAWS)
        assert len(drawn) == wanted, f"{len(drawn)} pictures of:\n{cell.source}"
        for picture in drawn:
            height, width = picture.shape[:2]
            assert 150 < height < 6000
            assert 300 < width < 6000
            assert np.ptp(picture[..., :3]) > 0.5  # something is on it
        shown = [output.data[WIDGET]["model_id"] for output in cell.outputs if WIDGET in output.get("data", {})]
        assert len(shown) == ("hs.explore(" in cell.source), cell.source
        assert all(kinds(executed, model) == {"controls", "picture"} for model in shown)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_says_nothing_on_stderr_and_shows_no_bare_object(executed):
    for cell in code(executed):
        for output in cell.outputs:
            assert output.get("name") != "stderr", f"{output.text}\nfrom:\n{cell.source}"
            if output.output_type in ("execute_result", "display_data"):
                assert " at 0x" not in output.data.get("text/plain", ""), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs_and_ends_with_what_to_try(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in code(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
    assert notebook.cells[0].source.startswith(f"# {path.name[0]}. ")
    assert "What follows, and what does not" in notebook.cells[-1].source
    assert "**Try next:**" in notebook.cells[-1].source
