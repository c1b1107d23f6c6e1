"""A sweep as one HTML page that needs no network: tables, pictures, configuration and versions."""

from __future__ import annotations

import base64
import html
import io
import json
import platform as machine
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from tilesim.advise import Advice
from tilesim.grid import AXES, Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 5000
"""Rows of the table; more make a page that browsers struggle with. The results file has all."""

STYLE = """
body { font: 14px/1.4 sans-serif; margin: 2em auto; max-width: 1300px; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 12px; }
th, td { border-bottom: 1px solid #ddd; padding: 3px 8px; text-align: right; white-space: nowrap; }
th { background: #f3f3f3; position: sticky; top: 0; }
th button { all: unset; cursor: pointer; font-weight: bold; }
th button:focus-visible { outline: 2px solid #4477aa; }
th[aria-sort=ascending] button::after { content: " \\25b2"; }
th[aria-sort=descending] button::after { content: " \\25bc"; }
.scroll { max-height: 36em; overflow: auto; border: 1px solid #ddd; }
.no { color: #aa1111; } img { max-width: 100%; }
"""

SCRIPT = """
document.querySelectorAll("table.sortable").forEach(table => {
  const body = table.tBodies[0];
  const value = (row, place) => {
    const text = row.cells[place].dataset.value ?? row.cells[place].textContent;
    const number = text.trim() === "" ? NaN : Number(text);
    return { text, number };
  };
  table.querySelectorAll("th button").forEach((button, place) => button.addEventListener("click", () => {
    const head = button.parentElement;
    const up = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows].map(row => ({ row, ...value(row, place) }));
    const empty = one => one.text.trim() === "";
    rows.sort((a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b);
      const order = Number.isNaN(a.number) || Number.isNaN(b.number)
        ? a.text.localeCompare(b.text) : a.number - b.number;
      return up ? order : -order;
    });
    body.append(...rows.map(one => one.row));
  }));
});
"""


def sweep_page(
    grid: Grid,
    rows: Sequence[Mapping[str, Any]],
    pictures: Mapping[str, Figure],
    advice: Advice | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    grid : Grid
    rows : sequence of rows
        All of the sweep; the table shows those that fit, then the others, at most `MOST_ROWS`.
    pictures : mapping of str to Figure
        Caption -> picture, embedded as PNG.
    advice : Advice, optional
        Recommendation, shown first.
    """
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    summary = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    parts = [f"<p>{len(rows):,} configurations: {html.escape(summary)}.</p>"]
    if advice is not None:
        parts.append(_advice(advice))
    parts += [_picture(caption, figure) for caption, figure in pictures.items()]
    parts += ["<h2>Configurations</h2>", _rows_table(rows), "<h2>Grid</h2>", _grid_table(grid)]
    parts += ["<h2>Versions</h2>", _versions()]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>tilesim sweep</title>'
        f"<style>{STYLE}</style></head><body><h1>tilesim sweep</h1>\n"
        + "\n".join(parts)
        + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def _advice(advice: Advice) -> str:
    best = advice.best
    names = ("softmax_rows", "kv_tile", "query_rows", "slots", "precision")
    chosen = html.escape(", ".join(f"{name} {best[name]}" for name in names))
    lines = "".join(f"<li>{html.escape(f'{n.axis} {n.value}: {n.reason}')}</li>" for n in advice.neighbours)
    return (
        f"<h2>Recommended</h2><p><b>{chosen}</b>: {best['time_us']:.1f} us, "
        f"{best['ub_used_bytes']:,} bytes of UB.</p><ul>{lines}</ul>"
    )


def _picture(caption: str, figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    encoded = base64.b64encode(data.getvalue()).decode()
    text = html.escape(caption)
    return f'<h2>{text}</h2><img alt="{text}" src="data:image/png;base64,{encoded}">'


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f'<td data-value="{value!r}">{value:,.4g}</td>'
    if isinstance(value, int):
        return f'<td data-value="{value}">{value:,}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    look = "" if row["status"] == "fits" else ' class="no"'
    return f"<tr{look}>" + "".join(_cell(row[name]) for name in columns) + "</tr>"


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = sorted(rows, key=lambda row: (row["status"] != "fits", row["index"]))[:MOST_ROWS]
    columns = [name for name in (rows[0] if rows else {}) if name != "grid"]
    # A column that says the same everywhere says it in the table of the grid.
    varied = [name for name in columns if name not in AXES or len({str(row[name]) for row in rows}) > 1]
    kept = [name for name in varied if any(row[name] is not None for row in shown)]
    head = "".join(f"<th><button>{html.escape(name)}</button></th>" for name in kept)
    body = "".join(_row(row, kept) for row in shown)
    hidden = len(rows) - len(shown)
    left = f"<p>{hidden:,} more are in the results file.</p>" if hidden else ""
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{left}"
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return (
        "<table>"
        + "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in pairs
        )
        + "</table>"
    )


def _grid_table(grid: Grid) -> str:
    return _pairs((name, json.dumps(list(values))) for name, values in grid.axes.items())


def _versions() -> str:
    names = ("tilesim", "numba", "numpy")
    pairs = [(name, metadata.version(name)) for name in names]
    return _pairs([*pairs, ("Python", machine.python_version()), ("machine", machine.machine())])
