"""The reference kernel's tile loop written a second time, in NumPy, for tests only.

One row after the other, one rounding after the other, no code shared with the package: queries and keys are
rounded to the data type, products are added in float32 in ascending order, and every tensor of the data or
state type is rounded where it is stored. exp is the correctly rounded one.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

F = np.float32


def even(x, kind):
    """Round to nearest, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "half":
            return np.asarray(x, F).astype(np.float16).astype(F)
        if kind == "bfloat16":
            return np.asarray(x, F).astype(ml_dtypes.bfloat16).astype(F)
    return np.asarray(x, F)


def away(x, kind):
    """Round to nearest, ties away from zero: on the float64 grid of the narrow type."""
    x = np.asarray(x, F)
    if kind == "float":
        return x
    bits, least, largest = (11, -14, 65504.0) if kind == "half" else (8, -126, 2.0**128 - 2.0**120)
    wide = np.abs(x.astype(np.float64))
    finite = np.isfinite(wide)
    exponent = np.maximum(np.frexp(np.where(finite, wide, 1.0))[1] - 1, least)
    spacing = np.ldexp(1.0, exponent - bits + 1)
    rounded = np.floor(np.where(finite, wide, 0.0) / spacing + 0.5) * spacing
    rounded = np.where(rounded > largest, np.inf, rounded)
    return np.copysign(np.where(finite, rounded, wide), x).astype(F)


def tree(values):
    """Add adjacent pairs until one value is left."""
    while len(values) > 1:
        values = (values[0::2] + values[1::2]).astype(F)
    return values[0]


def ordered_sum(p, basic=False):
    """Add float32 values in the order of the vector core's reductions.

    A basic block counts whole chunks of 64 columns, the generic path the columns there are.
    """
    counted = len(p) + -len(p) % 64 if basic else len(p)
    p = np.concatenate([p, np.zeros(-len(p) % 64, F)]).astype(F)
    if basic and counted == 1024:
        eights = np.array([tree(b) for b in p.reshape(128, 8)], F)
        eights = np.array([tree(b) for b in eights.reshape(16, 8)], F)
        return tree((eights[:8] + eights[8:]).astype(F))
    chunks = p.reshape(-1, 64)
    if counted >= 512:
        lanes = np.array([tree(block) for block in p[:512].reshape(64, 8)], F)
        rest = chunks[8:]
    else:
        lanes, rest = chunks[0], chunks[1:]
    for chunk in rest:
        lanes = (lanes + chunk).astype(F)
    return tree(lanes)


def exp(x):
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(np.asarray(x, np.float64)).astype(F)


def multiply_add(sums, factor, values, fused):
    """Add a product to float32 sums, rounded once or, without a fused instruction, twice.

    Of halves the product is exact in float32 and both are the same.
    """
    product = np.float64(factor) * values
    return (sums.astype(np.float64) + (product if fused else product.astype(F))).astype(F)


def narrow(x, kind):
    """Round float64 to a type once, ties to even."""
    types = {"half": np.float16, "bfloat16": ml_dtypes.bfloat16, "float": F}
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(types[kind]).astype(F)


def altered(score, one, row, keys, data):
    """Return scaled scores after softcap, ALiBi and an additive mask, each step rounded to the data type."""
    if one.softcap:
        cap = even(F(one.softcap), data)
        bent = np.tanh((score / cap).astype(np.float64)).astype(F)
        score = even(cap * bent, data)
    if one.slope:
        distance = one.distance[row, keys].astype(F)
        score = even(score + even(-narrow(one.slope, data) * distance, data), data)
    if one.bias.any():
        score = even(score + narrow(one.bias[row, keys], data), data)
    return score


def attention_head(q, k, v, *, kv_tile, data, splits=1, **options):
    """Return output and (max, sum) of one head.

    Several splits of the keys, of whole tiles each, are joined in float64 at the end. Options are those of
    `tile_loop`.
    """
    tiles = -(-len(k) // kv_tile)
    share = max(1, -(-tiles // splits)) * kv_tile
    parts = [
        tile_loop(
            q, k, v, range(low, min(low + share, len(k)), kv_tile), kv_tile=kv_tile, data=data,
            with_sink=low == 0, **options,
        )
        for low in range(0, len(k), share)
    ]  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        if len(parts) == 1:
            accumulators, states = parts[0]
            output = even(accumulators / away(states[:, 1:], data), data)
            return np.where(states[:, 1:] == 0, F(0), output), states
        top = np.max([states[:, 0] for _, states in parts], axis=0)
        shift = np.where(top == -np.inf, 0.0, top)
        factors = [np.exp(states[:, 0].astype(np.float64) - shift) for _, states in parts]
        total = sum(factor * states[:, 1] for factor, (_, states) in zip(factors, parts, strict=True))
        joined = sum(factor[:, None] * acc for factor, (acc, _) in zip(factors, parts, strict=True))
        output = narrow(np.where(total[:, None] == 0, 0.0, joined / total[:, None]), data)
        return output, np.stack([top, total.astype(F)], axis=1)


def tile_loop(
    q,
    k,
    v,
    tiles,
    *,
    visible,
    scale,
    data,
    state,
    kv_tile,
    basic=False,
    fused=True,
    variant=None,
    with_sink=True,
):
    """Return accumulators and (max, sum) after those tiles, each given by its first key.

    `visible` is a (seq_q, seq_kv) bool array, `variant` has what `altered` takes, and a sink.
    """
    q, k, v = (even(x, data) for x in (q, k, v))
    scale = even(F(scale), data)
    accumulators = np.zeros((len(q), v.shape[1]), F)
    states = np.zeros((len(q), 2), F)
    for row in range(len(q)):
        maximum, total, accumulator = F(-np.inf), F(0), np.zeros(v.shape[1], F)
        first = True
        if variant is not None and with_sink and variant.sink > -np.inf:
            maximum, total, first = away(F(variant.sink), state)[()], F(1), False
        for low in tiles:
            seen = visible[row, low : low + kv_tile]
            if not seen.any():
                continue
            score = np.zeros(len(seen), F)
            for d in range(q.shape[1]):
                score = multiply_add(score, q[row, d], k[low : low + kv_tile, d], fused)
            score = even(even(score, data) * scale, data)
            if variant is not None:
                score = altered(score, variant, row, slice(low, low + kv_tile), data)
            score = np.where(seen, score, F(-np.inf)).astype(F)
            new = max(maximum, score.max())
            p = exp((score - new).astype(F))
            total_new = ordered_sum(p, basic)
            p = away(p, data)
            partial = np.zeros(v.shape[1], F)
            for column in np.flatnonzero(seen):
                partial = multiply_add(partial, p[column], v[low + column], fused)
            partial = even(partial, data)
            if first:
                accumulator = partial
            else:
                rescale = exp(F(maximum - new))
                total_new = F(F(rescale * total) + total_new)
                accumulator = even(even(away(rescale, data) * accumulator, data) + partial, data)
            maximum, total, first = away(new, state)[()], away(total_new, state)[()], False
        states[row], accumulators[row] = (maximum, total), accumulator
    return accumulators, states


def is_basic(kv_tile, policy):
    """Whether 8 rows of that many columns are a basic block of the operator."""
    return kv_tile % 64 == 0 and 256 // policy.data.itemsize <= kv_tile < 2048
