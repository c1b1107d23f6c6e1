"""Calls of softmax_flash_v2 for tests: operands and options as keyword arguments, and what they must give."""

import numpy as np
from softmax_model import softmax_flash_v2_model

from tilesim.softmax import (
    SoftmaxConfig,
    SoftmaxMode,
    SoftMaxShapeInfo,
    softmax_flash_v2_tiling,
    softmax_flash_v2_tmp_bytes,
)

HALF, FLOAT = np.float16, np.float32
NORMAL, WITHOUT_BRC = SoftmaxMode.SOFTMAX_NORMAL, SoftmaxMode.SOFTMAX_OUTPUT_WITHOUT_BRC
COMBINATIONS = [(HALF, HALF), (HALF, FLOAT), (FLOAT, FLOAT)]
OUTPUTS = {
    "dst": "dst_tensor",
    "sum": "exp_sum_tensor",
    "max": "max_tensor",
    "exp_max": "exp_max_tensor",
    "reduce_max": "out_reduce_max",
}


def lanes(dtype, mode):
    return 32 // np.dtype(dtype).itemsize if mode == NORMAL else 1


def spread(values, dtype, mode):
    """One number per row as a state tensor of that mode."""
    return np.repeat(np.asarray(values, dtype)[:, None], lanes(dtype, mode), axis=1)


def call(
    shape=(8, 512),
    data=HALF,
    state=FLOAT,
    *,
    mode=NORMAL,
    update=True,
    basic=False,
    counted=None,
    reduce_max=False,
    space=False,
    workspace=None,
    seed=0,
    **changes,
):
    """Return the keyword arguments of a call on random scores, with a tiling for `workspace` bytes."""
    rng = np.random.default_rng(seed)
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    sizes = (np.dtype(data).itemsize, np.dtype(state).itemsize)
    flags = {"is_basic_block": basic, "is_flash_output_brc": mode == WITHOUT_BRC}
    if workspace is None:
        workspace, _ = softmax_flash_v2_tmp_bytes(shape, *sizes, **flags)
        if mode == NORMAL and not basic:
            workspace *= rows
    src = rng.normal(0, 3, shape).astype(data)
    arguments = {
        "dst_tensor": np.full(shape, 7, data),
        "exp_sum_tensor": np.full((rows, lanes(state, mode)), 7, state),
        "max_tensor": np.full((rows, lanes(state, mode)), 7, state),
        "src_tensor": src,
        "exp_max_tensor": np.full((rows, lanes(data, mode)), 7, data),
        "in_exp_sum_tensor": spread(rng.uniform(1, 50, rows), state, mode),
        "in_max_tensor": spread(rng.normal(8, 4, rows).astype(data), state, mode),
        "tiling": softmax_flash_v2_tiling(shape, *sizes, workspace, **flags),
        "is_update": update,
        "is_basic_block": basic,
        "config": SoftmaxConfig(mode=mode),
    }
    if counted is not None:
        arguments["softmax_shape_info"] = SoftMaxShapeInfo(rows, columns, rows, counted)
    if reduce_max:
        arguments["out_reduce_max"] = np.full((rows, 1), 7, state)
    if space:
        arguments["shared_tmp_buffer"] = np.full(workspace, 7, np.uint8)
    return arguments | changes


def expected(arguments):
    """What the independent model gives: name -> one number per row, dst as (rows, columns)."""
    src = arguments["src_tensor"]
    rows = src.size // src.shape[-1]
    info = arguments.get("softmax_shape_info")
    carried = [None, None]
    if arguments["is_update"]:
        carried = [arguments[name].reshape(rows, -1)[:, 0] for name in ("in_exp_sum_tensor", "in_max_tensor")]
    return softmax_flash_v2_model(
        src.reshape(rows, -1),
        *carried,
        state_dtype=arguments["exp_sum_tensor"].dtype,
        is_update=arguments["is_update"],
        is_basic_block=arguments["is_basic_block"],
        ori_src_k=None if info is None else info.ori_src_k,
    )


def bits(values):
    """The bits as integers, every NaN the same."""
    values = np.ascontiguousarray(values)
    return np.where(np.isnan(values), -1, values.view(f"u{values.itemsize}").astype(np.int64))


def ulps_apart(a, b):
    """Distance of two arrays in representable numbers; NaN equals NaN."""

    def ordered(values):
        whole = values.view(f"i{values.itemsize}").astype(np.int64)
        return np.where(whole < 0, -(whole & (2 ** (8 * values.itemsize - 1) - 1)), whole)

    assert a.dtype == b.dtype
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    same_nan = np.isnan(a) & np.isnan(b)
    return np.where(same_nan, 0, np.abs(ordered(a) - ordered(b)))


def assert_gives(arguments, result):
    """Every output holds `result`, in all lanes; exp_max and out_reduce_max only in an update."""
    for name, values in result.items():
        output = arguments.get(OUTPUTS[name])
        if output is None:
            continue
        seen = output.reshape(len(values), -1)
        wanted = values if name == "dst" else np.repeat(values[:, None], seen.shape[1], axis=1)
        assert seen.dtype == wanted.dtype
        np.testing.assert_array_equal(bits(seen), bits(wanted), err_msg=name)
