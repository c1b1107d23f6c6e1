"""Which rounding point causes the error: a sample of rows, run in float64 with one kind of rounding each.

The tile loop of the kernel is written here once more, in float64 and NumPy, with every rounding point a
switch. The error that one point causes alone is the difference between a run with only that point and a run
with none. Errors of several points add up about as squares do, so the largest one says what to change.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim.dtypes import FLOAT
from tilesim.kernel_inputs import split_keys
from tilesim.precision import Precision
from tilesim.problem import Problem
from tilesim.tensors import to_data_type
from tilesim.tile import Tile

Float64 = npt.NDArray[np.float64]

EFFECTS = {
    "inputs": "rounding of queries, keys and values",
    "scores": "rounding of scores",
    "probabilities": "rounding of probabilities",
    "state": "rounding of the running maximum and sum",
    "exp_max": "rounding of the rescale factor exp_max",
    "accumulator": "rounding of partial products and accumulator",
    "output": "rounding of the final sum and of the output",
}
"""Rounding points that are switched one by one."""

SAMPLE_HEADS = 8
SAMPLE_ROWS = 8
"""Query heads at most, and rows of each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effects:
    """What each rounding point does to a sample of rows.

    Attributes
    ----------
    rms : mapping of str to float
        Name in `EFFECTS` -> rms error of the output if only that point rounds; inf if it overflows.
    rows : int
        Rows of the sample that see a key.
    updates : int
        Tiles, over all these rows, that add weight to a state carried in.
    stalled_sums : int
        Those of them that left the running sum as it was: their weight is lost.
    underflowed_exp_max : int
        Those of them whose rescale factor became 0: all that came before is lost.
    underflowed_probabilities : int
        Probabilities that became 0.
    overflowed_rows : int
        Rows whose scores or running sum became infinite; with several splits of the keys, one count each.
    """

    rms: dict[str, float]
    rows: int
    updates: int
    stalled_sums: int
    underflowed_exp_max: int
    underflowed_probabilities: int
    overflowed_rows: int

    @property
    def dominant(self) -> str | None:
        """The rounding point with the largest error of its own; None if none makes any."""
        name = max(self.rms, key=lambda name: self.rms[name])
        return name if self.rms[name] > 0.0 else None

    def describe(self) -> str:
        """Return one line: what dominates, and what was lost on the way."""
        if self.dominant is None:
            return "no rounding point makes an error"
        error = self.rms[self.dominant]
        size = "overflows" if math.isinf(error) else f"alone makes an rms error of {error:.2e}"
        counts = (
            (self.stalled_sums, f"of {self.updates:,} updates left the running sum unchanged"),
            (self.underflowed_exp_max, f"of {self.updates:,} rescale factors became 0"),
            (self.underflowed_probabilities, "probabilities became 0"),
            (self.overflowed_rows, "rows had infinite scores or sums"),
        )
        lost = "".join(f"; {count:,} {text}" for count, text in counts if count)
        return f"{EFFECTS[self.dominant]} dominates: it {size} in {self.rows:,} sampled rows{lost}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types; an error that is not finite becomes None."""
        rms = {name: error if math.isfinite(error) else None for name, error in self.rms.items()}
        return dataclasses.asdict(self) | {"rms": rms, "dominant": self.dominant, "text": self.describe()}


def find_effects(problem: Problem, tile: Tile, policy: Precision) -> Effects | None:
    """Return what each rounding point of a policy does to a sample of rows.

    None where nothing can be said: float data, whose error is that of binary32 arithmetic and no rounding
    point's, or a sample without a finite row that sees a key.
    """
    if policy.data == FLOAT:
        return None
    counts = _Counts()
    squares = dict.fromkeys(EFFECTS, 0.0)
    rows = 0
    for batch, head in _sampled_heads(problem):
        sample = _Sample(problem, batch, head, tile, policy)
        with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
            exact = sample.run(frozenset())
            if not (sample.rows_seeing and np.isfinite(exact).all()):
                continue
            rows += sample.rows_seeing
            sample.run(frozenset(EFFECTS), counts)
            for name in EFFECTS:
                error = sample.run(frozenset({name})) - exact
                squares[name] += float(np.square(np.where(np.isfinite(error), error, np.inf)).sum())
    if not rows:
        return None
    elements = rows * max(1, problem.workload.head_dim_v)
    return Effects(
        rms={name: math.sqrt(total / elements) for name, total in squares.items()},
        rows=rows,
        **dataclasses.asdict(counts),
    )


def _sampled_heads(problem: Problem) -> list[tuple[int, int]]:
    heads = problem.workload.heads
    places = _spread(problem.workload.batch * heads, SAMPLE_HEADS)
    return [divmod(int(place), heads) for place in places]


def _spread(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most that many of ``0 ... count - 1``, evenly spread, both ends among them."""
    places = np.linspace(0, count - 1, min(most, count)).astype(np.int64)
    # Not `np.unique`, which loads masked arrays: a noticeable part of a short run.
    return np.array(sorted(set(places.tolist())), np.int64)


@dataclasses.dataclass(kw_only=True)
class _Counts:
    updates: int = 0
    stalled_sums: int = 0
    underflowed_exp_max: int = 0
    underflowed_probabilities: int = 0
    overflowed_rows: int = 0


class _Sample:
    """Some rows of one head."""

    def __init__(self, problem: Problem, batch: int, head: int, tile: Tile, policy: Precision) -> None:
        workload, variant, tensors = problem.workload, problem.variant, problem.tensors
        length = workload.lengths[batch]
        rows = _spread(workload.seq_q, SAMPLE_ROWS)
        kv_head = head // (workload.heads // workload.kv_heads)
        self.q = tensors.q[batch, head, rows].astype(np.float64)
        self.k = tensors.k[batch, kv_head, :length].astype(np.float64)
        self.v = tensors.v[batch, kv_head, :length].astype(np.float64)
        self.policy, self.scale, self.softcap = policy, problem.scale, workload.softcap
        self.kv_tile = max(1, min(tile.kv_tile, workload.seq_kv))
        self.splits = split_keys(workload.seq_kv, self.kv_tile, tile.kv_splits)
        start, stop = workload.band.key_range(rows, workload.seq_q, length)
        keys = np.arange(length)
        self.shown = (keys >= start[:, None]) & (keys < stop[:, None])
        self.bias: Float64 | None = None
        if variant.attn_mask is not None:
            mask = variant.attn_mask[batch, head, rows, :length]
            if mask.dtype == np.bool_:
                self.shown &= mask
            else:
                self.bias = mask.astype(np.float64)
                self.shown &= ~np.isneginf(self.bias)
        # What a narrow type rounds to -inf hides its key there.
        self.counted = self.shown
        if self.bias is not None:
            with np.errstate(over="ignore"):
                self.counted = self.shown & ~np.isneginf(self._narrow(self.bias))
        self.slope = 0.0 if variant.alibi_slopes is None else float(variant.alibi_slopes[batch, head])
        self.distance = np.abs(rows[:, None] + workload.band.shift(workload.seq_q, length) - keys)
        self.sink = -np.inf if variant.sinks is None else float(variant.sinks[head])
        # What no row sees must not spoil a product with probability 0.
        self.v[~self.shown.any(axis=0)] = 0.0

    @property
    def rows_seeing(self) -> int:
        """Rows that see a key."""
        return int(self.shown.any(axis=1).sum())

    def _narrow(self, x: Any) -> Float64:
        """Round to the data type."""
        return to_data_type(x, self.policy.data).astype(np.float64)

    def run(self, points: frozenset[str], counts: _Counts | None = None) -> Float64:
        """Return the output with rounding at those points only."""

        def at(point: str, x: Float64) -> Float64:
            return self._narrow(x) if point in points else x

        scores = self._scores(points)
        values = at("inputs", self.v)
        parts = [
            self._tiles(points, scores, values, int(low), int(high), counts)
            for low, high in zip(self.splits[:-1], self.splits[1:], strict=True)
        ]
        top = np.max([maximum for maximum, _, _ in parts], axis=0)
        if len(parts) == 1:
            _, total, accumulator = parts[0]
            denominator = at("output", total)
        else:
            factors = [np.exp(maximum - np.where(top == -np.inf, 0.0, top)) for maximum, _, _ in parts]
            pairs = list(zip(factors, parts, strict=True))
            total = denominator = np.sum([factor * part[1] for factor, part in pairs], axis=0)
            accumulator = np.sum([factor[:, None] * part[2] for factor, part in pairs], axis=0)
        return at("output", np.where(total[:, None] == 0.0, 0.0, accumulator / denominator[:, None]))

    def _scores(self, points: frozenset[str]) -> Float64:
        """Return what the softmax takes, -inf where a key is hidden."""

        def rounded(x: Any) -> Any:
            return self._narrow(x) if "scores" in points else x

        q, k = (self._narrow(x) if "inputs" in points else x for x in (self.q, self.k))
        scores: Float64 = rounded(rounded(q @ k.T) * rounded(np.float64(self.scale)))
        if self.softcap:
            cap = rounded(np.float64(self.softcap))
            scores = rounded(cap * np.tanh(scores / cap))
        if self.slope:
            scores = rounded(scores - rounded(rounded(np.float64(self.slope)) * self.distance))
        if self.bias is not None:
            scores = rounded(scores + rounded(self.bias))
        return np.where(self.shown, scores, -np.inf)

    def _tiles(
        self, points: frozenset[str], scores: Float64, values: Float64, low: int, high: int, counts: Any
    ) -> tuple[Float64, Float64, Float64]:
        """Return maximum, sum and accumulator after the tiles of keys ``low ... high - 1``."""

        def at(point: str, x: Float64) -> Float64:
            if point not in points:
                return x
            kind = self.policy.state if point == "state" else self.policy.data
            return to_data_type(x, kind).astype(np.float64)

        sink = self.sink if low == 0 else -np.inf
        maximum = at("state", np.full(len(scores), sink))
        total = np.where(maximum == -np.inf, 0.0, 1.0)
        accumulator = np.zeros((len(scores), values.shape[1]))
        for first in range(low, min(high, scores.shape[1]), self.kv_tile):
            tile = slice(first, min(first + self.kv_tile, high))
            top = np.maximum(maximum, scores[:, tile].max(axis=1))
            shift = np.where(top == -np.inf, 0.0, top)
            exact = np.exp(scores[:, tile] - shift[:, None])
            rescale = np.exp(maximum - shift)
            carried, weight = rescale * total, exact.sum(axis=1)
            probabilities, factor = at("probabilities", exact), at("exp_max", rescale)
            partial = at("accumulator", probabilities @ values[tile])
            accumulator = at("accumulator", at("accumulator", factor[:, None] * accumulator) + partial)
            maximum, total = at("state", top), at("state", carried + weight)
            if counts is not None:
                update = (carried > 0.0) & (weight > 0.0)
                counts.updates += int(update.sum())
                counts.stalled_sums += int((update & (total == at("state", carried))).sum())
                counts.underflowed_exp_max += int((update & (factor == 0.0)).sum())
                counts.underflowed_probabilities += int(((exact > 0.0) & (probabilities == 0.0)).sum())
        if counts is not None:
            lost = (np.isneginf(scores[:, low:high]) & self.counted[:, low:high]).any(axis=1)
            counts.overflowed_rows += int((lost | ~(np.isfinite(total) & (maximum < np.inf))).sum())
        return maximum, total, accumulator
