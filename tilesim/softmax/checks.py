"""What softmax_flash_v2 refuses, and the plan of a call that passes.

Everything that depends on shapes, types and options alone is settled in `plan_call`, whose answers are kept;
only what depends on the memory itself is looked at in every call, by `check_memory`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tilesim.dtypes import BLOCK_BYTES
from tilesim.errors import ConfigError, DTypeError, InputError, TilesimError
from tilesim.softmax.params import SoftmaxConfig, SoftmaxMode, SoftMaxShapeInfo, SoftmaxTiling
from tilesim.softmax.tiling import (
    basic_block_fault,
    collapse_shape,
    filled_tiling,
    recomputed_tiling,
    softmax_flash_v2_tmp_bytes,
)

Array = npt.NDArray[Any]
Layout = tuple[tuple[int, ...], "np.dtype[Any]"]

HALF = np.dtype(np.float16)
FLOAT = np.dtype(np.float32)
DTYPE_PAIRS = {(HALF, HALF), (FLOAT, FLOAT), (HALF, FLOAT)}
PAIRS_TEXT = "(data, state) must be (float16, float16), (float32, float32) or (float16, float32)"


class Operands(NamedTuple):
    """The arrays of one call, or what stands for each of them."""

    dst_tensor: Any
    exp_sum_tensor: Any
    max_tensor: Any
    src_tensor: Any
    exp_max_tensor: Any
    in_exp_sum_tensor: Any
    in_max_tensor: Any
    shared_tmp_buffer: Any
    out_reduce_max: Any


class Options(NamedTuple):
    """The other arguments of one call."""

    tiling: SoftmaxTiling
    softmax_shape_info: SoftMaxShapeInfo | None
    is_update: bool
    is_reuse_source: bool
    is_basic_block: bool
    is_data_format_nz: bool
    config: SoftmaxConfig


WRITTEN = frozenset(
    ("dst_tensor", "exp_sum_tensor", "max_tensor", "exp_max_tensor", "shared_tmp_buffer", "out_reduce_max")
)
CARRIED = ("exp_max_tensor", "in_exp_sum_tensor", "in_max_tensor")
"""Operands that only an update touches; without one they may be None."""
# Bits of numpy.ndarray.flags.num, which is quicker to look at than the flags one by one.
_C_CONTIGUOUS, _OWNS_DATA, _ALIGNED, _WRITEABLE = 0x001, 0x004, 0x100, 0x400
_NEEDED_FLAGS = tuple(
    _C_CONTIGUOUS | _ALIGNED | (_WRITEABLE if name in WRITTEN else 0) for name in Operands._fields
)
STATES = ("exp_sum_tensor", "max_tensor", "in_exp_sum_tensor", "in_max_tensor", "out_reduce_max")
MAY_SHARE = {
    ("dst_tensor", "src_tensor"),
    ("max_tensor", "in_max_tensor"),
    ("exp_sum_tensor", "in_exp_sum_tensor"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What one call does, independent of the memory it works on.

    Attributes
    ----------
    rows, columns : int
        Rows and columns of the source that are processed.
    counted : int
        Columns that enter maximum and sum.
    data, state : numpy dtype
        Type of source, destination and exp_max; type of the other states.
    without_brc : bool
        Whether states hold one element per row instead of a block.
    constant_shape : bool
        Whether the configuration fixes the shape, so that the operator itself decides on basic blocks.
    basic : bool
        Whether the basic-block path runs.
    tiling : SoftmaxTiling
        The tiling in force.
    recomputed : bool
        Whether the tiling passed in was replaced.
    min_tmp_bytes : int
        Smallest temporary buffer.
    """

    rows: int
    columns: int
    counted: int
    data: np.dtype[Any]
    state: np.dtype[Any]
    without_brc: bool
    constant_shape: bool
    basic: bool
    tiling: SoftmaxTiling
    recomputed: bool
    min_tmp_bytes: int

    @property
    def state_lanes(self) -> int:
        """Elements of a row's state."""
        return 1 if self.without_brc else BLOCK_BYTES // self.state.itemsize

    @property
    def exp_max_lanes(self) -> int:
        """Elements of a row's exp_max."""
        return 1 if self.without_brc else BLOCK_BYTES // self.data.itemsize


def check_options(
    tiling: Any,
    shape_info: Any,
    is_update: bool,
    is_reuse_source: bool,
    is_basic_block: bool,
    is_data_format_nz: bool,
    config: Any,
) -> Options:
    """Return the options of a call, defaults filled in.

    Raises
    ------
    ConfigError
        If a record is of another type, or the NZ layout is asked for.
    """
    if not isinstance(tiling, SoftmaxTiling):
        raise ConfigError("tiling", tiling, "must be a SoftmaxTiling", "softmax_flash_v2_tiling makes one")
    if shape_info is not None and not isinstance(shape_info, SoftMaxShapeInfo):
        raise ConfigError("softmax_shape_info", shape_info, "must be a SoftMaxShapeInfo or None")
    if config is None:
        config = DEFAULT_CONFIG
    elif not isinstance(config, SoftmaxConfig):
        raise ConfigError("config", config, "must be a SoftmaxConfig or None")
    if is_data_format_nz:
        rule = "must be False: only the ND layout (rows of adjacent columns) is implemented"
        raise ConfigError("is_data_format_nz", is_data_format_nz, rule)
    flags = (bool(is_update), bool(is_reuse_source), bool(is_basic_block), False)
    return Options(tiling, shape_info, *flags, config)


DEFAULT_CONFIG = SoftmaxConfig()


def layouts_of(operands: Operands) -> tuple[Layout | None, ...]:
    """Return (shape, dtype) of every operand, None for those not given.

    Raises
    ------
    InputError
        If an operand is no plain NumPy array.
    """
    for array in operands:
        if type(array) is not np.ndarray and array is not None:
            _check_array_types(operands)
    return tuple([None if array is None else (array.shape, array.dtype) for array in operands])


def _check_array_types(operands: Operands) -> None:
    for name, array in operands._asdict().items():
        plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
        if array is not None and not plain:
            raise InputError(name, type(array).__name__, "must be a NumPy array without a mask")


def check_memory(operands: Operands) -> None:
    """Refuse operands that cannot be addressed or written, or that share memory in a way that spoils results.

    Raises
    ------
    InputError
        Naming the operands, what was seen and what is allowed.
    """
    owners = set()
    count = 0
    for array, needed in zip(operands, _NEEDED_FLAGS, strict=True):
        if array is None:
            continue
        flags = array.flags.num
        if flags & needed != needed:
            _refuse_memory(operands)
        count += 1
        owner = array.base
        if owner is None:
            if flags & _OWNS_DATA:
                owners.add(id(array))
        elif type(owner) is np.ndarray and owner.flags.num & _OWNS_DATA:
            owners.add(id(owner))
    # Arrays whose memory has as many owners cannot overlap, and one array may be given in two roles.
    shared = (operands[3] is operands[0]) + (operands[6] is operands[2]) + (operands[5] is operands[1])
    if len(owners) != count - shared:
        _check_overlaps(operands)
    if operands.shared_tmp_buffer is not None and not is_aligned(operands.shared_tmp_buffer):
        address = operands.shared_tmp_buffer.ctypes.data
        rule = f"must start at a multiple of {BLOCK_BYTES} bytes, of its allocation or of memory"
        raise InputError("shared_tmp_buffer", f"address {address} ({address % BLOCK_BYTES} too many)", rule)


def _refuse_memory(operands: Operands) -> None:
    for name, array in operands._asdict().items():
        if array is None:
            continue
        if not array.flags.c_contiguous:
            rule = f"must be C-contiguous: {array.itemsize} bytes from one element to the next"
            raise InputError(name, f"strides {array.strides} for shape {array.shape}", rule)
        if not array.flags.aligned:
            rule = f"must be a multiple of the {array.itemsize} bytes of an element"
            raise InputError(name, f"address {array.ctypes.data}", rule)
        if not array.flags.writeable and name in WRITTEN:
            raise InputError(name, "a read-only array", "must be writable: it is an output")


def is_aligned(array: Array) -> bool:
    """Return whether an array starts on a 32-byte block.

    The start of an allocation, which NumPy chooses, counts as a block's start, as does any address that is a
    multiple of 32.
    """
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    address = array.ctypes.data
    return address % BLOCK_BYTES == 0 or (address - owner.ctypes.data) % BLOCK_BYTES == 0


def _check_overlaps(operands: Operands) -> None:
    given = [(name, array) for name, array in operands._asdict().items() if array is not None]
    spans = [(name, array.ctypes.data, array.ctypes.data + array.nbytes) for name, array in given]
    for index, (first, start, end) in enumerate(spans):
        for second, other_start, other_end in spans[index + 1 :]:
            apart = end <= other_start or other_end <= start
            if apart or not (first in WRITTEN or second in WRITTEN):
                continue
            if (first, second) in MAY_SHARE:
                if (start, end) == (other_start, other_end):
                    continue
                rule = "may share memory only as a whole, from the same address and of the same size"
            else:
                rule = "must not overlap; src may be dst, in_max may be max, in_exp_sum may be exp_sum"
            seen = f"bytes {start}..{end} and {other_start}..{other_end}"
            raise InputError(f"{first}, {second}", seen, rule)


@functools.lru_cache(maxsize=512)
def plan_call(layouts: tuple[Layout | None, ...], options: Options) -> Plan:
    """Return the plan of a call from the shapes, types and options alone.

    Raises
    ------
    InputError, DTypeError, ConfigError
        For every rule that shapes, types or options break.
    """
    plan = resolve_call(layouts, options)
    refusal = basic_block_refusal(plan)
    if refusal is not None:
        raise refusal
    return plan


def resolve_call(layouts: tuple[Layout | None, ...], options: Options) -> Plan:
    """Return the plan of a call without asking whether a basic block can run it."""
    given = Operands(*layouts)
    for name in ("dst_tensor", "exp_sum_tensor", "max_tensor", "src_tensor", *CARRIED):
        if getattr(given, name) is None and (options.is_update or name not in CARRIED):
            raise InputError(name, None, "must be a NumPy array" + " in an update" * (name in CARRIED))
    data, state = _check_dtypes(given)
    config = options.config
    without_brc = config.mode is SoftmaxMode.SOFTMAX_OUTPUT_WITHOUT_BRC
    if given.out_reduce_max is not None and not without_brc:
        rule = (
            "needs SoftmaxMode.SOFTMAX_OUTPUT_WITHOUT_BRC: in this mode the operator writes no output at all"
        )
        raise ConfigError("out_reduce_max", f"config.mode {config.mode.name}", rule)
    array_rows = _check_shapes(given, data, state, without_brc)
    rows, columns, counted = _extent(given, options, array_rows)
    constant = bool(config.src_m and config.src_k) and not without_brc
    basic = options.is_basic_block
    if constant:
        # The operator takes the constant column count for the original one and overrules is_basic_block.
        counted = config.src_k
        basic = config.src_k % 64 == 0 and config.src_k < 2048 and config.src_m % 8 == 0
        _check_counted("config.src_k", counted, columns)
    sizes = (data.itemsize, state.itemsize)
    least, _ = softmax_flash_v2_tmp_bytes((rows, columns), *sizes, options.is_update, basic, without_brc)
    tmp_bytes = _check_tmp(given.shared_tmp_buffer, least)
    recompute = (
        config.check_tiling
        and given.out_reduce_max is None
        and (options.tiling.src_m, options.tiling.src_k) != (rows, columns)
    )
    tiling = options.tiling
    if recompute:
        tiling = recomputed_tiling((rows, columns), *sizes, tmp_bytes, basic, without_brc)
    _check_tiling(tiling, options.tiling, rows, columns, state.itemsize)
    return Plan(
        rows=rows,
        columns=columns,
        counted=counted,
        data=data,
        state=state,
        without_brc=without_brc,
        constant_shape=constant,
        basic=basic,
        tiling=tiling,
        recomputed=recompute,
        min_tmp_bytes=least,
    )


def basic_block_refusal(plan: Plan) -> TilesimError | None:
    """Return why the basic-block path cannot run this plan, or None."""
    if not plan.basic:
        return None
    where = "config.src_m, config.src_k" if plan.constant_shape else "is_basic_block"
    seen = f"a basic block of shape ({plan.rows}, {plan.columns})"
    if plan.rows % 8:
        return ConfigError(where, seen, f"rows must be a multiple of 8, not {plan.rows}")
    # A shape the operator itself takes for a basic block has no lower bound that depends on the type.
    itemsize = 4 if plan.constant_shape else plan.data.itemsize
    tiling = plan.tiling
    fault = basic_block_fault(tiling.split_m, plan.columns, itemsize, plan.counted, tiling.tail_m)
    if not fault:
        return None
    hint = "on the chip the result would be silently wrong; take a smaller workspace or the generic path"
    return ConfigError(where, seen, fault, hint)


def _check_dtypes(given: Operands) -> tuple[np.dtype[Any], np.dtype[Any]]:
    data, state = given.src_tensor[1], given.exp_sum_tensor[1]
    if (data, state) not in DTYPE_PAIRS:
        raise DTypeError("src_tensor, exp_sum_tensor", f"({data}, {state})", PAIRS_TEXT)
    expected = dict.fromkeys(STATES, (state, "exp_sum_tensor"))
    expected |= dict.fromkeys(("dst_tensor", "exp_max_tensor"), (data, "src_tensor"))
    for name, (dtype, origin) in expected.items():
        layout = getattr(given, name)
        if layout is not None and layout[1] != dtype:
            raise DTypeError(name, str(layout[1]), f"must be {dtype}, the type of {origin}")
    return data, state


def _check_shapes(given: Operands, data: np.dtype[Any], state: np.dtype[Any], without_brc: bool) -> int:
    """Check all shapes against that of dst and return its rows."""
    shape = given.dst_tensor[0]
    try:
        rows, columns = collapse_shape("dst_tensor", shape)
        source = collapse_shape("src_tensor", given.src_tensor[0])
    except ConfigError as error:
        raise InputError(error.where, error.value, "operands must have at least one row and column") from None
    if source != (rows, columns):
        rule = f"must have the rows and columns of dst_tensor, {shape}"
        raise InputError("src_tensor", given.src_tensor[0], rule)
    _check_row_bytes("src_tensor", columns, data.itemsize)
    for name in (*STATES, "exp_max_tensor"):
        layout = getattr(given, name)
        if layout is not None:
            dtype = data if name == "exp_max_tensor" else state
            _check_state_shape(name, layout[0], shape, rows, dtype, without_brc)
    return rows


def _check_row_bytes(where: str, columns: int, itemsize: int) -> None:
    if columns * itemsize % BLOCK_BYTES:
        seen = f"{columns} columns of {itemsize} bytes = {columns * itemsize} bytes a row"
        raise InputError(where, seen, f"a row must be a multiple of {BLOCK_BYTES} bytes")


def _check_state_shape(
    name: str,
    seen: tuple[int, ...],
    dst_shape: tuple[int, ...],
    rows: int,
    dtype: np.dtype[Any],
    brc_off: bool,
) -> None:
    leading = dst_shape[:-1]
    lanes = 1 if brc_off else BLOCK_BYTES // dtype.itemsize
    allowed = {(*leading, lanes), (rows, lanes)}
    if brc_off:
        allowed |= {leading, (rows,)}
    if seen in allowed:
        return
    if brc_off:
        want = f"SOFTMAX_OUTPUT_WITHOUT_BRC wants {(*leading, 1)}: one element"
    else:
        want = f"SOFTMAX_NORMAL wants {(*leading, lanes)}: {BLOCK_BYTES} bytes, {lanes} lanes of {dtype},"
    raise InputError(name, seen, f"{want} for each row of dst_tensor {dst_shape}")


def _extent(given: Operands, options: Options, array_rows: int) -> tuple[int, int, int]:
    """Return rows, columns and counted columns, from the shape info or else from the source array."""
    columns = given.src_tensor[0][-1]
    info = options.softmax_shape_info
    if info is None or not info.src_m or not info.src_k:
        return array_rows, columns, columns
    if info.src_k != columns:
        rule = f"must be the last axis of src_tensor, {columns}"
        raise InputError("softmax_shape_info.src_k", info.src_k, rule)
    if info.src_m > array_rows:
        rule = f"must be at most the {array_rows} rows of src_tensor {given.src_tensor[0]}"
        raise InputError("softmax_shape_info.src_m", info.src_m, rule)
    if info.ori_src_m > info.src_m:
        rule = f"must be at most src_m, {info.src_m}"
        raise InputError("softmax_shape_info.ori_src_m", info.ori_src_m, rule)
    _check_counted("softmax_shape_info.ori_src_k", info.ori_src_k, info.src_k)
    return info.src_m, info.src_k, info.ori_src_k


def _check_counted(where: str, counted: int, columns: int) -> None:
    if not 1 <= counted <= columns:
        raise InputError(where, counted, f"must be from 1 to src_k, {columns}")


def _check_tmp(layout: Layout | None, least: int) -> int:
    """Return the bytes of the temporary buffer: its own, or the least when the framework allocates it."""
    if layout is None:
        return least
    shape, dtype = layout
    if dtype != np.uint8:
        raise DTypeError("shared_tmp_buffer", str(dtype), "must be uint8")
    size = int(np.prod(shape, dtype=np.int64))
    if size < least:
        raise InputError("shared_tmp_buffer", f"{size} bytes", f"must have at least {least} bytes")
    return size


def _check_tiling(
    tiling: SoftmaxTiling, passed: SoftmaxTiling, rows: int, columns: int, state_itemsize: int
) -> None:
    if (tiling.src_m, tiling.src_k) != (rows, columns):
        rule = f"must be the source's ({rows}, {columns}), as this call does not recompute the tiling"
        raise ConfigError("tiling.src_m, tiling.src_k", (tiling.src_m, tiling.src_k), rule)
    if tiling.split_m == 0:
        rule = f"must be at least 1 of the {rows} rows: with 0 the operator computes nothing"
        hint = "the workspace of the tiling is too small; softmax_flash_v2_tmp_bytes gives the minimum"
        raise ConfigError("tiling.split_m", tiling.split_m, rule, hint)
    if tiling is not passed:
        return
    expected = filled_tiling(rows, columns, state_itemsize, tiling.split_m)
    for field in dataclasses.fields(tiling):
        seen, wanted = getattr(tiling, field.name), getattr(expected, field.name)
        if seen != wanted:
            rule = f"must be {wanted}, which follows from src_m {rows}, src_k {columns} and split_m"
            raise ConfigError(f"tiling.{field.name}", seen, f"{rule} {tiling.split_m}")
