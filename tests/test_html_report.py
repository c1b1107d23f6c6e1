"""The page of a sweep: what it holds, and that a browser can sort it."""

import html.parser
import shutil
import subprocess

import pytest
from matplotlib.figure import Figure

import tilesim as ts
from tilesim.grid import Grid
from tilesim.html_report import MOST_ROWS, sweep_page

GRID = Grid(axes={"kv_tile": [512, 128, 256], "softmax_rows": [8, 64]})


@pytest.fixture(scope="module")
def page():
    table = ts.sweep(GRID)
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return sweep_page(GRID, table.rows, {"A <picture>": figure}, ts.advise(table))


class Parser(html.parser.HTMLParser):
    VOID = ("meta", "img")

    def __init__(self):
        super().__init__()
        self.open, self.cells = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_page_is_well_formed_and_holds_every_row(page):
    parser = Parser()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<tr") > 6
    assert "over budget" in parser.cells
    assert "A &lt;picture&gt;" in page
    assert "Recommended" in page
    assert ts.__version__ in page
    assert "http" not in page


def test_long_tables_are_cut_and_say_so():
    rows = ts.sweep(kv_tile=[512]).rows * (MOST_ROWS + 3)
    assert "3 more are in the results file" in sweep_page(GRID, rows, {})


def test_a_browser_sorts_the_table(page, tmp_path):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium")
    click = """
    <script>
    const table = document.querySelector("table.sortable");
    const heads = [...table.querySelectorAll("th button")];
    const place = heads.findIndex(head => head.textContent === "kv_tile");
    heads[place].click();
    const up = [...table.tBodies[0].rows].map(row => row.cells[place].textContent).join(" ");
    heads[place].click();
    const down = [...table.tBodies[0].rows].map(row => row.cells[place].textContent).join(" ");
    const loaded = [...document.images].every(image => image.naturalWidth > 0);
    document.title = `${up} | ${down} | ${loaded}`;
    </script></body>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", click))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    title = done.stdout.split("<title>")[1].split("</title>")[0]
    assert title == "128 128 256 256 512 512 | 512 512 256 256 128 128 | true"
