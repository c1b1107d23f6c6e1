"""What happens to scores between scale and softmax, see `tilesim.variant`, and mask tensors read in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from tilesim.kernels._jit import intrinsic, jit, jit_apart
from tilesim.kernels.exp import tanh
from tilesim.kernels.rounding import FLOAT_KIND, round_even

NO_MASK = 0
BOOL_MASK = 1
FLOAT_MASK = 2
DOUBLE_MASK = 3
HALF_MASK = 4
BFLOAT16_MASK = 5
"""Element types of a mask tensor."""

FLOAT_BITS = 1 << 29
"""Last bit of a double that a float32 has, too."""


class MaskTensor(NamedTuple):
    """A mask of any shape and layout, by its address: a view with strides would be compiled for each kind.

    Attributes
    ----------
    kind : int
        `NO_MASK` or an element type.
    address : int
        Of the first element.
    batch_stride, head_stride, row_stride, key_stride : int
        Bytes from one element to the next along each axis; 0 where the mask is the same along it.
    heads : int
        Query heads of one batch element.
    """

    kind: Any
    address: Any
    heads: Any
    batch_stride: Any
    head_stride: Any
    row_stride: Any
    key_stride: Any


class ScoreVariant(NamedTuple):
    """What happens to scores.

    Attributes
    ----------
    active : bool
        Whether anything does, beside scaling. If so, the softmax takes the scores as they are then.
    scale : float32
        Factor of the scores; 1 where queries are scaled.
    kind : int
        Kind of `rounding.py` to which each step is rounded.
    capped : bool
        Whether scores are capped.
    softcap : float32
        Rounded to the data kind, where a small one becomes 0.
    slopes : float32 array (batch * heads), rounded to the data kind, or empty
    sinks : float32 array (batch * heads), or empty
    mask : MaskTensor
    """

    active: Any
    scale: Any
    kind: Any
    capped: Any
    softcap: Any
    slopes: Any
    sinks: Any
    mask: MaskTensor


def _loader(number: Any, kind: Any) -> Any:
    """Return an intrinsic that loads one number from an address."""

    def typed(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], number.as_pointer())
            return builder.load(pointer, align=1, typ=number)

        return kind(types.int64), codegen

    return intrinsic(typed)


_load_byte = _loader(ir.IntType(8), types.uint8)
_load_short = _loader(ir.IntType(16), types.uint16)
_load_float = _loader(ir.FloatType(), types.float32)
_load_long = _loader(ir.IntType(64), types.int64)


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    """Return the float32 with these 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def _double_of_bits(typing_context: Any, bits: Any) -> Any:
    """Return the float64 with these 64 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@jit
def _narrowed_double(bits: Any, kind: Any) -> Any:
    """Return a double, given by its bits, as a float32 that rounds to a kind as the double would.

    Rounding twice can differ: for the narrow kinds what a float32 has no bits for makes its last bit odd.
    """
    rest = bits & (FLOAT_BITS - 1)
    if kind != FLOAT_KIND and rest:
        bits = (bits - rest) | FLOAT_BITS
    return np.float32(_double_of_bits(bits))


@jit
def _widened_half(bits: Any) -> Any:
    """Return a half, given by its bits, as float32."""
    sign = np.float32(-1.0) if bits & 0x8000 else np.float32(1.0)
    if bits & 0x7C00 == 0x7C00:
        return np.float32(sign * (np.float32(np.nan) if bits & 0x3FF else np.float32(np.inf)))
    # Moved to the fields of a float the exponent is 112 too small; the product puts subnormals right as well.
    moved = _float_of_bits(np.int32((np.int32(bits) & 0x7FFF) << 13))
    return np.float32(sign * np.float32(moved * np.float32(2.0**112)))


@jit_apart
def _additive(mask: Any, address: Any, kind: Any) -> Any:
    """Return one number of an additive mask of elements `mask`, rounded to a kind."""
    if mask == FLOAT_MASK:
        number = _load_float(address)
    elif mask == DOUBLE_MASK:
        number = _narrowed_double(_load_long(address), kind)
    elif mask == HALF_MASK:
        number = _widened_half(_load_short(address))
    else:
        number = _float_of_bits(np.int32(np.int32(_load_short(address)) << 16))
    return round_even(number, kind)


@jit
def mask_row(mask: MaskTensor, query_head: Any, position: Any) -> Any:
    """Return the address of the mask's row for one query."""
    batch, head = query_head // mask.heads, query_head % mask.heads
    return mask.address + batch * mask.batch_stride + head * mask.head_stride + position * mask.row_stride


@jit
def hides(mask: MaskTensor, row: Any, key: Any, data_kind: Any) -> Any:
    """Return whether the mask hides a key from the query whose row of the mask begins at address `row`."""
    address = row + key * mask.key_stride
    if mask.kind == BOOL_MASK:
        return _load_byte(address) == 0
    return _additive(mask.kind, address, data_kind) == -np.inf


@jit_apart
def narrow_to_mask(mask: MaskTensor, row: Any, start: Any, stop: Any, data_kind: Any) -> Any:
    """Return the range from the first key of ``start ... stop - 1`` that the mask shows to the last."""
    while start < stop and hides(mask, row, start, data_kind):
        start += 1
    while start < stop and hides(mask, row, stop - 1, data_kind):
        stop -= 1
    return start, stop


@jit_apart
def _cap(scores: Any, softcap: Any, kind: Any) -> None:
    for column in range(scores.size):
        bent = tanh(np.float32(scores[column] / softcap))
        scores[column] = round_even(np.float32(softcap * bent), kind)


@jit_apart
def _add_slope(scores: Any, slope: Any, distance: Any, kind: Any) -> None:
    """Add the slope; `distance` is that of the first key to the query's own."""
    for column in range(scores.size):
        bias = round_even(np.float32(-slope * np.float32(abs(distance - column))), kind)
        scores[column] = round_even(np.float32(scores[column] + bias), kind)


@jit_apart
def _apply_mask(scores: Any, mask: MaskTensor, address: Any, kind: Any) -> None:
    """Hide or shift scores by the mask's numbers from an address on."""
    for column in range(scores.size):
        place = address + column * mask.key_stride
        if mask.kind == BOOL_MASK:
            if _load_byte(place) == 0:
                scores[column] = -np.inf
        else:
            bias = _additive(mask.kind, place, kind)
            # Not the sum: NaN at a hidden key must not reach the row.
            hidden = bias == -np.inf
            scores[column] = bias if hidden else round_even(np.float32(scores[column] + bias), kind)


@jit_apart
def alter_scores(
    scores: Any, variant: ScoreVariant, query_head: Any, position: Any, distance: Any, first_key: Any
) -> None:
    """Bring the scores of one row from products to what the softmax takes, in place.

    Parameters
    ----------
    scores : float32 array (1-D)
        Of neighbouring keys.
    variant : ScoreVariant
    query_head : int
        Counted over the whole batch.
    position : int
        Row of the query in its head.
    distance : int
        Key position of the query less that of the first score.
    first_key : int
        Key of the first score.
    """
    scale, kind = variant.scale, variant.kind
    for column in range(scores.size):
        scores[column] = round_even(np.float32(round_even(scores[column], kind) * scale), kind)
    if variant.capped:
        _cap(scores, variant.softcap, kind)
    if variant.slopes.size:
        _add_slope(scores, variant.slopes[query_head], distance, kind)
    if variant.mask.kind != NO_MASK:
        row = mask_row(variant.mask, query_head, position)
        _apply_mask(scores, variant.mask, row + first_key * variant.mask.key_stride, kind)
