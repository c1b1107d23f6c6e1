"""UB footprint against sequence length: the tiled kernel beside one that keeps whole score rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilesim._checks import whole_number
from tilesim.errors import ConfigError
from tilesim.memory.budget import Budget, budget
from tilesim.memory.full_row import first_unfit_length, full_row_budget
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.platform import Platform
from tilesim.precision import Precision
from tilesim.tile import Tile
from tilesim.workload import Workload

MOST_LENGTHS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """Budgets of one configuration over sequence lengths.

    Attributes
    ----------
    lengths : tuple of int
        Query and key length of each point, ascending.
    tiled, full_row : tuples of Budget
        The configuration as it is, and with a tile as long as the row.
    first_unfit_length : int or None
        Smallest length at which the full-row kernel does not fit; None if it fits up to 2**24 keys.
    """

    lengths: tuple[int, ...]
    tiled: tuple[Budget, ...]
    full_row: tuple[Budget, ...]
    first_unfit_length: int | None

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat record for each length, as for a CSV file."""
        return [
            {
                "seq": length,
                "available_bytes": tiled.available_bytes,
                "tiled_used_bytes": tiled.used_bytes,
                "tiled_peak_bytes": tiled.peak_bytes,
                "tiled_fits": tiled.fits,
                "full_row_used_bytes": whole.used_bytes,
                "full_row_peak_bytes": whole.peak_bytes,
                "full_row_fits": whole.fits,
            }
            for length, tiled, whole in zip(self.lengths, self.tiled, self.full_row, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the footprint as JSON types."""
        return {"schema": 1, "first_unfit_length": self.first_unfit_length, "lengths": self.rows()}


def footprint(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    lengths: Sequence[int],
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> Footprint:
    """Return the budgets of a configuration with query and key length replaced by each of `lengths`.

    Raises
    ------
    ConfigError, UnknownNameError
        As `budget`, and if `lengths` is empty or holds more than 10,000 values.
    """
    if not 0 < len(lengths) <= MOST_LENGTHS:
        raise ConfigError("lengths", len(lengths), f"must be 1 to {MOST_LENGTHS:,} sequence lengths")
    sizes = tuple(sorted({whole_number("lengths", length) for length in lengths}))
    workloads = [dataclasses.replace(workload, seq_q=size, seq_kv=size, key_lengths=None) for size in sizes]
    return Footprint(
        lengths=sizes,
        tiled=tuple(budget(w, tile, precision, platform, layout=layout) for w in workloads),
        full_row=tuple(full_row_budget(w, tile, precision, platform, layout=layout) for w in workloads),
        first_unfit_length=first_unfit_length(workload, tile, precision, platform, layout=layout),
    )


def parse_lengths(text: str) -> tuple[int, ...]:
    """Return the sequence lengths of a range.

    ``A:B`` doubles from A on and ends with B; ``A:B:STEP`` goes up by STEP.

    Raises
    ------
    ConfigError
        If the text is no such range.
    """
    parts = text.split(":")
    rule = "must be FIRST:LAST, which doubles, or FIRST:LAST:STEP, with 1 <= FIRST <= LAST and STEP >= 1"
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError("sequence range", text, rule)
    first, last, *step = (int(part) for part in parts)
    if not 1 <= first <= last or (step and step[0] < 1):
        raise ConfigError("sequence range", text, rule)
    if step:
        if (last - first) // step[0] >= MOST_LENGTHS:
            raise ConfigError("sequence range", text, f"must hold at most {MOST_LENGTHS:,} lengths")
        return tuple(range(first, last + 1, step[0]))
    lengths = []
    while first < last:
        lengths.append(first)
        first *= 2
    return (*lengths, last)
