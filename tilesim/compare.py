"""How far an output is from the reference: absolute, relative and ulp errors, overflow, underflow and NaN."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim.dtypes import HALF
from tilesim.errors import InputError

_CHUNK = 2**17  # elements compared at a time: temporaries of 1 MiB stay in cache

Float64 = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorStats:
    """Errors of an output against a float64 reference, over all elements.

    The error of an element is ``|output - reference|``. Two NaN, or two infinities of the same sign, agree:
    error 0. A NaN on one side only makes the error NaN; an infinity on one side only makes it infinite. None
    of the figures drops such an element.

    Attributes
    ----------
    max_abs : float
        Largest error; NaN if any error is NaN.
    rms : float
        Square root of the mean squared error.
    max_rel : float
        Largest error divided by ``|reference|``. Where the reference is 0, an exact 0 counts as 0 and
        anything else as infinite.
    max_ulp_half : float
        Largest error in units of the spacing of half at the reference: 2**-24 below 2**-14, at most 32 from
        32,768 on. Correct rounding to half is within 0.5.
    cosine_distance : float
        1 less the cosine of the angle between output and reference, each taken as one long vector; computed
        without the cancellation of that formula. Elements that agree on NaN or infinity are left out. 0 when
        both vectors are zero, 1 when one is, NaN with any element that is not finite on one side.
    overflow_count : int
        Elements that are infinite where the reference is finite.
    underflow_count : int
        Elements that are 0 where the reference is not. There is no threshold: values too small for the
        output's type count too.
    nan_count : int
        Elements that are NaN where the reference is not.
    count : int
        Elements compared. Without any, all figures are 0.
    stalled_sums, underflowed_exp_max : int or None
        Updates that left the running sum as it was, and rescale factors that became 0, on the way to the
        output, in a sample of rows: see `tilesim.Effects`. None where nothing is known of the way.
    dominant_effect : str or None
        Rounding point that makes the largest error of its own, likewise.
    """

    max_abs: float
    rms: float
    max_rel: float
    max_ulp_half: float
    cosine_distance: float
    overflow_count: int
    underflow_count: int
    nan_count: int
    count: int
    stalled_sums: int | None = None
    underflowed_exp_max: int | None = None
    dominant_effect: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types; a figure that is not finite becomes None, as JSON knows none."""
        fields = dataclasses.asdict(self)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in fields.items()
        }


def error_stats(output: npt.ArrayLike, reference: npt.ArrayLike) -> ErrorStats:
    """Compare `output` with `reference` element by element, in float64.

    Parameters
    ----------
    output : array_like
        Any floating-point type.
    reference : array_like
        Of the same shape, float64 or exact in it.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    got, expected = np.asarray(output), np.asarray(reference)
    if got.shape != expected.shape:
        raise InputError("output.shape", got.shape, f"must be that of the reference, {expected.shape}")
    max_abs = max_rel = max_ulp = rms = 0.0
    overflow_count = underflow_count = nan_count = 0
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        for out, ref in _chunks(got, expected):
            error = _errors(out, ref)
            max_abs = np.maximum(max_abs, error.max())
            max_rel = np.maximum(max_rel, _ratio(error, np.abs(ref)).max())
            max_ulp = np.maximum(max_ulp, _ratio(error, np.nan_to_num(HALF.ulp(ref), nan=1.0)).max())
            rms = np.hypot(rms, _norm(error))
            overflow_count += int((np.isinf(out) & np.isfinite(ref)).sum())
            underflow_count += int(((out == 0) & (ref != 0)).sum())
            nan_count += int((np.isnan(out) & ~np.isnan(ref)).sum())
        cosine_distance = _cosine_distance(got, expected)
    return ErrorStats(
        max_abs=float(max_abs),
        rms=float(rms) / math.sqrt(max(1, got.size)),
        max_rel=float(max_rel),
        max_ulp_half=float(max_ulp),
        cosine_distance=cosine_distance,
        overflow_count=overflow_count,
        underflow_count=underflow_count,
        nan_count=nan_count,
        count=got.size,
    )


def _chunks(output: npt.NDArray[Any], reference: npt.NDArray[Any]) -> Iterator[tuple[Float64, Float64]]:
    flat_output, flat_reference = output.reshape(-1), reference.reshape(-1)
    for first in range(0, output.size, _CHUNK):
        part = slice(first, first + _CHUNK)
        yield flat_output[part].astype(np.float64), flat_reference[part].astype(np.float64)


def _agree(output: Float64, reference: Float64) -> npt.NDArray[np.bool_]:
    same: npt.NDArray[np.bool_] = (output == reference) | (np.isnan(output) & np.isnan(reference))
    return same


def _errors(output: Float64, reference: Float64) -> Float64:
    return np.where(_agree(output, reference), 0.0, np.abs(output - reference))


def _ratio(error: Float64, unit: Float64) -> Float64:
    """Return ``error / unit`` with 0 / x = 0 and inf / x = inf for every x, infinite and zero included."""
    return np.where((error == 0.0) | np.isinf(error), error, error / unit)


def _norm(values: Float64) -> float:
    """Return the Euclidean norm; scaling by the largest value keeps squares from over- and underflowing."""
    top = float(np.abs(values).max(initial=0.0))
    if top == 0.0 or not math.isfinite(top):
        return top
    return top * float(np.linalg.norm(values / top))


def _cosine_distance(output: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Half the squared distance of the two vectors once they have length 1."""
    output_norm = reference_norm = 0.0
    for out, ref in _finite_chunks(output, reference):
        output_norm = float(np.hypot(output_norm, _norm(out)))
        reference_norm = float(np.hypot(reference_norm, _norm(ref)))
    if output_norm == 0.0 or reference_norm == 0.0:
        return 0.0 if output_norm == reference_norm else abs(output_norm - reference_norm) * 0.0 + 1.0
    squared_distance = 0.0
    for out, ref in _finite_chunks(output, reference):
        difference = out / output_norm - ref / reference_norm
        squared_distance += float(difference @ difference)
    return squared_distance / 2


def _finite_chunks(
    output: npt.NDArray[Any], reference: npt.NDArray[Any]
) -> Iterator[tuple[Float64, Float64]]:
    """Yield the elements without those that agree on NaN or infinity; others that are not finite are NaN."""
    for out, ref in _chunks(output, reference):
        kept = ~(_agree(out, ref) & ~np.isfinite(ref))
        pair = (np.where(np.isfinite(x), x, np.nan)[kept] for x in (out, ref))
        yield next(pair), next(pair)
