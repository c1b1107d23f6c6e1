"""What the compiled kernels take, from a checked problem: numerics, variant and splits."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim.dtypes import DType
from tilesim.errors import InputError
from tilesim.precision import Precision
from tilesim.problem import Problem
from tilesim.softmax.tiling import is_basic_block
from tilesim.tensors import to_data_type
from tilesim.tile import Tile
from tilesim.units import ceil_div
from tilesim.workload import Workload

PLAIN_POLICY = "float"
"""The policy without rounding points, which has a faster softmax of its own."""


def split_keys(seq_kv: int, kv_tile: int, splits: int) -> npt.NDArray[np.int64]:
    """Return the first key of each split, whole tiles each, and the number of keys."""
    tiles = ceil_div(seq_kv, kv_tile)
    share = max(1, ceil_div(tiles, splits)) * kv_tile
    return np.array([*range(0, max(1, seq_kv), share), seq_kv], np.int64)


@functools.cache
def _kinds() -> dict[str, int]:
    from tilesim.kernels import rounding

    return {"float": rounding.FLOAT_KIND, "half": rounding.HALF_KIND, "bfloat16": rounding.BFLOAT16_KIND}


def _rounded(value: float, data: DType) -> np.float32:
    """Return a parameter as the chip holds it: float32 first, then rounded to `data`."""
    with np.errstate(over="ignore"):
        return np.float32(to_data_type(np.array(value, np.float32), data))


def score_variant(problem: Problem, policy: Precision) -> Any:
    """Return what happens to scores beside scaling, None if nothing does.

    Factors are rounded to the data type of the policy.
    """
    from tilesim.kernels.rounding import FLOAT_KIND
    from tilesim.kernels.variant import ScoreVariant

    if not has_variant(problem):
        return None
    workload, variant = problem.workload, problem.variant
    kind, plain = _kinds()[policy.data.name], policy.name == PLAIN_POLICY
    shape = (workload.batch, workload.heads)
    slopes = sinks = np.empty(0, np.float32)
    with np.errstate(over="ignore"):
        # Copies, since the kernel would be compiled once more for arrays that cannot be written.
        if variant.alibi_slopes is not None:
            slopes = np.array(to_data_type(variant.alibi_slopes, policy.data), np.float32).reshape(-1)
        if variant.sinks is not None:
            sinks = np.array(np.broadcast_to(variant.sinks, shape), np.float32).reshape(-1)
            _check_sinks(sinks, policy)
    softcap = _rounded(workload.softcap, policy.data)
    scale = np.float32(1.0) if plain else _rounded(problem.scale, policy.data)
    return ScoreVariant(
        active=alters_scores(workload),
        scale=scale,
        kind=FLOAT_KIND if plain else kind,
        # A cap beyond the data type leaves every score that the type holds as it is.
        capped=workload.softcap > 0 and bool(np.isfinite(softcap)),
        softcap=softcap,
        slopes=slopes,
        sinks=sinks,
        mask=_mask_tensor(variant.attn_mask, workload.heads),
    )


def _check_sinks(sinks: npt.NDArray[np.float32], policy: Precision) -> None:
    """Refuse sinks that the running maximum cannot hold: they would turn rows without keys into NaN."""
    infinite = np.flatnonzero(policy.state.round_away(sinks) == np.inf)
    if infinite.size:
        largest = policy.state.max_value
        raise InputError(
            "sinks", float(sinks[infinite[0]]), f"must be at most {largest:g} with state {policy.state.name}"
        )


def has_variant(problem: Problem) -> bool:
    """Return whether the kernel needs its code for variants, which is compiled apart."""
    return alters_scores(problem.workload) or problem.variant.sinks is not None


def alters_scores(workload: Workload) -> bool:
    """Return whether anything happens to scores beside scaling and the named mask."""
    return workload.attn_mask is not None or workload.alibi or workload.softcap > 0


def _mask_tensor(mask: npt.NDArray[Any] | None, heads: int) -> Any:
    from tilesim.kernels import variant as kernel

    if mask is None or mask.size == 0:
        return kernel.MaskTensor(kernel.NO_MASK, 0, heads, 0, 0, 0, 0)
    kinds = {
        "bool": kernel.BOOL_MASK,
        "float32": kernel.FLOAT_MASK,
        "float64": kernel.DOUBLE_MASK,
        "float16": kernel.HALF_MASK,
        "bfloat16": kernel.BFLOAT16_MASK,
    }
    return kernel.MaskTensor(kinds[mask.dtype.name], mask.ctypes.data, heads, *mask.strides)


def numerics(tile: Tile, policy: Precision, problem: Problem) -> Any:
    """Return the rounding points; a variant that alters scores scales them itself."""
    # 0 and -0 are the same key.
    sign = math.copysign(1.0, problem.scale)
    altered = alters_scores(problem.workload)
    return _numerics(tile.softmax_rows, tile.kv_tile, policy, altered, problem.scale, sign)


@functools.lru_cache(maxsize=16)
def _numerics(
    softmax_rows: int, kv_tile: int, policy: Precision, altered: bool, factor: float, _sign: float
) -> Any:
    from tilesim.kernels import rounding, softmax

    kinds = _kinds()
    data_kind = kinds[policy.data.name]
    scale, score_kind = _rounded(factor, policy.data), data_kind
    basic = is_basic_block(softmax_rows, kv_tile, policy.data.itemsize)
    sum_form = softmax.BASIC_SUM if basic else softmax.GENERIC_SUM
    if policy.name == PLAIN_POLICY:
        sum_form = softmax.PLAIN_SUM
    elif altered:
        scale, score_kind = np.float32(1.0), rounding.FLOAT_KIND
    return softmax.Numerics(
        scale=scale,
        score_kind=score_kind,
        data_kind=data_kind,
        state_kind=kinds[policy.state.name],
        sum_form=sum_form,
        guard_empty=True,
    )


def combine_splits(
    output: npt.NDArray[np.float32],
    row_max: npt.NDArray[np.float32],
    row_sum: npt.NDArray[np.float32],
    policy: Precision,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Join the accumulators and states of several splits of the keys; a single one is done already.

    Factors, sums and the division are float64 here; the output is rounded once to the data type. The state is
    that of one pass over all keys, in float.

    Parameters
    ----------
    output : array (splits, rows of heads, rows, head_dim_v)
    row_max, row_sum : arrays (splits, rows of heads, rows)
    policy : Precision
    """
    if len(output) == 1:
        return output[0], row_max[0], row_sum[0]
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        top = row_max.max(axis=0)
        factor = np.exp(row_max.astype(np.float64) - np.where(top == -np.inf, 0.0, top))
        total = (factor * row_sum).sum(axis=0)
        joined = np.zeros(output.shape[1:])
        for one_factor, one in zip(factor, output, strict=True):
            joined += one_factor[..., None] * one
        quotient = np.where(total[..., None] == 0.0, 0.0, joined / total[..., None])
        return to_data_type(quotient, policy.data).astype(np.float32), top, total.astype(np.float32)
