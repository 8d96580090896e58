"""The package as it is installed: one import name, no tests or notebooks, the face complete, imports pointing one way."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import headscope
import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "budgets",
    "cli",
    "models",
    "checkpoints",
    "conversion",
    "diversity",
    "exploring",
    "interventions",
    "kernels",
    "plots",
    "probing",
    "training",
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # A copy of what git tracks, so that no build folder appears in the checkout.
    source = tmp_path_factory.mktemp("source")
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_wheel_installs_under_one_import_name(wheel, tmp_path):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    top = sorted(p.name for p in tmp_path.iterdir() if p.name != "bin")
    assert [name for name in top if not name.endswith(".dist-info")] == ["headscope"]
    code = (
        "import headscope, importlib; "
        f"[importlib.import_module(f'headscope.{{room}}') for room in {ROOMS}]; "
        "print(headscope.__file__)"
    )
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert where.returncode == 0, where.stderr
    assert where.stdout.strip() == str(tmp_path / "headscope" / "__init__.py")


def test_wheel_holds_the_code_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = {f"headscope/{p.relative_to(ROOT)}" for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    assert tracked <= set(names)
    assert {"headscope/py.typed", "headscope/budgets/paper.csv"} <= set(names)
    page = ("page.html.j2", "short.html.j2", "page.css", "page.js")
    assert {f"headscope/plots/page/{name}" for name in page} <= set(names)
    assert {f"headscope/checkpoints/reference/{name}/model.safetensors" for name in ("lrkv", "mha")} <= set(names)
    outside = [n for n in names if n.split("/")[1] in ("tests", "notebooks", "benchmarks", "docs", ".ci")]
    assert outside == []


def test_the_face_is_complete():
    for name in headscope.__all__:
        assert getattr(headscope, name) is not None
    assert set(dir(headscope)) == set(headscope.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        headscope.nothing  # noqa: B018


def test_imports_point_one_way():
    """plots is a leaf; models know no file; checkpoints build on models; diversity on both."""
    allowed = {
        "plots": {"plots"},
        "kernels": {"kernels"},
        "budgets": {"budgets", "checkpoints", "models", "plots", "results"},
        "training": {"training", "checkpoints", "diversity", "models", "plots", "errors", "results", "unfinished"},
        "conversion": {
            "conversion",
            "checkpoints",
            "interventions",
            "models",
            "plots",
            "training",
            "errors",
            "results",
        },
        "interventions": {
            "interventions",
            "checkpoints",
            "models",
            "plots",
            "training",
            "errors",
            "results",
            "unfinished",
        },
        "probing": {
            "probing",
            "checkpoints",
            "interventions",
            "kernels",
            "models",
            "plots",
            "training",
            "errors",
            "results",
        },
        "models": {"models", "kernels", "errors"},
        "checkpoints": {"checkpoints", "models", "errors", "results"},
        "diversity": {"diversity", "checkpoints", "models", "plots", "errors", "results", "unfinished"},
        "exploring": {"exploring", "checkpoints", "diversity", "models", "plots", "probing", "results"},
    }
    for room, may in allowed.items():
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.level:
                    base = list(parts[: len(parts) - node.level])
                    target = [*base, *(node.module or "").split(".")]
                    first = target[0] if target[0] else node.names[0].name
                    assert first in may, f"{path}: {room} imports {first}"
                if isinstance(node, ast.ImportFrom | ast.Import) and not getattr(node, "level", 0):
                    modules = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                    assert not any(m and m.split(".")[0] == "headscope" for m in modules), f"{path} imports absolutely"


def test_no_pickle_is_ever_loaded():
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            assert "torch.load" not in text, path
            assert "import pickle" not in text, path
