"""Is head slower than base? A judgement on two lists of seconds; it measures nothing itself."""

import dataclasses
import math
import statistics

LEAST_SAMPLES = 7
"""Fewer on a side say too little: then no verdict but "inconclusive"."""
THRESHOLD = 0.10
FLOOR_S = 10e-6
FIRST_CALL_FACTOR = 3
"""A first sample this many times the largest of the others is the call that compiled or loaded."""

REGRESSION, NO_REGRESSION, FASTER = "regression", "no regression", "faster"
INCONCLUSIVE, ERROR, MISSING, NEW = "inconclusive", "error", "missing", "new"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What two lists of seconds say.

    `noise_interval` holds the ratio of the true medians, head over base. Each side's median lies between two
    of its own sorted samples (of 7 the second and the sixth) with 87.5% at least, whatever the distribution;
    the interval runs from low over high to high over low. One stall among seven samples moves neither end,
    and equal sides seem slower beyond it in at most 1 of 60 cases.
    """

    outcome: str
    reason: str
    median_ratio: float | None = None
    min_ratio: float | None = None
    noise_interval: tuple[float, float] | None = None


def judge(base_s, head_s, *, threshold=THRESHOLD, floor_s=FLOOR_S):
    """Return the verdict on steady samples of one configuration.

    A regression is more than `threshold` slower in the median, by `floor_s` at least, and by more than the
    noise can explain. "No regression" means that one beyond the threshold and the floor is ruled out.
    """
    sides = {"base": [*base_s], "head": [*head_s]}
    for side, samples in sides.items():
        fault = _fault(samples)
        if fault:
            return Verdict(outcome=ERROR, reason=f"{side}: {fault}; must be seconds above 0")
    base, head = ([float(seconds) for seconds in samples] for samples in sides.values())
    base_median_s, head_median_s = statistics.median(base), statistics.median(head)
    base_low, base_high = median_interval(base)
    head_low, head_high = median_interval(head)
    ratio = head_median_s / base_median_s
    low, high = noise = (head_low / base_high, head_high / base_low)

    def verdict(outcome, reason):
        return Verdict(
            outcome=outcome,
            reason=reason,
            median_ratio=ratio,
            min_ratio=min(head) / min(base),
            noise_interval=noise,
        )

    change = f"{ratio - 1:+.1%}, with noise {low - 1:+.1%} to {high - 1:+.1%}"
    difference_s = abs(head_median_s - base_median_s)
    most_s = (high - 1) * base_median_s
    if min(len(base), len(head)) < LEAST_SAMPLES:
        counts = f"samples: {len(base)} of base, {len(head)} of head"
        return verdict(INCONCLUSIVE, f"{counts}; take more samples, at least {LEAST_SAMPLES} a side")
    if ratio > 1 + threshold and low > 1 and difference_s >= floor_s:
        return verdict(REGRESSION, change)
    if ratio < 1 / (1 + threshold) and high < 1 and difference_s >= floor_s:
        return verdict(FASTER, change)
    if high <= 1 + threshold:
        return verdict(NO_REGRESSION, change)
    if most_s < floor_s:
        below = f"{difference_s * 1e6:.3g} us is below the floor of {floor_s * 1e6:g} us"
        return verdict(NO_REGRESSION, f"{ratio - 1:+.1%}, but {below}")
    return verdict(INCONCLUSIVE, f"{change}; take more samples (--rounds) or quieten the machine")


def _fault(samples):
    if not samples:
        return "no samples"
    for number, seconds in enumerate(samples, 1):
        try:
            good = math.isfinite(seconds) and seconds > 0
        except TypeError:
            good = False
        if not good:
            return f"sample {number} is {seconds!r}"
    return ""


def median_interval(samples):
    """Return two samples between which the true median lies with at least 87.5%; of few, the extremes."""
    ordered = sorted(samples)
    count = len(ordered)
    # The median lies below the sample of rank r (from 0) if at most r of `count` fair coins show heads.
    rank, tail, ways = 0, 1, 1
    while rank + 1 < count - rank - 1:
        ways = ways * (count - rank) // (rank + 1)
        tail += ways
        if 2 * 8 * tail > 2**count:
            break
        rank += 1
    return ordered[rank], ordered[-1 - rank]


def split_first_call(samples):
    """Return the seconds of the first call, or None if it was like the others, and the steady samples."""
    first, *others = samples or [None]
    try:
        apart = len(others) > 1 and first > FIRST_CALL_FACTOR * max(others)
    except TypeError:
        apart = False
    return (first, others) if apart else (None, [*samples])
