"""The page in Chromium, from disk, without a network: it opens silently, sorts, filters, and runs nothing of a table's."""

import json
import math
import re
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from headscope.plots import page as pages
from matplotlib.figure import Figure

SCRIPT = "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked = 2'>"
HOSTILE = [
    SCRIPT,
    "\"'&<b>",
    "\u202eright to left",
    "😀 שלום",
    "]]>--><!--",
    " leading\nand new line ",
    "{{ 1 }}",
    " " + "w" * 5000,
]
SLOW = 1000
"""Milliseconds that a step may take on a busy machine; it takes a few."""


def effects():
    """Return 64 layers of 64 heads."""
    rng = np.random.default_rng(1)
    layer, head = np.divmod(np.arange(64 * 64), 64)
    table = pd.DataFrame({"layer": layer, "head": head, "effect": rng.normal(size=4096)})
    table["p"] = rng.uniform(size=4096) ** 6
    table["odd"] = np.where(head % 5 == 0, math.nan, table["effect"].round(1))
    table.loc[[7, 70], "odd"] = [math.inf, -math.inf]
    table["significant"] = table["p"] < 0.01
    for name in "abcdefgh":
        table[name] = rng.normal(size=4096)
    return table


@pytest.fixture(scope="module")
def text():
    file = BytesIO()
    figure = Figure(figsize=(20, 2))
    figure.add_subplot().plot([0, 1])
    figure.savefig(file, dpi=pages.DPI, format="png")
    awkward = pd.DataFrame(
        {
            "words": HOSTILE,
            "whole": [3, 1, 2, 10_000, 1_234_567, -5, 0, 2**53 - 1],
            "ties": [0.0625, -0.0625, 0.1875, 2.5, 1.0, -0.0, 1e-7, 0.00049],
            "large": [1e12, -3.25e11, 123456.789, 0.5, math.inf, -math.inf, math.nan, 1e-300],
            "yes": [True, False, None, True, False, None, True, False],
            SCRIPT: ["10", "9", None, "a10", "a9", "B", "b", ""],
        }
    )
    tables = [
        pages.Table("effects", effects(), {"p": "a chance"}),
        pages.Table(SCRIPT, awkward, {SCRIPT: SCRIPT}),
        pages.Table("one", pd.DataFrame({"a": [1]})),
        pages.Table("none", pd.DataFrame({"a": []})),
        pages.Table("nothing", pd.DataFrame()),
    ]
    pictures = [pages.Drawn("line", SCRIPT, file.getvalue()), pages.Drawn(SCRIPT, SCRIPT, None, SCRIPT)]
    record = {"versions": {"headscope": "0"}, "prompt": SCRIPT}
    first = pages.Part(SCRIPT, [SCRIPT], [SCRIPT], [SCRIPT], pictures, tables, record)
    return pages.page([first, pages.Part("another", [], ["s"], ["r"], [], [], {})])


@pytest.fixture(scope="module")
def opened(browser, text, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(text, encoding="utf-8")
    browser.get_log("browser"), browser.get_log("performance")  # what came before is nobody's business
    browser.get(path.as_uri())
    return browser


def leaf(browser, table):
    """Return the texts of a table's rows that are on the page."""
    script = "return [...document.querySelectorAll('table')[arguments[0]].tBodies[0].rows]"
    return browser.execute_script(f"{script}.map((row) => [...row.cells].map((cell) => cell.textContent))", table)


def head(browser, table, column):
    script = "return document.querySelectorAll('table')[arguments[0]].tHead.rows[0].cells[arguments[1]]"
    return browser.execute_script(script, table, column)


def click(browser, table, column):
    from selenium.webdriver.common.by import By

    head(browser, table, column).find_element(By.TAG_NAME, "button").click()


def write(browser, table, column, text):
    """Put text into a filter as a hand would, key by key; return the line below the table."""
    from selenium.webdriver.common.keys import Keys

    script = "return document.querySelectorAll('table')[arguments[0]].tHead.rows[1].cells[arguments[1]].firstChild"
    field = browser.execute_script(script, table, column)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text or Keys.BACKSPACE)
    script = "return document.querySelectorAll('section.table')[arguments[0]].querySelector('.count').textContent"
    return browser.execute_script(script, table)


@pytest.fixture
def page(opened):
    """The page as it is when opened."""
    opened.refresh()
    return opened


class Rows(HTMLParser):
    """Reads a page's tables as they are without a script."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.inside, self.text = [], False, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tbody":
            self.tables.append([])
            self.inside = True
        elif self.inside and tag == "tr":
            self.tables[-1].append([])
        elif self.inside and tag == "td":
            self.text = ""

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "td" and self.text is not None:
            self.tables[-1][-1].append(self.text)
            self.text = None
        elif tag == "tbody":
            self.inside = False


def test_it_opens_silently_and_asks_for_nothing(opened):
    assert opened.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert sum(url.startswith("file:") for url in asked) == 1
    assert {re.split(":", url)[0] for url in asked} <= {"file", "data"}


def test_text_stays_text(page):
    assert page.execute_script("return window.hacked") is None
    assert page.title == SCRIPT
    assert page.execute_script("return document.querySelector('h1').textContent") == SCRIPT
    assert SCRIPT in json.loads(page.execute_script("return document.querySelector('pre').textContent"))["prompt"]
    assert page.execute_script("return document.images.length") == 1
    scripts = "return [...document.scripts].filter((script) => script.type !== 'application/json').length"
    assert page.execute_script(scripts) == 1
    words = [row[0] for row in leaf(page, 1)]
    assert words[5] == '" leading\\nand new line "'  # white space is to be seen
    assert words[:5] + words[6:7] == HOSTILE[:5] + HOSTILE[6:7]
    assert words[7] == f'" {"w" * 299}"… (5,001 characters)'
    click(page, 1, 5)
    assert write(page, 1, 0, "<script>") == "1 row (of 8)"
    assert page.execute_script("return window.hacked") is None
    assert page.get_log("browser") == []


def test_script_and_template_write_the_same(page, text):
    without = Rows(text).tables
    assert [len(rows) for rows in without] == [20, 8, 1, 0]
    assert [leaf(page, table) for table in range(4)] == without


def test_a_click_sorts_by_the_full_values(page):
    table = effects()
    click(page, 0, 2)
    assert head(page, 0, 2).get_attribute("aria-sort") == "ascending"
    order = table.sort_values("effect").head(20)
    assert [row[:2] for row in leaf(page, 0)] == order[["layer", "head"]].astype(str).to_numpy().tolist()
    click(page, 0, 2)
    assert head(page, 0, 2).get_attribute("aria-sort") == "descending"
    order = table.sort_values("effect", ascending=False).head(20)
    assert [row[:2] for row in leaf(page, 0)] == order[["layer", "head"]].astype(str).to_numpy().tolist()
    click(page, 0, 2)
    assert head(page, 0, 2).get_attribute("aria-sort") == "none"
    assert [row[:2] for row in leaf(page, 0)] == [["0", str(head)] for head in range(20)]


def test_missing_values_come_last_either_way_and_infinities_are_ends(page):
    click(page, 1, 3)
    up = [row[3] for row in leaf(page, 1)]
    assert (up[0], up[-2], up[-1]) == ("-∞", "∞", "–")
    click(page, 1, 3)
    down = [row[3] for row in leaf(page, 1)]
    assert (down[0], down[-2], down[-1]) == ("∞", "-∞", "–")


def test_words_with_numbers_sort_as_people_count(page):
    click(page, 1, 5)
    assert [row[5] for row in leaf(page, 1)][:5] == ['""', "9", "10", "a9", "a10"]


def test_the_keyboard_sorts(page):
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelectorAll('table')[0].tHead.rows[0].cells[0].firstChild.focus()")
    page.switch_to.active_element.send_keys(Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert head(page, 0, 1).get_attribute("aria-sort") == "ascending"
    page.switch_to.active_element.send_keys(Keys.SPACE)
    assert head(page, 0, 1).get_attribute("aria-sort") == "descending"
    assert leaf(page, 0)[0][1] == "63"


@pytest.mark.parametrize(
    ("column", "asked", "wanted"),
    [
        ("effect", "> 0.5", lambda t: t["effect"] > 0.5),
        ("effect", "<= -1", lambda t: t["effect"] <= -1),
        ("effect", "-0.5..0.25", lambda t: t["effect"].between(-0.5, 0.25)),
        ("effect", "> -1 < 1", lambda t: t["effect"].abs() < 1),
        ("p", "< 1e-6", lambda t: t["p"] < 1e-6),
        ("layer", "3", lambda t: t["layer"] == 3),
        ("layer", "!= 3", lambda t: t["layer"] != 3),
        ("odd", "–", lambda t: t["odd"].isna()),
        ("odd", "> 1", lambda t: t["odd"] > 1),
        ("odd", "inf", lambda t: t["odd"] == math.inf),
        ("significant", "yes", lambda t: t["significant"]),
        ("effect", "> 100", lambda t: t["effect"] > 100),
    ],
)
def test_filters(page, column, asked, wanted):
    table = effects()
    count = int(wanted(table).sum())
    said = write(page, 0, list(table.columns).index(column), asked)
    assert re.search(r"([\d,]+) rows? \(of 4,096\)$", said).group(1).replace(",", "") == str(count)
    rows = table[wanted(table)].head(20)
    assert [row[:2] for row in leaf(page, 0)] == rows[["layer", "head"]].astype(str).to_numpy().tolist()


def test_what_a_cell_shows_finds_the_cell(page):
    shown = leaf(page, 0)[5][2]
    write(page, 0, 2, shown)
    assert shown in [row[2] for row in leaf(page, 0)]
    assert len(leaf(page, 0)) < 20


def test_filters_join_and_what_makes_no_sense_is_said(page):
    write(page, 0, 0, ">= 62")
    said = write(page, 0, 2, "> 0.5")
    table = effects()
    assert said.endswith(f"{((table['layer'] >= 62) & (table['effect'] > 0.5)).sum()} rows (of 4,096)")
    before = leaf(page, 0)
    assert write(page, 0, 2, "> 0.5 banana").startswith("effect: write")
    assert leaf(page, 0) == before
    fields = "return document.querySelectorAll('input[aria-invalid=true]').length"
    assert page.execute_script(fields) == 1
    write(page, 0, 2, "")
    assert page.execute_script(fields) == 0


def test_leaves_are_turned(page):
    from selenium.webdriver.support.ui import Select

    buttons = page.find_elements("css selector", ".foot button")
    assert not buttons[0].is_enabled()
    buttons[1].click()
    assert [row[:2] for row in leaf(page, 0)][0] == ["0", "20"]
    Select(page.find_element("css selector", ".foot select")).select_by_visible_text("500")
    assert len(leaf(page, 0)) == 500


def test_4096_rows_stay_responsive(page):
    took = page.execute_script(
        """
        const table = document.querySelectorAll("table")[0];
        const timed = (act) => { const start = performance.now(); act(); table.getBoundingClientRect(); return performance.now() - start; };
        const field = table.tHead.rows[1].cells[2].firstChild;
        const type = (text) => timed(() => { field.value = text; field.dispatchEvent(new Event("input")); });
        const sort = (column) => timed(() => table.tHead.rows[0].cells[column].firstChild.click());
        return [sort(2), sort(2), sort(3), type("> 0"), type("> 0.5"), type("")];
        """
    )
    assert max(took) < SLOW


def test_a_picture_opens_to_its_full_size(page):
    picture = page.find_element("css selector", "button.picture")
    image = picture.find_element("tag name", "img")
    assert image.size["width"] < 1300
    picture.click()
    assert picture.get_attribute("aria-pressed") == "true"
    assert image.size["width"] == 1920


def test_nothing_is_wider_than_the_page(page):
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(wide) == 0
