"""Attention in float64, NumPy only: the specification in code, and the yardstick of every precision.

For each query row, over the keys that it sees::

    score  = scale * (q . k), then softcap, ALiBi and mask as `tilesim.variant` says
    weight = exp(score - max(score))
    output = sum(weight * v) / sum(weight)
    lse    = max(score) + log(sum(weight))

A sink is one more score in max and sum, without a value. Rows are taken in blocks, and each block meets only
the keys that one of its rows sees, so memory stays O(seq * head_dim) and never holds a seq_q x seq_kv matrix.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import numpy.typing as npt

from tilesim.dtypes import HALF
from tilesim.masks import Band, Window
from tilesim.problem import Problem, read_problem
from tilesim.tensors import DEFAULT_LAYOUT, in_layout, to_data_type
from tilesim.variant import VariantOptions

Float64 = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Hidden = npt.NDArray[np.bool_] | None

_BLOCK_ROWS = 128  # enough for BLAS to run at full speed, few enough to skip most keys above the diagonal
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
    mask : {"causal", "full", "window"} or array_like
        What a query sees, aligned so that the last query sees the last key. An array stands for ``"full"``
        with that `attn_mask`.
    window : int or (left, right), optional
        Keys around the own position, both bounds inclusive; only with ``mask="window"``.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.
    layout : {"BNSD", "BSND"}
        Order of the axes of `q`, `k`, `v` and the output: (batch, heads, seq, head_dim) as written here, or
        (batch, seq, heads, head_dim).
    return_lse : bool
    **options
        align, attn_mask, key_lengths, softcap, alibi_slopes, sinks: see `tilesim.VariantOptions`.

    Returns
    -------
    output : float64 array (batch, heads, seq_q, head_dim_v)
        0 in a row that sees no key, or only keys with a score of -inf.
    lse : float64 array (batch, heads, seq_q), if `return_lse`
        Natural logarithm of the sum of exp(score), the sink's included; -inf in a row without either.

    Raises
    ------
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    ConfigError, UnknownNameError
        For a bad mask, window, layout or other option.

    Notes
    -----
    NaN and infinities reach the rows that see them and no others; a score of +inf makes its row NaN, since
    inf - inf has no value. A finite number of an additive mask never hides a key here, however large: what
    a narrow policy rounds to -inf is part of its error.

    Examples
    --------
    >>> import numpy as np
    >>> v = np.array([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
    >>> attention_reference(np.zeros((1, 1, 3, 4)), np.zeros((1, 1, 3, 4)), v)[0, 0, :, 0]
    array([1. , 1.5, 2. ])
    """
    problem = read_problem(q, k, v, mask=mask, window=window, scale=scale, layout=layout, options=options)
    exact = reference_of(problem)
    output = in_layout(exact.output, layout)
    return (output, exact.lse) if return_lse else output


class Reference(NamedTuple):
    """What the reference finds of a checked problem.

    Attributes
    ----------
    output : float64 array (batch, heads, seq_q, head_dim_v)
    lse : float64 array (batch, heads, seq_q)
    extremes : float64 array (3, batch, heads, seq_q)
        Least and greatest product q . k of each row with a key that it sees, and the least score that comes
        of one; finite ones only, and 0 if none is beyond. Keys that an additive mask hides once rounded to
        half do not count. 0 in heads where all are within the range of half.
    """

    output: Float64
    lse: Float64
    extremes: Float64


def reference_of(problem: Problem) -> Reference:
    """Return output, log-sum-exp and extreme products of a checked problem."""
    tensors, workload, variant = problem.tensors, problem.workload, problem.variant
    rows_shape = (workload.batch, workload.heads, workload.seq_q)
    output = np.empty((*rows_shape, workload.head_dim_v))
    lse = np.empty(rows_shape)
    extremes = np.zeros((3, *rows_shape))
    group = workload.heads // workload.kv_heads
    for batch, kv_head in np.ndindex(workload.batch, workload.kv_heads):
        length = workload.lengths[batch]
        keys = tensors.k[batch, kv_head, :length].astype(np.float64)
        values = tensors.v[batch, kv_head, :length].astype(np.float64)
        for head in range(kv_head * group, (kv_head + 1) * group):
            one = _Head(
                q=tensors.q[batch, head].astype(np.float64),
                k=keys,
                v=values,
                band=workload.band,
                scale=problem.scale,
                softcap=workload.softcap,
                slope=0.0 if variant.alibi_slopes is None else variant.alibi_slopes[batch, head],
                mask=None if variant.attn_mask is None else variant.attn_mask[batch, head],
                sink=-np.inf if variant.sinks is None else variant.sinks[head],
            )
            one.attend(output[batch, head], lse[batch, head], extremes[:, batch, head])
    return Reference(output, lse, extremes)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Head:
    """One query head and the keys and values that count for it.

    Attributes
    ----------
    q, k, v : float64 arrays (seq_q, head_dim), (length, head_dim), (length, head_dim_v)
    band : Band
    scale, softcap, slope, sink : float
        Neutral are a softcap and a slope of 0 and a sink of -inf.
    mask : array (seq_q, at least length) or None
    """

    q: Float64
    k: Float64
    v: Float64
    band: Band
    scale: float
    softcap: float
    slope: float
    sink: float
    mask: npt.NDArray[Any] | None

    def attend(self, output: Float64, lse: Float64, extremes: Float64) -> None:
        """Fill output (seq_q, head_dim_v), lse (seq_q,) and extremes (3, seq_q), block by block of rows."""
        seq_q, length = len(self.q), len(self.k)
        beyond = self._may_exceed_half()
        block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_SCORES // max(1, length)))
        for first_row in range(0, seq_q, block_rows):
            rows = slice(first_row, min(first_row + block_rows, seq_q))
            starts, stops = self.band.key_range(_indices(rows), seq_q, length)
            # Row ranges move to the right with the row, so the block sees what lies between its outer bounds.
            seen = slice(int(starts.min()), int(stops.max()))
            with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
                products = self.q[rows] @ self.k[seen].T
                scores = self._scores(products.copy() if beyond else products, rows, seen)
                hidden = self._hide(scores, rows, seen, starts, stops)
                if beyond:
                    extremes[:, rows] = self._extremes(products, scores, rows, seen, hidden)
                output[rows], lse[rows] = self._softmax(scores, hidden, self.v[seen])

    @property
    def _additive(self) -> npt.NDArray[Any] | None:
        """The mask, if its numbers are added to the scores."""
        return None if self.mask is None or self.mask.dtype == np.bool_ else self.mask

    def _may_exceed_half(self) -> bool:
        """Return whether the scale, or a bound of all products and scores, is beyond the range of half."""
        if self._additive is not None:
            return True
        with np.errstate(invalid="ignore", over="ignore"):
            longest = [np.sqrt(np.einsum("rd,rd->r", x, x).max(initial=0.0)) for x in (self.q, self.k)]
            product = longest[0] * longest[1]
            farthest = abs(self.slope) * (len(self.q) + len(self.k))
            bound = max(product, product * abs(self.scale) + farthest, abs(self.scale))
        return not bound <= HALF.max_value

    def _extremes(
        self, products: Float64, scores: Float64, rows: slice, seen: slice, hidden: Hidden
    ) -> Float64:
        """Return the extremes of a block of rows, see `Reference`, using up its products."""
        counted = np.isfinite(products) & np.isfinite(scores)
        if hidden is not None:
            counted &= ~hidden
        if self._additive is not None:
            counted &= ~np.isneginf(to_data_type(self._additive[rows, seen], HALF))
        products[~counted] = 0.0
        least_score = np.where(counted, scores, 0.0).min(axis=1, initial=0.0)
        return np.stack([products.min(axis=1, initial=0.0), products.max(axis=1, initial=0.0), least_score])

    def _scores(self, products: Float64, rows: slice, seen: slice) -> Float64:
        """Return the scores of a block of rows with a range of keys, mask aside, using up its products."""
        scores = products
        scores *= self.scale
        if self.softcap:
            scores /= self.softcap
            np.tanh(scores, out=scores)
            scores *= self.softcap
        if self.slope:
            own = _indices(rows) + self.band.shift(len(self.q), len(self.k))
            scores -= self.slope * np.abs(own[:, None] - _indices(seen))
        return scores

    def _hide(self, scores: Float64, rows: slice, seen: slice, starts: Index, stops: Index) -> Hidden:
        """Apply the mask to scores, set those of hidden keys to -inf, and return which are, None for none."""
        hidden: Hidden = None
        if starts.max() > seen.start or stops.min() < seen.stop:
            keys = _indices(seen)
            hidden = (keys < starts[:, None]) | (keys >= stops[:, None])
        if self.mask is not None:
            mask = self.mask[rows, seen]
            if mask.dtype == np.bool_:
                masked = ~mask
            else:
                bias = mask.astype(np.float64)
                scores += bias
                masked = np.isneginf(bias)
            hidden = masked if hidden is None else hidden | masked
        if hidden is not None:
            scores[hidden] = -np.inf
        return hidden

    def _softmax(self, scores: Float64, hidden: Hidden, v: Float64) -> tuple[Float64, Float64]:
        """Return output and lse of a block of rows, using up the scores."""
        top = np.maximum(scores.max(axis=1, initial=-np.inf), self.sink)
        # Without a finite score nothing is subtracted: -inf - (-inf) would turn "no weight" into NaN.
        shift = np.where(top == -np.inf, 0.0, top)
        scores -= shift[:, None]
        weights = np.exp(scores, out=scores)
        total = weights.sum(axis=1) + np.exp(self.sink - shift)
        output = _weighted_values(weights, hidden, v) / total[:, None]
        output[total == 0.0] = 0.0
        return output, top + np.log(total)


def _indices(span: slice) -> Index:
    return np.arange(span.start, span.stop, dtype=np.int64)


def _weighted_values(weights: Float64, hidden: Hidden, v: Float64) -> Float64:
    """Return ``sum(weight * v)`` of each row over the keys that it sees."""
    if hidden is None or np.isfinite(v).all():
        return weights @ v
    # A hidden key has weight 0, but 0 * inf and 0 * NaN are NaN: such values meet only rows that see them.
    finite = np.isfinite(v).all(axis=1)
    weighted = weights[:, finite] @ v[finite]
    for key in np.flatnonzero(~finite):
        seen = ~hidden[:, key]
        weighted[seen] += weights[seen, key, None] * v[key]
    return weighted
