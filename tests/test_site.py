"""The site: built strictly, whole without a network, every link and picture there, every public name described."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import headscope as hs
import pytest

ROOT = Path(__file__).parents[1]
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""What a browser fetches by itself, and the attribute that says from where."""


class Page(HTMLParser):
    """A built page: what it fetches, where it leads, and the places in it that can be led to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.formulas = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.formulas += tag == "math"
        if place := values.get("id") or (values.get("name") if tag == "a" else None):
            self.places.add(place)
        if (source := values.get(FETCHED.get(tag, ""))) and values.get("rel") != "canonical":
            self.fetched.append(source)
        if tag == "a" and (target := values.get("href")):
            self.links.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "HEADSCOPE_RUN_NOTEBOOKS"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_nothing_is_fetched_from_elsewhere(site, pages):
    assert len(pages) > 20
    for path, page in pages.items():
        for source in page.fetched:
            assert not urlsplit(source).scheme or source.startswith("data:"), f"{path.name} fetches {source}"
            assert not source.startswith("//"), f"{path.name} fetches {source}"
            if not source.startswith("data:"):
                assert (path.parent / unquote(urlsplit(source).path)).exists(), f"{path.name} lacks {source}"
    for style in site.rglob("*.css"):
        for source in re.findall(r"""(?:url\(|@import )["']?([^"')\s]+)""", style.read_text()):
            assert source.startswith(("data:", "#")) or not urlsplit(source).scheme, f"{style.name} fetches {source}"


def test_every_link_leads_somewhere(pages):
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or link.startswith("//"):
                continue
            there = (path.parent / unquote(target.path)).resolve() if target.path else path
            assert there.exists(), f"{path.name} links to {link}"
            if target.fragment and there in pages:
                places = pages[there].places | {"__skip"}
                assert unquote(target.fragment) in places, f"{path.name} links to {link}, which has no such place"


def test_formulas_are_set_without_a_script(site, pages):
    assert pages[site / "concepts.html"].formulas > 50
    for path, page in pages.items():
        words = path.read_text()
        assert "arithmatex" not in words, f"{path.name} has a formula that was not converted"
        assert page.formulas == 0 or "<math" in words


def test_search_works_from_disk(site):
    """Browsers load no JSON and start no worker from a file: the index is a script, and a frame stands in."""
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = ")
    assert "assets/iframe-worker.js" in (site / "index.html").read_text()


def test_every_public_name_is_described(site, pages):
    for name in hs.__all__:
        found = getattr(hs, name)
        place = f"{found.__module__}.{found.__qualname__}"
        assert place in pages[site / "api.html"].places, f"docs/api.md has no entry for headscope.{name} ({place})"


def test_notebooks_are_pages_of_it(site):
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        assert (site / "notebooks" / f"{notebook.stem}.html").exists()
