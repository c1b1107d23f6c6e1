"""What a softmax_flash_v2 call would meet on the chip: defects of the original, side effects, idle flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from tilesim.dtypes import BLOCK_BYTES
from tilesim.errors import TilesimError
from tilesim.softmax.checks import (
    FLOAT,
    HALF,
    Array,
    Operands,
    Options,
    Plan,
    basic_block_refusal,
    check_memory,
    check_options,
    is_aligned,
    layouts_of,
    resolve_call,
)
from tilesim.softmax.params import SoftmaxConfig, SoftMaxShapeInfo, SoftmaxTiling
from tilesim.softmax.tiling import has_aligned_steps, step_tmp_bytes

MAX_REPEATS = 255  # of one vector instruction: the count has 8 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One thing that would go differently on the chip than `softmax_flash_v2` computes it.

    Attributes
    ----------
    id : str
        Stable name: ``D1`` to ``D10`` for the known defects of the original operator, a word for the rest.
    severity : str
        ``"error"``: wrong results, or memory written that is not the call's; ``"warning"``: an input is
        overwritten or a result easily misread; ``"note"``: an argument has no effect.
    message : str
        What happens and when, with the values of this call.
    """

    id: str
    severity: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity} {self.id}: {self.message}"


def _error(name: str, message: str) -> Diagnostic:
    return Diagnostic(id=name, severity="error", message=message)


def _warning(name: str, message: str) -> Diagnostic:
    return Diagnostic(id=name, severity="warning", message=message)


def _note(name: str, message: str) -> Diagnostic:
    return Diagnostic(id=name, severity="note", message=message)


def check_softmax_flash_v2(
    dst_tensor: Array,
    exp_sum_tensor: Array,
    max_tensor: Array,
    src_tensor: Array,
    exp_max_tensor: Array | None,
    in_exp_sum_tensor: Array | None,
    in_max_tensor: Array | None,
    tiling: SoftmaxTiling,
    softmax_shape_info: SoftMaxShapeInfo | None = None,
    shared_tmp_buffer: Array | None = None,
    out_reduce_max: Array | None = None,
    is_update: bool = False,
    is_reuse_source: bool = False,
    is_basic_block: bool = False,
    is_data_format_nz: bool = False,
    config: SoftmaxConfig | None = None,
) -> tuple[Diagnostic, ...]:
    """List what would go wrong with this call of softmax_flash_v2 on the chip; touch nothing.

    Parameters
    ----------
    dst_tensor, exp_sum_tensor, max_tensor, src_tensor, exp_max_tensor, in_exp_sum_tensor, in_max_tensor
        As in `softmax_flash_v2`; they are read at most.
    tiling, softmax_shape_info, shared_tmp_buffer, out_reduce_max
        As in `softmax_flash_v2`.
    is_update, is_reuse_source, is_basic_block, is_data_format_nz, config
        As in `softmax_flash_v2`.

    Returns
    -------
    tuple of Diagnostic
        Errors first, then warnings, then notes; empty if chip and tilesim agree. A call that
        `softmax_flash_v2` refuses has a diagnostic ``refused`` with the text of the refusal.
    """
    operands = Operands(
        dst_tensor,
        exp_sum_tensor,
        max_tensor,
        src_tensor,
        exp_max_tensor,
        in_exp_sum_tensor,
        in_max_tensor,
        shared_tmp_buffer,
        out_reduce_max,
    )
    try:
        options = check_options(
            tiling, softmax_shape_info, is_update, is_reuse_source, is_basic_block, is_data_format_nz, config
        )
        plan = resolve_call(layouts_of(operands), options)
        check_memory(operands)
    except TilesimError as error:
        return (_error("refused", str(error)),)
    found = [
        *_basic_block_defects(plan),
        *_one_row_defects(plan, options),
        *_defects(plan, operands, options),
        *_scratch(plan, operands, options),
        *_steps(plan),
        *_operand_hazards(plan, operands, options),
        *_overwritten_inputs(plan, operands, options),
        *_reduce_max(plan, operands, options),
        *_idle_arguments(plan, operands, options),
    ]
    rank = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda diagnostic: rank[diagnostic.severity]))


def _is_mixed(plan: Plan) -> bool:
    return (plan.data, plan.state) == (HALF, FLOAT)


def _basic_block_defects(plan: Plan) -> Iterator[Diagnostic]:
    refusal = basic_block_refusal(plan)
    if refusal is not None:
        yield _error("refused", str(refusal))
    tiling = plan.tiling
    if plan.basic and tiling.split_m % 8:
        extra = 8 - tiling.split_m % 8
        text = f"split_m {tiling.split_m} is no multiple of 8: an update gives wrong outputs,"
        yield _error("D3", f"{text} a first call writes {extra} rows past the end of max and sum")
    if tiling.tail_m and (plan.basic or plan.constant_shape):
        reason = "the basic-block path" if plan.basic else "a constant shape"
        yield _error("D4", f"{reason} never computes the {tiling.tail_m} tail rows of the tiling (tail_m)")
    if plan.basic and plan.counted < plan.columns:
        padding = plan.columns - plan.counted
        text = f"the basic-block path takes the {padding} padded columns into maximum and sum"
        yield _error("D7", f"{text} ({plan.counted} of {plan.columns} count)")


def _one_row_defects(plan: Plan, options: Options) -> Iterator[Diagnostic]:
    one_row = 1 in (plan.tiling.split_m, plan.tiling.tail_m) and plan.counted >= 64
    if options.is_update or plan.basic or not plan.without_brc or not one_row:
        return
    if plan.state == HALF:
        yield _error("D2", "in a first call a step of exactly one row stores its sum in max_tensor as well")
    else:
        text = "in a first call a step of exactly one row writes 8 lanes of max and sum instead of 1"
        yield _error("D10", f"{text}: both need {BLOCK_BYTES} bytes of room from their last row on")


def _defects(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    if _is_mixed(plan) and not options.is_update and not plan.basic and plan.without_brc:
        text = "a first call with half data and float state on the generic path, states without lanes,"
        yield _error("D1", f"{text} gives wrong dst and sum for most of the {plan.rows} rows; max is right")
    if plan.constant_shape and plan.data == HALF and 1 <= plan.counted % 16 <= 8 and plan.rows > 1:
        text = f"config.src_k {plan.counted} makes the reductions step {(plan.counted + 7) // 8 * 8} columns"
        yield _error("D5", f"{text} a row instead of {plan.columns}: every row but the first is wrong")


def _scratch(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    """Temporary space written beyond what sizes and tiling allow for."""
    tiling = plan.tiling
    buffer = operands.shared_tmp_buffer
    used = step_tmp_bytes(tiling, plan.data.itemsize, plan.state.itemsize, plan.basic)
    if buffer is not None and buffer.nbytes < used:
        text = f"a step of {tiling.split_m} rows takes {used} bytes of temporary space"
        yield _error("workspace-overrun", f"{text}, but shared_tmp_buffer has {buffer.nbytes}")
    if not options.is_update or not plan.without_brc:
        return
    over = 0
    if _is_mixed(plan) and plan.basic and plan.columns != 1024:
        over = 4 * tiling.split_m
    elif plan.state == HALF and not plan.basic and 1 in (tiling.split_m, tiling.tail_m):
        over = BLOCK_BYTES
    if over:
        text = f"the update writes {over} bytes beyond the {used} bytes of temporary space of a step"
        fits = buffer is not None and buffer.nbytes >= used + over
        yield _warning("D6", f"{text}; shared_tmp_buffer has room") if fits else _error("D6", text)


def _steps(plan: Plan) -> Iterator[Diagnostic]:
    tiling = plan.tiling
    if plan.without_brc and not has_aligned_steps(tiling, plan.data.itemsize):
        lanes = BLOCK_BYTES // plan.data.itemsize
        text = f"split_m {tiling.split_m} is no multiple of {lanes}: steps start inside a 32-byte block"
        yield _error("unaligned-steps", text)
    if not plan.basic and 128 <= plan.counted < 512 and tiling.split_m > MAX_REPEATS:
        text = f"split_m {tiling.split_m} exceeds the {MAX_REPEATS} repeats of one instruction"
        yield _error("repeat-overflow", f"{text}, which the generic path needs for 128 to 511 columns")
    if plan.counted < plan.columns and not plan.basic:
        padding = plan.columns - plan.counted
        text = f"the last {padding} columns of dst become exp(padding - max), which may be large or infinite"
        yield _warning("padding", text)


def _operand_hazards(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    for name, array in operands._asdict().items():
        if array is not None and name != "shared_tmp_buffer" and not is_aligned(array):
            text = f"{name} starts {array.ctypes.data % BLOCK_BYTES} bytes behind a 32-byte block"
            yield _error("unaligned-operand", text)
    if plan.without_brc or not options.is_update:
        return
    for name in ("in_exp_sum_tensor", "in_max_tensor"):
        lanes = getattr(operands, name).reshape(-1, plan.state_lanes)[: plan.rows]
        bits = lanes.view(np.dtype(f"u{plan.state.itemsize}"))
        differing = int(np.count_nonzero((bits != bits[:, :1]).any(axis=1)))
        if differing:
            text = f"the lanes of {differing} rows of {name} differ: the chip computes lane by lane"
            yield _error("unequal-lanes", text)


def _overwritten_inputs(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    if not plan.basic:
        return
    all_float = plan.data == FLOAT
    if not options.is_update:
        if all_float and not _same_memory(operands.src_tensor, operands.dst_tensor):
            yield _warning("overwritten-input", "src_tensor is left holding src - max")
    elif (all_float or (_is_mixed(plan) and plan.without_brc)) and not _same_memory(
        operands.in_exp_sum_tensor, operands.exp_sum_tensor
    ):
        yield _warning("overwritten-input", "in_exp_sum_tensor is left holding exp_max * in_exp_sum")


def _same_memory(first: Array, second: Array) -> bool:
    return bool(first.ctypes.data == second.ctypes.data)


def _reduce_max(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    if operands.out_reduce_max is None:
        return
    if options.softmax_shape_info is None and not plan.basic:
        text = "with out_reduce_max the counted columns come from softmax_shape_info alone; without it none"
        yield _error("reduce-max-without-shape", f"{text} of the {plan.columns} enters maximum and sum")
    if plan.data != plan.state:
        text = f"no published overload takes out_reduce_max with {plan.data} data and {plan.state} state"
        yield _warning("reduce-max-types", text)
    if not options.is_update:
        yield _note("reduce-max-idle", "out_reduce_max is written in an update only")
    if options.config.check_tiling:
        text = "with out_reduce_max config.check_tiling is ignored: the tiling passed in is used as it is"
        yield _note("check-tiling-idle", text)


def _idle_arguments(plan: Plan, operands: Operands, options: Options) -> Iterator[Diagnostic]:
    config, info = options.config, options.softmax_shape_info
    if options.is_reuse_source:
        yield _note("reuse-source-idle", "is_reuse_source is reserved and changes nothing")
    if plan.constant_shape and options.is_basic_block != plan.basic:
        decided = "a basic block" if plan.basic else "no basic block"
        text = (
            f"is_basic_block {options.is_basic_block} is ignored: by config.src_m and config.src_k the tile"
        )
        yield _note("basic-block-idle", f"{text} is {decided}")
    if (config.src_m or config.src_k) and not plan.constant_shape:
        text = "config.src_m and config.src_k are ignored: they need both values and mode SOFTMAX_NORMAL"
        yield _note("constant-shape-idle", text)
    if info is not None and not (info.src_m and info.src_k):
        text = f"softmax_shape_info is ignored, as src_m {info.src_m} or src_k {info.src_k} is 0"
        yield _note("shape-info-idle", text)
    elif info is not None:
        if plan.constant_shape and info.ori_src_k != plan.counted:
            text = f"softmax_shape_info.ori_src_k {info.ori_src_k} is ignored"
            yield _note("shape-info-idle", f"{text}: the first {plan.counted} columns count (config.src_k)")
        if info.ori_src_m < info.src_m:
            text = f"all {info.src_m} rows are processed: ori_src_m {info.ori_src_m} is ignored"
            yield _note("original-rows-idle", text)
    if plan.recomputed:
        given = "shared_tmp_buffer" if operands.shared_tmp_buffer is not None else "the framework's space"
        text = f"the tiling is replaced by one computed from {given}: split_m {plan.tiling.split_m}"
        yield _note("tiling-recomputed", text)
