"""softmax_flash_v2: one tile of a running softmax, in place on NumPy arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tilesim.softmax.checks import (
    HALF,
    Array,
    Operands,
    Options,
    Plan,
    check_memory,
    check_options,
    layouts_of,
    plan_call,
)
from tilesim.softmax.params import SoftmaxConfig, SoftMaxShapeInfo, SoftmaxTiling


def softmax_flash_v2(
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
) -> None:
    """Run the operator softmax_flash_v2 on one tile of scores, in place.

    For each row x of the source, with M its maximum and, in an update, the maximum carried in::

        dst = exp(x - M)              exp_max = exp(in_max - M)
        max = M                       exp_sum = exp_max * in_exp_sum + sum(exp(x - M))

    Without an update the last line is only the sum, and exp_max is not written. dst is not normalised. All
    arithmetic is float32; dst and exp_max are rounded to the type of the data, the states to theirs, ties
    away from zero, results beyond 65,504 to infinity, subnormal results kept. The sum adds the unrounded
    exponentials in the order of the vector core. exp is within 1 ulp of the correctly rounded value.

    A call that is refused touches no operand. Defects of the original operator are not imitated:
    `check_softmax_flash_v2` lists those a call would meet on the chip.

    Parameters
    ----------
    dst_tensor : (..., k) array of float16 or float32
        Receives the exponentials. The leading axes collapse into m rows.
    exp_sum_tensor, max_tensor : array of float16 or float32
        Receive sum and maximum of each row: (..., 32 bytes / itemsize), equal lanes, in mode
        ``SOFTMAX_NORMAL``; (..., 1) or (...) in mode ``SOFTMAX_OUTPUT_WITHOUT_BRC``.
    src_tensor : (..., k) array, type of `dst_tensor`
        Scores; may be `dst_tensor`. A row must fill whole blocks of 32 bytes.
    exp_max_tensor : array, type of `dst_tensor`
        Receives the factor that rescales what earlier tiles accumulated. Shape as for the states, but with
        lanes of its own type. None is allowed without an update, here and for the next two.
    in_exp_sum_tensor, in_max_tensor : array, type and shape of `exp_sum_tensor`
        State after the tiles before; may be `exp_sum_tensor` and `max_tensor`. Lane 0 of a row is read.
    tiling : SoftmaxTiling
        From `softmax_flash_v2_tiling`. Results do not depend on it; a tiling that would make the chip compute
        something else is refused.
    softmax_shape_info : SoftMaxShapeInfo, optional
        Padded and original shape. Only the first `ori_src_k` columns enter maximum and sum; the others
        become ``exp(x - M)`` too. Rows beyond `src_m` stay untouched.
    shared_tmp_buffer : uint8 array, optional
        Temporary space, which is checked but not needed; None stands for space of the framework.
    out_reduce_max : array, type of `exp_sum_tensor`, optional
        Receives, in an update, the maximum of this tile's rows alone. Mode ``SOFTMAX_OUTPUT_WITHOUT_BRC``.
    is_update : bool
        Whether a state is carried in.
    is_reuse_source : bool
        Reserved; changes nothing.
    is_basic_block : bool
        Take the basic-block path. It sums rows of 1,024 columns in another order, and is refused for tiles
        and tilings the chip could not run it on.
    is_data_format_nz : bool
        Must be False.
    config : SoftmaxConfig, optional
        Mode of the states, checking of the tiling, constant shape.

    Raises
    ------
    InputError
        If shapes, memory or the temporary buffer of an operand break a rule; the message names it.
    DTypeError
        If the types are no supported combination.
    ConfigError
        If tiling, shape or configuration do not fit the operands or each other.

    Examples
    --------
    Two tiles of one row block, normalised at the end, against an ordinary softmax:

    >>> import numpy as np
    >>> from tilesim.softmax import SoftmaxTiling, softmax_flash_v2, softmax_flash_v2_tiling
    >>> scores = np.linspace(-4, 4, 8 * 1024, dtype=np.float16).reshape(8, 1024)
    >>> first, second = scores[:, :512].copy(), scores[:, 512:].copy()
    >>> row_sum, row_max = np.zeros((8, 8), np.float32), np.zeros((8, 8), np.float32)
    >>> exp_max = np.zeros((8, 16), np.float16)
    >>> tiling = softmax_flash_v2_tiling((8, 512), 2, 4, 18688, is_basic_block=True)
    >>> softmax_flash_v2(first, row_sum, row_max, first, exp_max, row_sum, row_max, tiling,
    ...                  is_basic_block=True)
    >>> softmax_flash_v2(second, row_sum, row_max, second, exp_max, row_sum, row_max, tiling,
    ...                  is_update=True, is_basic_block=True)
    >>> joined = np.concatenate([first * exp_max[:, :1], second], axis=1) / row_sum[:, :1]
    >>> x = scores.astype(np.float64)
    >>> softmax = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    >>> bool(np.allclose(joined, softmax, rtol=2e-3))
    True
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
    options = check_options(
        tiling, softmax_shape_info, is_update, is_reuse_source, is_basic_block, is_data_format_nz, config
    )
    _run(operands, options)


def _run(operands: Operands, options: Options) -> None:
    """Check a call and run it."""
    plan = plan_call(layouts_of(operands), options)
    check_memory(operands)
    dst, exp_sum, row_max, src, exp_max, in_exp_sum, in_max, _, reduce_max = operands
    update = options.is_update
    write_reduce_max = update and reduce_max is not None
    # What a first tile does not touch is stood for by an operand of the same type.
    states = flat_sum, flat_max = _flat(exp_sum), _flat(row_max)
    flat_dst = _flat(dst)
    outputs = (
        flat_dst,
        flat_sum,
        flat_max,
        _flat(exp_max) if update else flat_dst,
        _flat(reduce_max) if write_reduce_max else flat_max,
    )
    if update:
        states = (
            flat_sum if in_exp_sum is exp_sum else _flat_input(in_exp_sum),
            flat_max if in_max is row_max else _flat_input(in_max),
        )
    kernel, settings = _kernel(plan, update, write_reduce_max)
    scratch = _scratch(plan.columns)
    kernel(outputs, flat_dst if src is dst else _flat_input(src), states, *settings, *scratch)


def _scratch(columns: int) -> tuple[Array, Array]:
    from tilesim.kernels.operator import ROWS, scratch_size

    return np.empty(scratch_size(columns), np.float32), np.empty(2 * ROWS, np.int64)


def _flat(array: Array) -> Array:
    """Return all elements as the kernel takes them: float32, or the bits of halves."""
    return array.reshape(-1).view(np.uint16) if array.itemsize == 2 else array.reshape(-1)


def _flat_input(array: Array) -> Array:
    # A read-only array would have the kernel compiled once more.
    return _flat(array if array.flags.writeable else array.copy())


def update_tile(
    outputs: tuple[Array, Array, Array, Array], src: Array, *, counted: int, update: bool, basic: bool
) -> None:
    """Run one tile as the attention kernel does, on stored tensors: states are updated in place.

    Other than the operator it takes bfloat16 data, and a row whose scores are all -inf keeps an empty state
    instead of NaN.

    Parameters
    ----------
    outputs : (dst, exp_sum, max, exp_max)
        C-contiguous; `dst` like `src`, the others (rows, lanes).
    src : array (rows, columns)
        float16, bfloat16 or float32.
    counted : int
        Columns that enter maximum and sum.
    update : bool
        Whether a state is carried in.
    basic : bool
        Whether the tile is a basic block.
    """
    from tilesim.kernels import rounding, softmax
    from tilesim.kernels.operator import StoredShape, softmax_operator

    kinds = {2: rounding.HALF_KIND, 4: rounding.FLOAT_KIND}
    narrow = src.dtype.kind == "V" or src.dtype.name == "bfloat16"
    dst, exp_sum, row_max, exp_max = (
        _flat(x.astype(np.float32)) if x.dtype.name == "bfloat16" else _flat(x) for x in outputs
    )
    shape = StoredShape(
        rows=src.shape[0],
        columns=src.shape[1],
        counted=counted,
        state_lanes=outputs[1].shape[1],
        exp_max_lanes=outputs[3].shape[1],
    )
    numerics = softmax.Numerics(
        scale=np.float32(1.0),
        score_kind=rounding.FLOAT_KIND,
        data_kind=rounding.BFLOAT16_KIND if narrow else kinds[src.itemsize],
        state_kind=kinds[outputs[1].itemsize],
        sum_form=softmax.BASIC_SUM if basic else softmax.GENERIC_SUM,
        guard_empty=True,
    )
    source = _flat(src.astype(np.float32) if narrow else src)
    softmax_operator(
        (dst, exp_sum, row_max, exp_max, row_max), source, (exp_sum, row_max), shape, update, False, numerics,
        *_scratch(src.shape[1]),
    )  # fmt: skip
    if narrow:
        outputs[0][...] = dst.reshape(outputs[0].shape).astype(src.dtype)
        outputs[3][...] = exp_max.reshape(outputs[3].shape).astype(src.dtype)


@functools.lru_cache(maxsize=512)
def _kernel(plan: Plan, update: bool, write_reduce_max: bool) -> tuple[Any, tuple[Any, ...]]:
    """Return the compiled operator and what it takes besides the operands."""
    from tilesim.kernels import rounding, softmax
    from tilesim.kernels.operator import StoredShape, softmax_operator

    kinds = [
        rounding.HALF_KIND if dtype == HALF else rounding.FLOAT_KIND for dtype in (plan.data, plan.state)
    ]
    shape = StoredShape(
        rows=plan.rows,
        columns=plan.columns,
        counted=plan.counted,
        state_lanes=plan.state_lanes,
        exp_max_lanes=plan.exp_max_lanes,
    )
    numerics = softmax.Numerics(
        scale=np.float32(1.0),
        score_kind=rounding.FLOAT_KIND,
        data_kind=kinds[0],
        state_kind=kinds[1],
        sum_form=softmax.BASIC_SUM if plan.basic else softmax.GENERIC_SUM,
        guard_empty=False,
    )
    return softmax_operator, (shape, update, write_reduce_max, numerics)
