"""How a launch is cut into tasks and tiles, and which core runs which tasks."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tilesim.memory.buffers import Launch
from tilesim.timing.costs import VectorCosts
from tilesim.units import align_up, ceil_div

PADDED_KEYS = 64
"""Keys to which the kernel pads a sequence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """One block of query rows of a head: what every task that runs it does.

    Attributes
    ----------
    top, rows : int
        First query row and number of rows.
    columns : tuple of int
        Keys of each of its tiles, the last one clipped to what its rows see.
    masked : tuple of bool
        Whether some row of the block does not see all of a tile.
    """

    top: int
    rows: int
    columns: tuple[int, ...]
    masked: tuple[bool, ...]

    @property
    def weight(self) -> int:
        """Rows times tiles: what the partition balances."""
        return self.rows * max(1, len(self.columns))


def chunks(launch: Launch) -> list[Chunk]:
    """Return the blocks of query rows of one head; all heads have the same."""
    workload, kv_tile = launch.workload, launch.tile.kv_tile
    padded = align_up(workload.seq_kv, PADDED_KEYS)
    result = []
    for top in range(0, workload.seq_q, launch.query_rows):
        rows = min(launch.query_rows, workload.seq_q - top)
        starts, stops = workload.band.key_range(
            np.arange(top, top + rows, dtype=np.int64), workload.seq_q, workload.seq_kv
        )
        first, last = int(starts.min()), int(stops.max())
        lows = range(first // kv_tile * kv_tile, last, kv_tile) if last > first else range(0)
        end = min(padded, align_up(last, PADDED_KEYS))
        sees_from, sees_to = int(starts.max()), int(stops.min())
        result.append(
            Chunk(
                top=top,
                rows=rows,
                columns=tuple(min(kv_tile, end - low) for low in lows),
                masked=tuple(low < sees_from or min(low + kv_tile, end) > sees_to for low in lows),
            )
        )
    return result


def partition(weights: npt.NDArray[np.int64], cores: int) -> npt.NDArray[np.int64]:
    """Return the first task of each core, and the number of tasks at the end.

    Contiguous ranges: core c takes tasks while the running weight does not exceed ``total * c // cores``.
    """
    running = np.cumsum(weights)
    limits = int(running[-1]) * np.arange(1, cores) // cores
    inner = np.searchsorted(running, limits, side="right")
    return np.concatenate([[0], inner, [len(weights)]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoreLoad:
    """A run of tasks that one or more cores execute alike.

    Attributes
    ----------
    first : int
        Chunk of the first task.
    tasks : int
        Number of tasks; chunks follow each other and begin again with every head.
    cores : tuple of int
        Cores with this load.
    """

    first: int
    tasks: int
    cores: tuple[int, ...]


def core_loads(launch: Launch, blocks: list[Chunk]) -> list[CoreLoad]:
    """Return the distinct loads of the cores, in the order of their first core."""
    heads = launch.workload.batch * launch.workload.heads
    weights = np.tile([block.weight for block in blocks], heads)
    bounds = partition(weights.astype(np.int64), launch.cores_used)
    loads: dict[tuple[int, int], list[int]] = {}
    for core, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if end > begin:
            loads.setdefault((begin % len(blocks), end - begin), []).append(core)
    return [CoreLoad(first=first, tasks=tasks, cores=tuple(cores)) for (first, tasks), cores in loads.items()]


def tile_table(
    launch: Launch, blocks: list[Chunk], costs: VectorCosts
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the tiles of all blocks and, per block, its first tile, number of tiles and rows."""
    from tilesim.kernels.pipeline import TILE_FIELDS

    rows = launch.tile.softmax_rows
    short = launch.tile.is_short(launch.workload)
    tiles: list[tuple[float, ...]] = []
    table = []
    for block in blocks:
        own = ceil_div(block.rows, launch.vector_cores_per_cube)
        tail = own % rows or rows
        table.append((len(tiles), len(block.columns), block.rows))
        for index, (columns, masked) in enumerate(zip(block.columns, block.masked, strict=True)):
            update = index > 0 and not short
            tiles.append(
                (
                    columns,
                    masked,
                    costs.group(min(rows, own), columns, update, masked),
                    costs.group(tail, columns, update, masked),
                )
            )
    tile_array = np.array(tiles, np.float64).reshape(-1, TILE_FIELDS)
    return tile_array, np.array(table, np.int64).reshape(-1, 3)
