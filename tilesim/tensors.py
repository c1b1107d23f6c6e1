"""Tensors handed in: what is accepted, and how they reach the kernels as contiguous float32."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim._checks import one_of, whole_number
from tilesim.dtypes import BFLOAT16, HALF, DType
from tilesim.errors import DTypeError, InputError
from tilesim.interop import BFLOAT16_DTYPE, as_array
from tilesim.masks import MASKS, Window, normalise_window
from tilesim.workers import MOST_THREADS
from tilesim.workload import Workload

_NUMPY_TYPES = {HALF.name: np.dtype(np.float16), BFLOAT16.name: BFLOAT16_DTYPE}
_ACCEPTED = (np.dtype(np.float16), BFLOAT16_DTYPE, np.dtype(np.float32), np.dtype(np.float64))

LAYOUTS = {"BNSD": "(batch, heads, seq, head_dim)", "BSND": "(batch, seq, heads, head_dim)"}
"""Orders of the axes of tensors."""

DEFAULT_LAYOUT = "BNSD"


def in_layout(array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """Return a BNSD array in `layout`, or an array in `layout` as BNSD: one swap does both. Never copies."""
    return array if layout == DEFAULT_LAYOUT else array.swapaxes(1, 2)


def as_tensor(name: str, source: Any, layout: str = DEFAULT_LAYOUT) -> npt.NDArray[Any]:
    """Return `source` as a floating-point array (batch, heads, seq, head_dim), in the memory it lies in.

    Parameters
    ----------
    name : str
        What to call it in messages.
    source : array_like
        Anything with ``__array__`` or DLPack: float16, bfloat16, float32 or float64, any strides, any byte
        order, read-only or not.
    layout : {"BNSD", "BSND"}
        Order of its axes.

    Raises
    ------
    InputError
        If it is no array or not 4-D.
    DTypeError
        For integer, boolean, complex, object and other element types.
    """
    axes = LAYOUTS[layout]
    array = as_array(name, source)
    if array.dtype.newbyteorder("=") not in _ACCEPTED:
        rule = "must have dtype float16, bfloat16, float32 or float64"
        raise DTypeError(f"{name}.dtype", str(array.dtype), rule)
    if array.ndim != 4:
        raise InputError(f"{name}.shape", array.shape, f"must have the 4 axes {axes}")
    return in_layout(array, layout)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """Checked queries, keys and values, still in the types and in the memory they came in.

    Attributes
    ----------
    q : array (batch, heads, seq_q, head_dim)
    k : array (batch, kv_heads, seq_kv, head_dim)
    v : array (batch, kv_heads, seq_kv, head_dim_v)
    """

    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
    v: npt.NDArray[Any]

    def workload(self, mask: str, window: Window = None) -> Workload:
        """Return the workload of these shapes."""
        return _workload(
            (*self.q.shape, *self.k.shape[1:3], self.v.shape[3]),
            one_of("mask", mask, MASKS),
            normalise_window(window),
        )

    def notes(self, data: DType) -> tuple[str, ...]:
        """Return a line for each tensor that holds NaN or infinities, or values that `data` cannot hold."""
        lines = []
        for name in ("q", "k", "v"):
            array: npt.NDArray[Any] = getattr(self, name)
            nan_count = int(np.isnan(array).sum())
            inf_count = int(np.isinf(array).sum())
            if nan_count or inf_count:
                lines.append(f"{name} holds {nan_count} NaN and {inf_count} infinite values")
            with np.errstate(over="ignore", invalid="ignore"):
                overflow_count = int(np.isinf(to_data_type(array, data)).sum()) - inf_count
            if overflow_count:
                limit = f"{data.max_value:g}"
                lines.append(
                    f"{overflow_count} values of {name} exceed {limit} and become infinite in {data.name}"
                )
        return tuple(lines)


@functools.lru_cache(maxsize=16)
def _workload(sizes: tuple[int, ...], mask: str, window: Window) -> Workload:
    batch, heads, seq_q, head_dim, kv_heads, seq_kv, head_dim_v = sizes
    return Workload(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_kv=seq_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        mask=mask,
        window=window,
    )


def to_data_type(array: npt.NDArray[Any], data: DType) -> npt.NDArray[Any]:
    """Return `array` rounded once, ties to even, to the NumPy type of `data`."""
    return array.astype(_NUMPY_TYPES.get(data.name, np.dtype(np.float32)), copy=False)


def as_float32(array: npt.NDArray[Any], data: DType) -> npt.NDArray[np.float32]:
    """Return `array` for a kernel: C-contiguous float32, read-only, not yet rounded to `data`.

    float64 is rounded to a 16-bit `data` directly, since rounding twice, first to float32, can differ.
    """
    if array.dtype != np.float32:
        with np.errstate(over="ignore", invalid="ignore"):
            if data.itemsize < 4 < array.dtype.itemsize:
                array = to_data_type(array, data)
            array = array.astype(np.float32)
    # An array on a buffer or in a file may begin at any byte.
    result = np.ascontiguousarray(array if array.flags.aligned else array.copy()).view()
    result.flags.writeable = False
    return result


def check_tensors(q: Any, k: Any, v: Any, layout: str = DEFAULT_LAYOUT) -> Tensors:
    """Check queries, keys and values in `layout` against each other.

    Raises
    ------
    InputError
        If a tensor is no 4-D array or the shapes do not belong together; the message names both shapes.
    DTypeError
        For an element type that is no floating-point type.
    UnknownNameError
        For another layout.
    """
    one_of("layout", layout, LAYOUTS)
    arrays = Tensors(q=as_tensor("q", q, layout), k=as_tensor("k", k, layout), v=as_tensor("v", v, layout))
    _check_shapes(arrays.q.shape, arrays.k.shape, arrays.v.shape, layout)
    return arrays


@functools.lru_cache(maxsize=16)
def _check_shapes(
    q_shape: tuple[int, ...], k_shape: tuple[int, ...], v_shape: tuple[int, ...], layout: str
) -> None:
    q_seen, k_seen, v_seen = (_shape_in_layout(shape, layout) for shape in (q_shape, k_shape, v_shape))
    rules = (
        (k_shape[:3] == v_shape[:3], "v", v_seen, f"batch, kv_heads and seq must be those of k, {k_seen}"),
        (q_shape[0] == k_shape[0], "k", k_seen, f"batch must be that of q, {q_seen}"),
        (q_shape[3] == k_shape[3], "k", k_seen, f"head_dim must be that of q, {q_seen}"),
        (
            min(q_shape[1], k_shape[1]) > 0,
            "q, k",
            (q_seen, k_seen),
            "both must have at least 1 head",
        ),
        (
            k_shape[1] > 0 and q_shape[1] % k_shape[1] == 0,
            "k",
            k_seen,
            f"its {k_shape[1]} heads must divide the {q_shape[1]} heads of q without rest",
        ),
    )
    for holds, name, seen, rule in rules:
        if not holds:
            raise InputError(f"{name}.shape", seen, rule)


def _shape_in_layout(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    batch, heads, seq, head_dim = shape
    return shape if layout == DEFAULT_LAYOUT else (batch, seq, heads, head_dim)


def check_threads(threads: Any) -> int | None:
    """Return the number of worker threads, None for the default.

    Raises
    ------
    ConfigError
        If it is no integer >= 1.
    """
    return None if threads is None else whole_number("threads", threads, most=MOST_THREADS)


def check_scale(scale: Any, head_dim: int) -> float:
    """Return the factor of the scores: `scale`, or ``1 / sqrt(head_dim)`` for None.

    Raises
    ------
    InputError
        If it is no finite number.
    """
    if scale is None:
        if head_dim == 0:
            raise InputError("scale", None, "must be given where head_dim is 0: 1 / sqrt(0) has no value")
        return 1.0 / math.sqrt(head_dim)
    try:
        value = float(scale)
    except (TypeError, ValueError, OverflowError):
        raise InputError("scale", type(scale).__name__, "must be a number within float64") from None
    if isinstance(scale, bool | np.bool_ | str | bytes) or not np.isfinite(value):
        raise InputError("scale", scale, "must be a finite number")
    return value
