"""What attention does with its scores beyond scale and named mask: mask tensors, softcap, ALiBi, sinks.

Between scale and softmax, in this order and each step rounded to the data type of the policy::

    s = score * scale
    s = softcap * tanh(s / softcap)                     if softcap is not 0
    s = s - slope * |position of the query - key|       with ALiBi
    s = s + mask                                        with an additive mask
    s = -inf                                            where a mask, or a length, hides the key

A key is hidden, whatever it holds, where a boolean mask is False, where an additive mask is -inf once rounded
to the data type, and outside of what the named mask and `key_lengths` let a query see.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilesim.errors import ConfigError, DTypeError, InputError
from tilesim.interop import as_array
from tilesim.workload import Workload

_ADDITIVE = tuple(np.dtype(name) for name in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
_CHECKED_ROWS = 256
"""Rows of a mask tensor checked at a time: never a temporary of the size of the whole."""


class VariantOptions(TypedDict, total=False):
    """Keyword arguments that `attention`, `simulate` and `attention_reference` share.

    Attributes
    ----------
    align : {"bottom-right", "top-left"}
        Where queries stand among the keys if there are more or fewer of them: by default the last query at
        the last key.
    attn_mask : array_like
        Broadcastable to (batch, heads, seq_q, seq_kv). Boolean: True = attend. float16, bfloat16, float32 or
        float64: added to the scaled scores, -inf hides a key. Applies beside the named mask. It is read in
        place, a chunk at a time.
    key_lengths : sequence of int (batch)
        Keys that count in each batch element; aligned bottom-right, the last query stands at the last of
        them.
    softcap : float
        Scaled scores s become ``softcap * tanh(s / softcap)``; 0 means none.
    alibi_slopes : array_like, broadcastable to (batch, heads)
        Adds ``-slope * |position of the query - key|``.
    sinks : array_like, broadcastable to (heads,)
        A logit per head that takes part in maximum and sum, and so in `lse`, but has no value. -inf: none.
    """

    align: str
    attn_mask: Any
    key_lengths: Any
    softcap: float
    alibi_slopes: Any
    sinks: Any


WORKLOAD_OPTIONS = ("align", "key_lengths", "softcap")
"""Variant options that `Workload` holds under the same name."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """The tensors of a variant, checked; what needs no tensors stands in `Workload`.

    Attributes
    ----------
    attn_mask : array (batch, heads, seq_q, seq_kv) or None
        Boolean or floating-point view of what was handed in; axes that were broadcast have stride 0.
    alibi_slopes : float64 array (batch, heads) or None
    sinks : float64 array (heads,) or None
    """

    attn_mask: npt.NDArray[Any] | None = None
    alibi_slopes: npt.NDArray[np.float64] | None = None
    sinks: npt.NDArray[np.float64] | None = None


PLAIN = Variant()
"""No variant."""


def check_variant(workload: Workload, options: VariantOptions) -> tuple[Workload, Variant]:
    """Return the workload with all that a variant adds to it, and the variant's tensors.

    Raises
    ------
    ConfigError, UnknownNameError
        For a bad alignment, length or softcap.
    InputError
        For tensors whose shape does not fit, or that hold NaN or +inf.
    DTypeError
        For a mask that is neither boolean nor floating-point: an integer 1 might mean keep or drop.
    """
    if not options:
        return workload, PLAIN
    unknown = sorted(set(options) - set(VariantOptions.__annotations__))
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    given: dict[str, Any] = {name: options[name] for name in WORKLOAD_OPTIONS if name in options}  # type: ignore[literal-required]
    if given.get("key_lengths") is not None:
        given["key_lengths"] = _check_lengths(given["key_lengths"])
    shape = (workload.batch, workload.heads, workload.seq_q, workload.seq_kv)
    mask = _check_mask(options.get("attn_mask"), shape)
    slopes = _check_numbers("alibi_slopes", options.get("alibi_slopes"), shape[:2], allow_minus_inf=False)
    sinks = _check_numbers("sinks", options.get("sinks"), shape[1:2], allow_minus_inf=True)
    kind = None if mask is None else "bool" if mask.dtype == np.bool_ else "additive"
    workload = dataclasses.replace(
        workload, attn_mask=kind, alibi=slopes is not None, sinks=sinks is not None, **given
    )
    return workload, Variant(attn_mask=mask, alibi_slopes=slopes, sinks=sinks)


def _check_lengths(source: Any) -> tuple[Any, ...]:
    lengths = as_array("key_lengths", source)
    if lengths.ndim != 1:
        raise InputError("key_lengths.shape", lengths.shape, "must be (batch,)")
    return tuple(lengths.tolist())


def _check_mask(source: Any, shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    if source is None:
        return None
    mask = as_array("attn_mask", source)
    mask = mask.astype(mask.dtype.newbyteorder("="), copy=False)
    if mask.dtype != np.bool_ and mask.dtype not in _ADDITIVE:
        rule = "must be boolean (True = attend) or floating-point (added to the scores)"
        raise DTypeError("attn_mask.dtype", str(mask.dtype), rule)
    try:
        view = np.broadcast_to(mask, shape)
    except ValueError:
        rule = f"must broadcast to (batch, heads, seq_q, seq_kv) = {shape}"
        raise InputError("attn_mask.shape", mask.shape, rule) from None
    if mask.dtype != np.bool_:
        _refuse_bad_numbers(mask)
    return view


def _refuse_bad_numbers(mask: npt.NDArray[Any]) -> None:
    rows = mask.reshape(1, -1) if mask.ndim < 2 else mask
    for place in np.ndindex(rows.shape[:-2]):
        for first in range(0, rows.shape[-2], _CHECKED_ROWS):
            part = rows[place][first : first + _CHECKED_ROWS]
            bad = np.isnan(part) | np.isposinf(part)
            if bad.any():
                row, column = (int(index) for index in np.argwhere(bad)[0])
                where = "attn_mask" + str([*place, first + row, column])
                raise InputError(where, float(part[row, column]), "must be finite or -inf")


def _check_numbers(
    name: str, source: Any, shape: tuple[int, ...], *, allow_minus_inf: bool
) -> npt.NDArray[np.float64] | None:
    if source is None:
        return None
    axes = "(batch, heads)" if len(shape) == 2 else "(heads,)"
    numbers = as_array(name, source)
    if numbers.dtype == np.bool_:
        raise DTypeError(name, str(numbers.dtype), "must be real numbers, one a head")
    try:
        numbers = np.broadcast_to(numbers.astype(np.float64, casting="same_kind"), shape)
    except TypeError:
        raise DTypeError(name, type(source).__name__, "must be real numbers") from None
    except ValueError:
        seen = getattr(source, "shape", type(source).__name__)
        raise InputError(f"{name}.shape", seen, f"must broadcast to {axes} = {shape}") from None
    allowed = np.isfinite(numbers) | (np.isneginf(numbers) & allow_minus_inf)
    if not allowed.all():
        rule = "must hold finite numbers" + (" or -inf" if allow_minus_inf else "")
        raise InputError(name, float(numbers[~allowed][0]), rule)
    return numbers


def standard_slopes(heads: int) -> npt.NDArray[np.float64]:
    """Return the slopes of the paper that introduced ALiBi: ``2 ** (-8 * (h + 1) / heads)`` for head h."""
    return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)


def require_no_variant(name: str, value: Any) -> None:
    """Refuse a mask given twice.

    Raises
    ------
    ConfigError
    """
    if value is not None:
        raise ConfigError(name, type(value).__name__, "must be None where mask itself is an array")
