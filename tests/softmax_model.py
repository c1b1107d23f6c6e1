"""softmax_flash_v2 as its published rules state it, in plain NumPy: float32 steps, sums in the stated order.

Shares no code with the package. Arrays are (rows, columns); states are one number per row. `exact_exp`
rounds float64's exponential once, which is correctly rounded for all practical purposes.
"""

import numpy as np


def exact_exp(x):
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp(np.asarray(x, np.float64)).astype(np.float32)


def round_half_away(x):
    """float -> half, nearest, ties away from zero, overflow to infinity."""
    x = np.asarray(x, np.float32)
    magnitude = np.abs(x.astype(np.float64))
    _, exponent = np.frexp(magnitude)
    spacing = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = np.floor(magnitude / spacing + 0.5) * spacing
        rounded = np.where(np.isfinite(magnitude), rounded, magnitude)
        rounded = np.where(rounded > 65504.0, np.inf, rounded)
        rounded = np.where(np.isnan(x), np.nan, rounded)
        return np.copysign(rounded, x).astype(np.float16)


def stored(x, dtype):
    return round_half_away(x) if np.dtype(dtype) == np.float16 else np.asarray(x, np.float32)


def tree(values):
    """Add adjacent pairs along the last axis (a power of two long) until one value is left."""
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def eights(values):
    return tree(values.reshape(*values.shape[:-1], -1, 8))


def lane_sum(y):
    """Sum rows of 64 or more columns: chunks of 64 into 64 lanes in order, then the tree over the lanes."""
    chunks, tail = divmod(y.shape[-1], 64)
    if chunks >= 8:
        lanes, done = eights(y[:, :512]), 8
    elif chunks >= 2:
        lanes, done = y[:, :64] + y[:, 64:128], 2
    else:
        lanes, done = y[:, :64].copy(), 1
    for chunk in range(done, chunks):
        lanes = lanes + y[:, 64 * chunk : 64 * chunk + 64]
    if tail:
        lanes[:, :tail] = lanes[:, :tail] + y[:, 64 * chunks :]
    return tree(lanes)


def row_sum(y, basic):
    if basic and y.shape[-1] == 1024:
        sixteen = eights(eights(y))
        return tree(sixteen[:, :8] + sixteen[:, 8:])
    if y.shape[-1] < 64:
        return tree(np.pad(y, ((0, 0), (0, 64 - y.shape[-1]))))
    return lane_sum(y)


def softmax_flash_v2_model(
    src, in_sum=None, in_max=None, *, state_dtype, is_update, is_basic_block, ori_src_k=None, exp=exact_exp
):
    """Return dst, sum, max and, in an update, exp_max and reduce_max, each in the dtype it is stored in."""
    x = src.astype(np.float32)
    counted = x.shape[1] if ori_src_k is None else ori_src_k
    with np.errstate(all="ignore"):
        own_max = np.max(x[:, :counted], axis=1)
        maximum = np.maximum(in_max.astype(np.float32), own_max) if is_update else own_max
        y = exp(x - maximum[:, None])
        total = row_sum(y[:, :counted], is_basic_block)
        result = {}
        if is_update:
            rescale = exp(in_max.astype(np.float32) - maximum)
            product = rescale * in_sum.astype(np.float32)
            total = product + total
            result["exp_max"] = stored(rescale, src.dtype)
            result["reduce_max"] = stored(own_max, state_dtype)
        result["dst"] = stored(y, src.dtype)
        result["sum"] = stored(total, state_dtype)
        result["max"] = stored(maximum, state_dtype)
    return result
