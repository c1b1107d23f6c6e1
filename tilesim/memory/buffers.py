"""Which named buffers the kernel holds in each memory, how large they are and when they are in use.

The kernel is the fused attention kernel of the 910B family: a cube core computes QK and PV tile by tile, the
vector cores beside it do the softmax and keep the running state. All sizes are Python ints, so they never
wrap. What is modelled:

* UB of one vector core: every queue, state tensor and scratch, statically allocated as in the reference
  kernel. Queues are sized by the tile, not by what a short sequence fills of it.
* L1, L0A, L0B and L0C of one cube core. The kernel leaves the cube's tiling to a library, so this part is an
  assumption: operands stream in base blocks of 128 rows, 128 columns and 256 bytes of depth (with two
  buffers such blocks fill L0A and L0B exactly), padded to fractals of 16 x 16 elements; QK and PV have blocks
  of their own in L1 and take turns in the L0 memories; L0C holds float.
* GM of the launch: tensors, exchange slots between cube and vector cores, and the matmul workspace. Unpadded,
  as the kernel's own formulas have it. Zero padding of the sequence by the caller is not modelled.
* Softcap, ALiBi, sinks, mask tensors and splits of the keys: the reference kernel has none of them, so their
  buffers are assumptions, one function each below.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

from tilesim.dtypes import BLOCK_BYTES, FLOAT, DType
from tilesim.kernel_inputs import split_keys
from tilesim.memory.layout import FRACTAL, Layout
from tilesim.precision import Precision
from tilesim.softmax.tiling import is_basic_block, softmax_flash_v2_tmp_bytes
from tilesim.tile import Tile
from tilesim.units import align_up, ceil_div
from tilesim.workload import Workload

UB_STAGES = ("copy_in", "scale", "mask", "softmax", "copy_out", "accumulate", "normalise", "store")
"""Stages of a vector core: copy_in to copy_out once per group of softmax_rows, accumulate once per KV tile,
normalise and store once per task. What one turn of the loop leaves to the next lives from copy_in on."""

CUBE_STAGES = ("qk", "pv")
GM_STAGES = ("launch",)

STAGES: Mapping[str, tuple[str, ...]] = {
    "UB": UB_STAGES,
    "L1": CUBE_STAGES,
    "L0A": CUBE_STAGES,
    "L0B": CUBE_STAGES,
    "L0C": CUBE_STAGES,
    "GM": GM_STAGES,
}
"""Memory name -> its stages in order."""

ALIGNMENT_BYTES: Mapping[str, int] = {"UB": 32, "L1": 32, "L0A": 512, "L0B": 512, "L0C": 64, "GM": 32}
"""Memory name -> unit to which offsets and sizes are rounded up. UB, L1, L0A, L0B and L0C: the vendor's
operator-development documents for this generation; GM: one UB block, the unit of its transfers."""

MESSAGE_SLOT_BYTES = 64
"""Top of UB that the framework keeps when it allocates the softmax temporary (vendor's basic API source)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buffer:
    """One named buffer of one memory.

    Attributes
    ----------
    name : str
        What it holds.
    position : str
        Logical position: VECIN, VECOUT or VECCALC in UB, A1 or B1 in L1, A2, B2 and CO1 in L0, GM.
    count : int
        How many there are: 1, or 2 when double buffered.
    bytes_each : int
        Bytes of one, padding included, a multiple of the memory's alignment.
    dtype : str
        Element type; ``"byte"`` for storage that serves several types.
    logical_shape, shape : tuple of int
        Elements that count, and elements stored once rows are padded.
    first_stage, last_stage : str
        First and last stage that needs it, see `STAGES`.
    offset_bytes : int
        Where a planner that reuses dead buffers puts it; its `count` copies follow each other.
    """

    name: str
    position: str
    count: int
    bytes_each: int
    dtype: str
    logical_shape: tuple[int, ...]
    shape: tuple[int, ...]
    first_stage: str
    last_stage: str
    offset_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of all `count` of them."""
        return self.count * self.bytes_each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """One configuration with nothing left open: what the buffer tables are computed from.

    Attributes
    ----------
    workload, tile, precision, layout
        The configuration; `tile.query_rows` holds a number.
    cube_cores, vector_cores_per_cube : int
        Cores of the chip.
    """

    workload: Workload
    tile: Tile
    precision: Precision
    layout: Layout
    cube_cores: int
    vector_cores_per_cube: int

    @property
    def query_rows(self) -> int:
        """Query rows of one task."""
        assert self.tile.query_rows is not None
        return self.tile.query_rows

    @property
    def vector_rows(self) -> int:
        """Query rows that one vector core takes of a task, at most."""
        return ceil_div(self.query_rows, self.vector_cores_per_cube)

    @functools.cached_property
    def split_bounds(self) -> list[int]:
        """First key of each part that is a task of its own, whole tiles each, and the number of keys."""
        bounds: list[int] = split_keys(self.workload.seq_kv, self.tile.kv_tile, self.tile.kv_splits).tolist()
        return bounds

    @property
    def splits(self) -> int:
        """Parts of the keys: at most those of the tile, as each has a tile at least."""
        return len(self.split_bounds) - 1

    @property
    def split_row_bytes(self) -> int:
        """Bytes that a split leaves in GM of a row: float accumulator, and a block each for max and sum."""
        return FLOAT.itemsize * self.workload.head_dim_v + 2 * BLOCK_BYTES

    @property
    def tasks(self) -> int:
        """Tasks of the launch: one per batch entry, head, block of query rows and split of the keys."""
        blocks = ceil_div(self.workload.seq_q, self.query_rows)
        return self.workload.batch * self.workload.heads * blocks * self.splits

    @property
    def cores_used(self) -> int:
        """Cube cores that get a task."""
        return min(self.cube_cores, self.tasks)

    def dtype(self, tensor: str) -> DType:
        """Return the type of a tensor that `Layout` can override: ``"score"``, ``"partial"`` and so on."""
        chosen: DType | None = getattr(self.layout, f"{tensor}_dtype")
        if chosen is None and tensor == "mask":
            return self.dtype("score")
        return self.precision.data if chosen is None else chosen

    def softmax_tmp_bytes(self) -> tuple[int, int]:
        """Return the operator's minimum and maximum temporary for one tile; the maximum may be smaller."""
        data = self.dtype("score")
        rows, columns = self.tile.softmax_rows, self.tile.kv_tile
        padded = align_up(columns, data.lanes)
        # Padded columns would enter a basic block's maximum and sum, so a padded tile is never one.
        basic = self.layout.basic_block and padded == columns and is_basic_block(rows, padded, data.itemsize)
        return softmax_flash_v2_tmp_bytes(
            (rows, padded), data.itemsize, self.precision.state.itemsize, is_basic_block=basic
        )


def memory_buffers(launch: Launch) -> dict[str, tuple[Buffer, ...]]:
    """Return the buffers of every memory, in the order in which the kernel allocates them."""
    return {"UB": ub_buffers(launch), **cube_buffers(launch), "GM": gm_buffers(launch)}


def ub_buffers(launch: Launch) -> tuple[Buffer, ...]:
    """Return what one vector core holds in UB, in order of allocation.

    With every key in one tile ("short") no accumulator is kept, and it is the sum, not exp_max, that is
    needed once per slot: tasks overlap instead of tiles.
    """
    tile, layout = launch.tile, launch.layout
    short = tile.is_short(launch.workload)
    rows, head_dim = launch.vector_rows, launch.workload.head_dim_v
    score_tile = (tile.softmax_rows, tile.kv_tile)
    sum_slots, exp_max_slots = (tile.slots, 1) if short else (1, tile.slots)
    data, state = launch.precision.data, launch.precision.state
    loop_end = "store" if short else "accumulate"
    partial_stages = ("normalise", "store") if short else ("accumulate", "accumulate")
    # With a single tile nothing reads max or exp_max after the call that wrote them.
    tile_state_stages = ("softmax", "softmax") if short else ("copy_in", "accumulate")

    def queue(name: str, position: str, shape: tuple[int, int], unit: int, first: str, last: str) -> Buffer:
        count = getattr(layout, f"{name}_buffers")
        # One of several buffers is being filled or drained at any time of the loop.
        stages = (first, last) if count <= 1 else (UB_STAGES[0], loop_end)
        return _padded(name, position, launch.dtype(name), shape, unit, stages, count)

    buffers = [queue("score", "VECIN", score_tile, launch.dtype("score").lanes, "copy_in", "softmax")]
    if layout.mask_buffers:
        buffers.append(queue("mask", "VECIN", score_tile, launch.dtype("mask").lanes, "mask", "mask"))
    buffers += [
        queue("partial", "VECIN", (rows, head_dim), FRACTAL, *partial_stages),
        queue("probability", "VECOUT", score_tile, launch.dtype("probability").lanes, "softmax", "copy_out"),
        _state(launch, "sum", state, sum_slots, ("copy_in", "normalise")),
        _state(launch, "max", state, 1, tile_state_stages),
        _state(launch, "exp_max", data, exp_max_slots, tile_state_stages),
    ]
    if not short:
        accumulator = launch.dtype("accumulator")
        buffers.append(
            _padded("accumulator", "VECCALC", accumulator, (rows, head_dim), FRACTAL, ("copy_in", "store"))
        )
    buffers.append(_normalisation(launch, short))
    buffers += _temporary(launch)
    return (*buffers, *_softcap(launch), *_alibi(launch, loop_end), *_sinks(launch), *_splits(launch))


def _buffer(
    name: str,
    position: str,
    dtype: str,
    shape: tuple[int, ...],
    size_bytes: int,
    stages: tuple[str, str],
    *,
    logical_shape: tuple[int, ...] | None = None,
    count: int = 1,
    memory: str = "UB",
) -> Buffer:
    return Buffer(
        name=name,
        position=position,
        count=count,
        bytes_each=align_up(size_bytes, ALIGNMENT_BYTES[memory]),
        dtype=dtype,
        logical_shape=shape if logical_shape is None else logical_shape,
        shape=shape,
        first_stage=stages[0],
        last_stage=stages[1],
    )


def _padded(
    name: str,
    position: str,
    dtype: DType,
    logical_shape: tuple[int, int],
    unit: int,
    stages: tuple[str, str],
    count: int = 1,
) -> Buffer:
    rows, columns = logical_shape
    shape = (rows, align_up(columns, unit))
    size_bytes = shape[0] * shape[1] * dtype.itemsize
    return _buffer(
        name, position, dtype.name, shape, size_bytes, stages, logical_shape=logical_shape, count=count
    )


def _state(launch: Launch, name: str, dtype: DType, slots: int, stages: tuple[str, str]) -> Buffer:
    rows = launch.vector_rows
    normal = launch.layout.state_mode == "NORMAL"
    shape = (slots, rows, dtype.lanes) if normal else (slots, align_up(rows, dtype.lanes))
    size_bytes = math.prod(shape) * dtype.itemsize
    return _buffer(name, "VECCALC", dtype.name, shape, size_bytes, stages, logical_shape=(slots, rows))


def _normalisation(launch: Launch, short: bool) -> Buffer:
    # Per row two blocks of float lanes, and one in the type of the output when that is not float.
    output = launch.dtype("partial" if short else "accumulator")
    blocks = 2 if output.itemsize == FLOAT.itemsize else 3
    shape = (launch.vector_rows, blocks * BLOCK_BYTES)
    return _buffer(
        "normalisation scratch", "VECCALC", "byte", shape, math.prod(shape), ("normalise", "normalise")
    )


def _temporary(launch: Launch) -> list[Buffer]:
    least, most = launch.softmax_tmp_bytes()
    size_bytes = max(least, most) if launch.layout.temporary == "maximum" else least
    shape = (ceil_div(size_bytes, FLOAT.itemsize),)
    stages = ("softmax", "softmax")
    buffers = [_buffer("softmax temporary", "VECCALC", FLOAT.name, shape, size_bytes, stages)]
    if not launch.layout.shared_temporary:
        slot = (MESSAGE_SLOT_BYTES,)
        buffers.append(
            _buffer("message slot", "VECCALC", "byte", slot, slot[0], (UB_STAGES[0], UB_STAGES[-1]))
        )
    return buffers


def _softcap(launch: Launch) -> list[Buffer]:
    """Return what ``c * tanh(s / c)`` takes: the numerator of its division, and 2-byte scores in float."""
    if not launch.workload.softcap:
        return []
    rows, columns = launch.tile.softmax_rows, align_up(launch.tile.kv_tile, launch.dtype("score").lanes)
    shape = (1 if launch.dtype("score").itemsize == FLOAT.itemsize else 2, rows, columns)
    size_bytes = math.prod(shape) * FLOAT.itemsize
    return [_buffer("softcap temporary", "VECCALC", FLOAT.name, shape, size_bytes, ("scale", "scale"))]


def _alibi(launch: Launch, loop_end: str) -> list[Buffer]:
    """Return the distances of one tile, moved from tile to tile, and their product with the slope."""
    if not launch.workload.alibi:
        return []
    score_tile = (launch.tile.softmax_rows, launch.tile.kv_tile)
    unit = launch.dtype("score").lanes
    return [
        _padded("distance", "VECCALC", FLOAT, score_tile, unit, (UB_STAGES[0], loop_end)),
        _padded("bias", "VECCALC", FLOAT, score_tile, unit, ("mask", "mask")),
    ]


def _sinks(launch: Launch) -> list[Buffer]:
    """Return one float for each head, read once."""
    if not launch.workload.sinks:
        return []
    heads = (1, launch.workload.heads)
    return [_padded("sinks", "VECIN", FLOAT, heads, FLOAT.lanes, (UB_STAGES[0], UB_STAGES[-1]))]


def _splits(launch: Launch) -> list[Buffer]:
    """Return what storing and combining splits takes, for `softmax_rows` rows at a time.

    One split's accumulator in float, their sum, and maximum and sum of both. All are used after the loop.
    """
    if launch.splits == 1:
        return []
    rows, stages = launch.tile.softmax_rows, ("store", "store")
    part = (rows, launch.workload.head_dim_v)
    state = (4, rows, FLOAT.lanes)
    return [
        _padded("split", "VECIN", FLOAT, part, FLOAT.lanes, stages),
        _padded("split sum", "VECCALC", FLOAT, part, FLOAT.lanes, stages),
        _buffer("split state", "VECCALC", FLOAT.name, state, math.prod(state) * FLOAT.itemsize, stages),
    ]


def cube_buffers(launch: Launch) -> dict[str, tuple[Buffer, ...]]:
    """Return what one cube core holds in L1, L0A, L0B and L0C for the QK and PV products."""
    layout, tile, workload = launch.layout, launch.tile, launch.workload
    data, probability = launch.precision.data, launch.dtype("probability")

    def block(
        memory: str, name: str, position: str, dtype: DType, shape: tuple[int, int], stages: tuple[str, str]
    ) -> Buffer:
        counts = {"L1": layout.l1_buffers, "L0C": layout.l0c_buffers}
        padded = (align_up(shape[0], FRACTAL), align_up(shape[1], FRACTAL))
        return _buffer(
            name,
            position,
            dtype.name,
            padded,
            padded[0] * padded[1] * dtype.itemsize,
            stages,
            logical_shape=shape,
            count=counts.get(memory, layout.l0_buffers),
            memory=memory,
        )

    rows = min(layout.base_rows, launch.query_rows)
    keys = min(layout.base_columns, tile.kv_tile)
    values = min(layout.base_columns, workload.head_dim_v)
    qk_depth = min(layout.base_depth_bytes // data.itemsize, workload.head_dim)
    pv_depth = min(layout.base_depth_bytes // probability.itemsize, tile.kv_tile)
    qk, pv = ("qk", "qk"), ("pv", "pv")
    l1 = (
        block("L1", "query", "A1", data, (rows, qk_depth), qk),
        block("L1", "key", "B1", data, (qk_depth, keys), qk),
        block("L1", "probability", "A1", probability, (rows, pv_depth), pv),
        block("L1", "value", "B1", probability, (pv_depth, values), pv),
    )

    def larger(
        memory: str, name: str, position: str, blocks: tuple[tuple[DType, tuple[int, int]], ...]
    ) -> Buffer:
        candidates = [block(memory, name, position, dtype, shape, ("qk", "pv")) for dtype, shape in blocks]
        return max(candidates, key=lambda buffer: buffer.bytes_each)

    left = ((data, (rows, qk_depth)), (probability, (rows, pv_depth)))
    right = ((data, (qk_depth, keys)), (probability, (pv_depth, values)))
    product = ((FLOAT, (rows, keys)), (FLOAT, (rows, values)))
    return {
        "L1": l1,
        "L0A": (larger("L0A", "left operand", "A2", left),),
        "L0B": (larger("L0B", "right operand", "B2", right),),
        "L0C": (larger("L0C", "product", "CO1", product),),
    }


def gm_buffers(launch: Launch) -> tuple[Buffer, ...]:
    """Return what the launch holds in GM: tensors, exchange slots of all cores used, matmul workspace."""
    workload, tile = launch.workload, launch.tile
    data = launch.precision.data

    def tensor(name: str, dtype: DType, shape: tuple[int, ...]) -> Buffer:
        size_bytes = math.prod(shape) * dtype.itemsize
        return _buffer(name, "GM", dtype.name, shape, size_bytes, ("launch", "launch"), memory="GM")

    queries = (workload.batch, workload.heads, workload.seq_q)
    keys = (workload.batch, workload.kv_heads, workload.seq_kv)
    slots = (launch.cores_used, tile.slots, launch.query_rows)
    workspace_bytes = launch.layout.matmul_workspace_bytes
    return (
        tensor("q", data, (*queries, workload.head_dim)),
        tensor("k", data, (*keys, workload.head_dim)),
        tensor("v", data, (*keys, workload.head_dim_v)),
        tensor("output", data, (*queries, workload.head_dim_v)),
        tensor("score", launch.dtype("score"), (*slots, tile.kv_tile)),
        tensor("probability", launch.dtype("probability"), (*slots, tile.kv_tile)),
        tensor("partial", launch.dtype("partial"), (*slots, workload.head_dim_v)),
        _buffer(
            "matmul workspace",
            "GM",
            "byte",
            (workspace_bytes,),
            workspace_bytes,
            ("launch", "launch"),
            memory="GM",
        ),
        *(tensor(name, dtype, shape) for name, dtype, shape in _variant_tensors(launch)),
    )


def _variant_tensors(launch: Launch) -> list[tuple[str, DType, tuple[int, ...]]]:
    """Return name, type and shape of what variants have in GM.

    A mask tensor counts as one plane that all heads and batch elements share, in the type of the mask queue.
    Each split leaves its accumulator in float, and a block each for maximum and sum of a row.
    """
    workload = launch.workload
    heads, rows = (workload.batch, workload.heads), (workload.batch, workload.heads, workload.seq_q)
    tensors: list[tuple[str, DType, tuple[int, ...]]] = []
    if workload.attn_mask is not None:
        tensors.append(("attn_mask", launch.dtype("mask"), (workload.seq_q, workload.seq_kv)))
    if workload.alibi:
        tensors.append(("alibi_slopes", FLOAT, heads))
    if workload.sinks:
        tensors.append(("sinks", FLOAT, heads[1:]))
    if launch.splits > 1:
        tensors.append(("split accumulator", FLOAT, (launch.splits, *rows, workload.head_dim_v)))
        tensors.append(("split state", FLOAT, (launch.splits, 2, *rows, FLOAT.lanes)))
    return tensors
