"""How a launch is cut into tasks and tiles, what each tile holds, and which core runs which tasks.

A score tile is `softmax_rows` rows of one vector core by `kv_tile` keys. Skipped ones cost nothing, and the
mask is charged to partial ones only; keys that pad a sequence are masked like hidden ones. The reference
kernel masks all rows of a task in a tile that some row does not see whole: the same where `query_rows`
divides `kv_tile`, as in its published rows.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from tilesim.mask_tiles import MaskTiles
from tilesim.memory.buffers import Launch
from tilesim.timing.costs import VectorCosts
from tilesim.units import align_up, ceil_div

PADDED_KEYS = 64
"""Keys to which the kernel pads a sequence."""
VECTOR_CORES = 2
"""Vector cores that share a task."""
SKIPPED, PARTIAL, FULL = range(3)
"""As in `kernels.mask_tiles`."""

Rows = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """One block of query rows of a head and a part of its keys: what every task that runs it does.

    Attributes
    ----------
    top, rows : int
        First query row and number of rows.
    columns : tuple of int
        Keys of each of its tiles that is not skipped, the last one clipped to what its rows see.
    kinds : uint8 array (tiles, vector cores, groups)
        What each group of rows has in each tile; groups that a vector core does not have are skipped.
    """

    top: int
    rows: int
    columns: tuple[int, ...]
    kinds: Kinds

    def holds(self, kind: int) -> list[bool]:
        """Return for each tile whether some group has this kind."""
        found: list[bool] = (self.kinds == kind).any(axis=(1, 2)).tolist()
        return found

    @property
    def masked(self) -> tuple[bool, ...]:
        """Whether some group of a tile needs the mask."""
        return tuple(self.holds(PARTIAL))

    @property
    def weight(self) -> int:
        """Rows times tiles: what the partition balances."""
        return self.rows * len(self.columns)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """All tasks of a launch in the order in which cores take them: by batch element, head, rows and split.

    Attributes
    ----------
    chunks : list of Chunk
        The distinct ones.
    order : int64 array (tasks)
        Chunk of each task.
    period : int
        Tasks of one head.
    """

    chunks: list[Chunk]
    order: npt.NDArray[np.int64]
    period: int


def schedule(launch: Launch, shown: MaskTiles | None = None) -> Schedule:
    """Return the tasks of a launch.

    Parameters
    ----------
    launch : Launch
    shown : MaskTiles, optional
        What the mask tensor holds; without it, tiles of a workload with a mask tensor that would be full are
        partial.
    """
    workload = launch.workload
    first, last = _group_rows(launch)
    planes = np.zeros((1, 1, 0, 0), np.uint8)
    if shown is not None:
        planes = shown.kinds(first.reshape(-1), last.reshape(-1), launch.tile.kv_tile)
    lengths = workload.lengths or (workload.seq_kv,)
    elements = len(lengths) if len(set(lengths)) > 1 else len(planes)
    chunks: list[Chunk] = []
    starts: dict[tuple[int, int, int], int] = {}
    places = np.zeros((elements, planes.shape[1]), np.int64)
    for element, head in np.ndindex(*places.shape):
        plane = min(element, len(planes) - 1)
        key = (lengths[element], plane, head)
        if key not in starts:
            starts[key] = len(chunks)
            kinds = None if shown is None else planes[plane, head].reshape(*first.shape, planes.shape[3])
            chunks += _head_chunks(launch, lengths[element], first, last, kinds)
        places[element, head] = starts[key]
    period = len(first) * launch.splits
    order = np.broadcast_to(
        places[:, :, None] + np.arange(period), (workload.batch, workload.heads, period)
    ).reshape(-1)
    return Schedule(chunks=chunks, order=order, period=period)


def _group_rows(launch: Launch) -> tuple[Rows, Rows]:
    """Return first and last row of each row group: (blocks, vector cores, groups); some may be empty."""
    rows = launch.tile.softmax_rows
    tops = np.arange(0, launch.workload.seq_q, launch.query_rows, dtype=np.int64)
    ends = np.minimum(tops + launch.query_rows, launch.workload.seq_q)
    halves = tops + (ends - tops + 1) // VECTOR_CORES
    groups = ceil_div(ceil_div(launch.query_rows, VECTOR_CORES), rows)
    first = np.stack([tops, halves], axis=1)[:, :, None] + np.arange(groups) * rows
    last = np.minimum(first + rows, np.stack([halves, ends], axis=1)[:, :, None]) - 1
    return first, last


def _head_chunks(launch: Launch, length: int, first: Rows, last: Rows, shown: Kinds | None) -> list[Chunk]:
    """Return the chunks of one head with `length` keys; `shown` is what a mask tensor leaves of each tile."""
    workload, kv_tile = launch.workload, launch.tile.kv_tile
    seen = workload.seen_by_groups(first, last, length)
    last_row = last.max(axis=(1, 2))
    starts, _, _, stops = workload.seen_by_groups(first[:, 0, 0], last_row, length)
    chunks = []
    for block, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        end = align_up(stop, PADDED_KEYS)
        for low, high in itertools.pairwise(launch.split_bounds):
            begin = max(start // kv_tile * kv_tile, low)
            lows = np.arange(begin, min(stop, high) if stop > start else begin, kv_tile)
            kinds = _kinds([bound[block] for bound in seen], last[block] < first[block], lows, kv_tile, end)
            if shown is not None:
                tensor = np.moveaxis(shown[block][:, :, lows // kv_tile], 2, 0)
                kinds = np.where(tensor == FULL, kinds, tensor)
            elif workload.attn_mask is not None:
                kinds = np.minimum(kinds, PARTIAL)
            kept = (kinds != SKIPPED).any(axis=(1, 2))
            chunks.append(
                Chunk(
                    top=int(first[block, 0, 0]),
                    rows=int(last_row[block] - first[block, 0, 0]) + 1,
                    columns=tuple(np.minimum(kv_tile, end - lows[kept]).tolist()),
                    kinds=kinds[kept],
                )
            )
    return chunks


def _kinds(seen: list[Rows], empty: npt.NDArray[np.bool_], lows: Rows, kv_tile: int, end: int) -> Kinds:
    """Return what groups have in tiles by the named mask, where keys up to `end` are computed."""
    start, start_of_all, stop_of_all, stop = seen
    low = lows[:, None, None]
    high = np.minimum(low + kv_tile, end)
    hidden = (stop <= low) | (start >= high) | (stop <= start) | empty
    whole = (start_of_all <= low) & (stop_of_all >= high)
    return np.where(hidden, SKIPPED, np.where(whole, FULL, PARTIAL)).astype(np.uint8)


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
    first, tasks : int
        First task and number of tasks, of the first of these cores.
    cores : tuple of int
        Cores with this load.
    """

    first: int
    tasks: int
    cores: tuple[int, ...]


def core_loads(launch: Launch, plan: Schedule) -> list[CoreLoad]:
    """Return the distinct loads of the cores, in the order of their first core; one idle core if no tasks."""
    if not len(plan.order):
        return [CoreLoad(first=0, tasks=0, cores=(0,))]
    weights = np.array([chunk.weight for chunk in plan.chunks], np.int64)[plan.order]
    bounds = partition(weights, launch.cores_used)
    loads: dict[bytes, tuple[int, int, list[int]]] = {}
    for core, (begin, end) in enumerate(itertools.pairwise(bounds.tolist())):
        if end > begin:
            _, _, cores = loads.setdefault(plan.order[begin:end].tobytes(), (begin, end - begin, []))
            cores.append(core)
    return [CoreLoad(first=first, tasks=tasks, cores=tuple(cores)) for first, tasks, cores in loads.values()]


def tile_table(
    launch: Launch, chunks: list[Chunk], costs: VectorCosts
) -> tuple[npt.NDArray[np.float64], Kinds, npt.NDArray[np.int64]]:
    """Return the tiles of all chunks, their kinds, and per chunk its first tile, number of tiles and rows."""
    from tilesim.kernels.pipeline import TILE_FIELDS

    rows = launch.tile.softmax_rows
    short = launch.tile.is_short(launch.workload)
    tiles: list[tuple[float, ...]] = []
    table = []
    for chunk in chunks:
        own = ceil_div(chunk.rows, VECTOR_CORES)
        whole, tail = min(rows, own), own % rows or rows
        table.append((len(tiles), len(chunk.columns), chunk.rows))
        needs = zip(chunk.columns, chunk.holds(FULL), chunk.holds(PARTIAL), strict=True)
        for index, (columns, full, partial) in enumerate(needs):
            update = launch.workload.sinks or (index > 0 and not short)
            cycles = [0.0] * 4
            if full:
                cycles[:2] = (costs.group(size, columns, update, False) for size in (whole, tail))
            if partial:
                cycles[2:] = (costs.group(size, columns, update, True) for size in (whole, tail))
            tiles.append((columns, *cycles))
    kinds = np.concatenate([chunk.kinds for chunk in chunks]) if chunks else np.zeros((0, VECTOR_CORES, 1))
    tile_array = np.array(tiles, np.float64).reshape(-1, TILE_FIELDS)
    return tile_array, kinds.astype(np.uint8), np.array(table, np.int64).reshape(-1, 3)
