"""Attention in float64, NumPy only: the specification in code, and the yardstick of every precision.

For each query row, over the keys that it sees::

    score  = scale * (q . k)
    weight = exp(score - max(score))
    output = sum(weight * v) / sum(weight)
    lse    = max(score) + log(sum(weight))

Rows are taken in blocks, and each block meets only the keys that one of its rows sees, so memory stays
O(seq * head_dim) and never holds a seq_q x seq_kv matrix.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from tilesim.masks import Band, Window
from tilesim.problem import Problem, read_problem
from tilesim.tensors import DEFAULT_LAYOUT, in_layout
from tilesim.variant import VariantOptions

Float64 = npt.NDArray[np.float64]

_BLOCK_ROWS = 256  # enough for BLAS to run at full speed, few enough to skip most keys above the diagonal
_BLOCK_SCORES = 2**21  # 16 MiB of float64


@overload
def attention_reference(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = ...,
    window: Window = ...,
    scale: float | None = ...,
    layout: str = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[VariantOptions],
) -> Float64: ...


@overload
def attention_reference(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = ...,
    window: Window = ...,
    scale: float | None = ...,
    layout: str = ...,
    return_lse: Literal[True],
    **options: Unpack[VariantOptions],
) -> tuple[Float64, Float64]: ...


def attention_reference(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = "causal",
    window: Window = None,
    scale: float | None = None,
    layout: str = DEFAULT_LAYOUT,
    return_lse: bool = False,
    **options: Unpack[VariantOptions],
) -> Float64 | tuple[Float64, Float64]:
    """Return attention computed in float64 from the tensors as they are, without any other rounding.

    Parameters
    ----------
    q : array_like (batch, heads, seq_q, head_dim)
    k : array_like (batch, kv_heads, seq_kv, head_dim)
    v : array_like (batch, kv_heads, seq_kv, head_dim_v)
        float16, bfloat16, float32 or float64, in any mix. Query head h reads key head
        ``h // (heads // kv_heads)``.
    mask : {"causal", "full", "window"}
        What a query sees, aligned so that the last query sees the last key.
    window : int or (left, right), optional
        Keys around the own position, both bounds inclusive; only with ``mask="window"``.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.
    layout : {"BNSD", "BSND"}
        Order of the axes of `q`, `k`, `v` and the output: (batch, heads, seq, head_dim) as written here, or
        (batch, seq, heads, head_dim).
    return_lse : bool

    Returns
    -------
    output : float64 array (batch, heads, seq_q, head_dim_v)
        0 in a row that sees no key, or only keys with a score of -inf.
    lse : float64 array (batch, heads, seq_q), if `return_lse`
        Natural logarithm of the sum of exp(score); -inf in a row that sees no key.

    Raises
    ------
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    ConfigError, UnknownNameError
        For a bad mask, window or layout.

    Notes
    -----
    NaN and infinities reach the rows that see them and no others; a score of +inf makes its row NaN, since
    inf - inf has no value.

    Examples
    --------
    >>> import numpy as np
    >>> v = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    >>> attention_reference(np.zeros((1, 1, 3, 4)), np.zeros((1, 1, 3, 4)), v)[0, 0, :, 0]
    array([1. , 1.5, 2. ])
    """
    problem = read_problem(q, k, v, mask=mask, window=window, scale=scale, layout=layout, options=options)
    output, lse = reference_of(problem)
    output = in_layout(output, layout)
    return (output, lse) if return_lse else output


def reference_of(problem: Problem) -> tuple[Float64, Float64]:
    """Return output (batch, heads, seq_q, head_dim_v) and log-sum-exp of a checked problem."""
    tensors, workload, factor = problem.tensors, problem.workload, problem.scale
    rows_shape = (workload.batch, workload.heads, workload.seq_q)
    output = np.empty((*rows_shape, workload.head_dim_v))
    lse = np.empty(rows_shape)
    group = workload.heads // workload.kv_heads
    for batch, kv_head in np.ndindex(workload.batch, workload.kv_heads):
        keys = tensors.k[batch, kv_head].astype(np.float64)
        values = tensors.v[batch, kv_head].astype(np.float64)
        for head in range(kv_head * group, (kv_head + 1) * group):
            queries = tensors.q[batch, head].astype(np.float64)
            _head(queries, keys, values, workload.band, factor, output[batch, head], lse[batch, head])
    return output, lse


def _head(
    q: Float64, k: Float64, v: Float64, visible: Band, scale: float, output: Float64, lse: Float64
) -> None:
    """Fill output (seq_q, head_dim_v) and lse (seq_q,) of one head, block by block of query rows."""
    seq_q, seq_kv = len(q), len(k)
    block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_SCORES // seq_kv))
    for first_row in range(0, seq_q, block_rows):
        rows = np.arange(first_row, min(first_row + block_rows, seq_q), dtype=np.int64)
        starts, stops = visible.key_range(rows, seq_q, seq_kv)
        if (stops <= starts).all():
            output[rows], lse[rows] = 0.0, -np.inf
            continue
        # Row ranges move to the right with the row, so the block sees what lies between its outer bounds.
        seen = slice(starts.min(), stops.max())
        output[rows], lse[rows] = _rows(
            q[rows], k[seen], v[seen], starts - seen.start, stops - seen.start, scale
        )


def _rows(
    q: Float64,
    k: Float64,
    v: Float64,
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    scale: float,
) -> tuple[Float64, Float64]:
    """Return output and lse of query rows of which row i sees keys ``starts[i]`` to ``stops[i] - 1``."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        scores = (q @ k.T) * scale
        if starts.max() > 0 or stops.min() < len(k):
            key = np.arange(len(k))
            scores[(key < starts[:, None]) | (key >= stops[:, None])] = -np.inf
        top = scores.max(axis=1)
        # Without a finite score nothing is subtracted: -inf - (-inf) would turn "no weight" into NaN.
        weights = np.exp(
            np.subtract(scores, np.where(top == -np.inf, 0.0, top)[:, None], out=scores), out=scores
        )
        total = weights.sum(axis=1)
        weighted = _weighted_values(weights, v, starts, stops)
        return weighted / np.where(total == 0.0, 1.0, total)[:, None], top + np.log(total)


def _weighted_values(
    weights: Float64, v: Float64, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> Float64:
    """Return ``sum(weight * v)`` of each row over the keys that it sees."""
    if np.isfinite(v).all():
        return weights @ v
    # A hidden key has weight 0, but 0 * inf and 0 * NaN are NaN: such values need each row's own keys.
    rows = [
        weights[i, start:stop] @ v[start:stop]
        for i, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]
    return np.stack(rows)
