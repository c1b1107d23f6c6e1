"""Which tile to pick: Pareto front, recommendation under limits, and why its neighbours lose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilesim.errors import ConfigError
from tilesim.grid import AXES
from tilesim.units import format_bytes

OBJECTIVES = ("time_us", "ub_used_bytes", "sample_rms_error")
"""What is wanted small: device time, UB use, and error on real data where it was measured."""
TILE_AXES = ("softmax_rows", "kv_tile", "query_rows", "slots", "kv_splits", "precision")
"""What a kernel author chooses; the other axes are the problem."""

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A configuration next to the recommended one on one axis.

    Attributes
    ----------
    axis : str
    value : int or str
    reason : str
        Why it was not recommended.
    """

    axis: str
    value: Any
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """What to pick for one problem.

    Attributes
    ----------
    best : dict
        The row of the recommended configuration.
    front : list of dict
        Rows that no other beats on every objective, fastest first.
    neighbours : tuple of Neighbour
        The next smaller and larger value of each axis, with the reason it loses.
    """

    best: dict[str, Any]
    front: list[dict[str, Any]]
    neighbours: tuple[Neighbour, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as JSON types."""
        return {
            "schema": 1,
            "best": self.best,
            "front": self.front,
            "neighbours": [dataclasses.asdict(neighbour) for neighbour in self.neighbours],
        }


def pareto_front(rows: Iterable[Row], objectives: Sequence[str] = OBJECTIVES) -> list[dict[str, Any]]:
    """Return the rows that fit and that no other row beats or equals on every objective, fastest first.

    Of rows that are equal on every objective the first is kept. Objectives without a value count as equal.
    """

    def costs(row: Row) -> tuple[float, ...]:
        return tuple(0.0 if row.get(name) is None else float(row[name]) for name in objectives)

    candidates = [dict(row) for row in rows if row["status"] == "fits"]
    candidates.sort(key=lambda row: (*costs(row), row["index"]))
    front: list[dict[str, Any]] = []
    for row in candidates:
        own = costs(row)
        if not any(all(a <= b for a, b in zip(costs(kept), own, strict=True)) for kept in front):
            front.append(row)
    return front


def advise(rows: Iterable[Row], *, max_ub_bytes: int | None = None, max_error: float | None = None) -> Advice:
    """Return the fastest configuration within limits, and why its neighbours lose.

    Parameters
    ----------
    rows : iterable of rows
        Of one problem: a `SweepTable`, or rows read from its file.
    max_ub_bytes : int, optional
        UB it may use, below what is available.
    max_error : float, optional
        Largest rms error on the bundled real sample; needs rows of a sweep with ``errors=True``.

    Raises
    ------
    ConfigError
        If no row is left, rows are of several problems, or errors are asked for that were not measured.
    """
    table = [dict(row) for row in rows]
    problems = {tuple(str(row[name]) for name in AXES if name not in TILE_AXES) for row in table}
    if len(problems) > 1:
        raise ConfigError(
            "rows", f"{len(problems)} problems", "must be of one problem, for one recommendation"
        )
    if max_error is not None and any(row["sample_rms_error"] is None for row in table if _fits(row)):
        raise ConfigError("max_error", max_error, "needs a sweep with errors")
    limits = {"max_ub_bytes": max_ub_bytes, "max_error": max_error}
    allowed = [row for row in table if _objection(row, limits) is None]
    if not allowed:
        reasons = {_objection(row, limits) for row in table}
        needs = [row["ub_used_bytes"] for row in table if row["ub_used_bytes"] is not None]
        least = f"the smallest needs {format_bytes(min(needs))} of UB; " if needs else ""
        raise ConfigError(
            "limits", limits, f"leave no configuration: {least}{'; '.join(sorted(map(str, reasons)))[:300]}"
        )
    front = pareto_front(allowed)
    best = front[0]
    return Advice(best=best, front=front, neighbours=tuple(_neighbours(table, best, limits)))


def _fits(row: Row) -> bool:
    return bool(row["status"] == "fits")


def _objection(row: Row, limits: Mapping[str, Any]) -> str | None:
    if not _fits(row):
        return f"{row['status']}: {row['reason']}"
    ub, error = limits["max_ub_bytes"], limits["max_error"]
    if ub is not None and row["ub_used_bytes"] > ub:
        return f"uses {format_bytes(row['ub_used_bytes'])} of UB, more than the limit {format_bytes(ub)}"
    if error is not None and not row["sample_rms_error"] <= error:
        return f"rms error {row['sample_rms_error']:.3e}, above the limit {error:.3e}"
    return None


def _neighbours(table: list[dict[str, Any]], best: Row, limits: Mapping[str, Any]) -> Iterable[Neighbour]:
    for axis in TILE_AXES:
        others = [
            row
            for row in table
            if row[axis] != best[axis] and all(row[name] == best[name] for name in TILE_AXES if name != axis)
        ]
        if axis == "precision":
            chosen = others
        else:
            below = [row for row in others if row[axis] < best[axis]]
            above = [row for row in others if row[axis] > best[axis]]
            chosen = [max(below, key=lambda row: row[axis])] if below else []
            chosen += [min(above, key=lambda row: row[axis])] if above else []
        for row in chosen:
            yield Neighbour(axis=axis, value=row[axis], reason=_objection(row, limits) or _loses(row, best))


def _loses(row: Row, best: Row) -> str:
    slower = row["time_us"] / best["time_us"] - 1
    if slower > 1e-12:
        waits = f", bound by {row['bound']}" if row["bound"] != best["bound"] else ""
        return f"{100 * slower:.1f}% slower: {row['time_us']:.1f} us{waits}"
    if row["ub_used_bytes"] > best["ub_used_bytes"]:
        more = row["ub_used_bytes"] - best["ub_used_bytes"]
        return f"as fast, but takes {format_bytes(more)} more of UB"
    if (row["sample_rms_error"] or 0.0) > (best["sample_rms_error"] or 0.0):
        return f"as fast and as small, but with rms error {row['sample_rms_error']:.3e}"
    return "equal in every respect; the first one is kept"
