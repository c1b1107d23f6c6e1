"""The kernel that keeps whole score rows: what tiling saves, and from which length on it is needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tilesim.memory.budget import Budget, budget, expect, last_true, launch_fits, make_launch
from tilesim.memory.layout import REFERENCE_LAYOUT, Layout
from tilesim.platform import Platform
from tilesim.platform import platform as find_platform
from tilesim.precision import Precision
from tilesim.precision import precision as find_precision
from tilesim.tile import Tile
from tilesim.workload import Workload

_LONGEST = 2**24  # the largest kv_tile a Tile takes, hence the longest row a full-row kernel can have
_BASIC_BLOCK_COLUMNS = 2048  # the operator takes basic blocks only below it


def full_row_budget(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> Budget:
    """Return the budget of a kernel that keeps whole score rows instead of tiles.

    It is the same kernel with a tile as long as the row, so each task has a single tile and no accumulator.
    Its UB grows linearly with the number of keys, where that of the tiled kernel is flat.

    Raises
    ------
    ConfigError
        As `budget`, and if there are more than 2**24 keys.
    """
    expect("workload", workload, Workload)
    expect("tile", tile, Tile)
    whole = dataclasses.replace(tile, kv_tile=max(1, workload.seq_kv))
    return budget(workload, whole, precision, platform, layout=layout)


def first_unfit_length(
    workload: Workload,
    tile: Tile,
    precision: str | Precision,
    platform: str | Path | Platform,
    *,
    layout: Layout = REFERENCE_LAYOUT,
) -> int | None:
    """Return the smallest sequence length at which the full-row kernel does not fit.

    Query and key length of `workload` are both replaced. None if it fits up to 2**24 keys.

    Raises
    ------
    ConfigError, UnknownNameError
        As `budget`.
    """
    expect("workload", workload, Workload)
    expect("tile", tile, Tile)
    expect("layout", layout, Layout)
    policy, chip = find_precision(precision), find_platform(platform)

    def fits(length: int) -> bool:
        longer = dataclasses.replace(workload, seq_q=length, seq_kv=length, key_lengths=None)
        whole = dataclasses.replace(tile, kv_tile=length)
        return launch_fits(make_launch(longer, whole, policy, chip, layout), chip)

    # Basic blocks take more room than their neighbours, so short rows are tried one by one; from there on the
    # footprint only grows.
    for length in range(1, _BASIC_BLOCK_COLUMNS):
        if not fits(length):
            return length
    last = last_true(_BASIC_BLOCK_COLUMNS, _LONGEST, fits)
    if last is None:
        return _BASIC_BLOCK_COLUMNS
    return last + 1 if last < _LONGEST else None
