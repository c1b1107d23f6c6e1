"""The tiled attention kernel on real tensors: output, and log-sum-exp on request."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import numpy as np
import numpy.typing as npt

from tilesim.masks import Window
from tilesim.precision import DEFAULT_PRECISION, Precision, precision
from tilesim.problem import read_problem
from tilesim.tensors import DEFAULT_LAYOUT, check_threads, in_layout
from tilesim.tile import Tile
from tilesim.variant import VariantOptions

_precision = precision


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = ...,
    window: Window = ...,
    precision: str | Precision = ...,
    scale: float | None = ...,
    tile: Tile | None = ...,
    threads: int | None = ...,
    layout: str = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[VariantOptions],
) -> npt.NDArray[Any]: ...


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = ...,
    window: Window = ...,
    precision: str | Precision = ...,
    scale: float | None = ...,
    tile: Tile | None = ...,
    threads: int | None = ...,
    layout: str = ...,
    return_lse: Literal[True],
    **options: Unpack[VariantOptions],
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]: ...


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = "causal",
    window: Window = None,
    precision: str | Precision = DEFAULT_PRECISION,
    scale: float | None = None,
    tile: Tile | None = None,
    threads: int | None = None,
    layout: str = DEFAULT_LAYOUT,
    return_lse: bool = False,
    **options: Unpack[VariantOptions],
) -> npt.NDArray[Any] | tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Run tiled FlashAttention-2 with the rounding points of a precision policy.

    Parameters
    ----------
    q : array_like (batch, heads, seq_q, head_dim)
    k : array_like (batch, kv_heads, seq_kv, head_dim)
    v : array_like (batch, kv_heads, seq_kv, head_dim_v)
        float16, bfloat16, float32 or float64, in any mix: each is rounded to the data type of the policy.
        Query head h reads key head ``h // (heads // kv_heads)``.
    mask : {"causal", "full", "window"} or array_like
        What a query sees, aligned so that the last query sees the last key. An array stands for ``"full"``
        with that `attn_mask`.
    window : int or (left, right), optional
        Keys around the own position, both bounds inclusive; only with ``mask="window"``.
    precision : str or Precision
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.
    tile : Tile, optional
        8 x 512 by default. `kv_tile` changes the order of operations, hence rounding.
    threads : int, optional
        Worker threads, as many as Numba is set to use by default; the result is the same for any number.
    layout : {"BNSD", "BSND"}
        Order of the axes of `q`, `k`, `v` and the output: (batch, heads, seq, head_dim) as written here, or
        (batch, seq, heads, head_dim).
    return_lse : bool
    **options
        align, attn_mask, key_lengths, softcap, alibi_slopes, sinks: see `tilesim.VariantOptions`.

    Returns
    -------
    output : array (batch, heads, seq_q, head_dim_v) of the dtype of `q`
        A row that sees no key gives 0.
    lse : float32 array (batch, heads, seq_q), if `return_lse`
        Natural logarithm of the sum of exp(scaled score) of each row; -inf for a row that sees no key.

    Raises
    ------
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    ConfigError, UnknownNameError
        For a bad mask, window, policy, layout or other option.

    Examples
    --------
    >>> import numpy as np
    >>> q = np.ones((1, 1, 4, 8), np.float16)
    >>> attention(q, q, q).shape
    (1, 1, 4, 8)
    """
    from tilesim.engine import run_kernel

    policy = _precision(precision)
    problem = read_problem(q, k, v, mask=mask, window=window, scale=scale, layout=layout, options=options)
    run = run_kernel(problem, tile=Tile.given(tile), policy=policy, threads=check_threads(threads))
    output = in_layout(cast_like(run.output, problem.tensors.q), layout)
    return (output, run.lse) if return_lse else output


def cast_like(output: npt.NDArray[np.float32], q: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `output` in the dtype of `q`, in native byte order."""
    if q.dtype == output.dtype:
        return output
    with np.errstate(over="ignore", invalid="ignore"):
        return output.astype(q.dtype.newbyteorder("="), copy=False)
