"""The hostile cases of ``data/hostile_cases.json``: recipes run as they stand, and attention on them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tilesim as ts
from tilesim.engine import run_kernel
from tilesim.problem import read_problem

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parent / "data/hostile_cases.json").read_text())
}
COVERED: set[tuple[str, str]] = set()
"""(case, variant) of every test."""

FLOATS = ("float", "float-data-float-state")
HALVES = ("half-data-float-state", "half-data-half-state")


@dataclasses.dataclass(frozen=True)
class Variant:
    identifier: str
    name: str
    expected: dict
    params: dict

    def recipe(self):
        """Run the recipe and return its names."""
        names = {"np": np}
        exec(CASES[self.identifier]["input_recipe"], names)
        return SimpleNamespace(**names)


def hostile(identifier, *names):
    """Run a test once for each of those variants of a case; for all if none is named."""
    known = {variant["name"]: variant for variant in CASES[identifier]["variants"]}
    chosen = names or tuple(known)
    COVERED.update((identifier, name) for name in chosen)
    variants = [
        Variant(identifier, name, known[name]["expected"], known[name].get("params", {})) for name in chosen
    ]
    return pytest.mark.parametrize("case", variants, ids=lambda case: f"{case.identifier}: {case.name}")


def four_axes(x):
    x = np.asarray(x)
    return x[(None,) * (4 - x.ndim)]


def attend(q, k, v, precision="float", mask="full", **options):
    """Return output and lse of tensors with any number of leading axes, in the axes of `q`."""
    axes = np.asarray(q).ndim
    tensors = [four_axes(x) for x in (q, k, v)]
    output, lse = ts.attention(*tensors, mask=mask, precision=precision, return_lse=True, **options)
    lead = (0,) * (4 - axes)
    return output[lead], lse[lead]


def stated(scores, v, keep=None, **options):
    """Return tensors and options whose scores are exactly those: one head a row, queries of 1."""
    scores, v = np.asarray(scores), np.asarray(v)
    q = np.ones((1, len(scores), 1, 1))
    k = scores[None, :, :, None]
    values = np.broadcast_to(v, (1, len(scores), *v.shape))
    if keep is not None:
        options["attn_mask"] = keep[None, :, None, :]
    return (q, k, values), {"mask": "full", "scale": 1.0, **options}


def explicit(scores, v, precision="float", kv_tile=512, keep=None, **options):
    """Return output (rows, head_dim_v) and lse (rows) of explicit scores."""
    tensors, options = stated(scores, v, keep, **options)
    tile = ts.Tile(kv_tile=kv_tile)
    output, lse = ts.attention(*tensors, precision=precision, tile=tile, return_lse=True, **options)
    return output[0, :, 0], lse[0, :, 0]


def state(scores, v, precision, kv_tile=512, keep=None):
    """Return (max, sum), each (rows), of explicit scores."""
    tensors, options = stated(scores, v, keep)
    mask, scale = options.pop("mask"), options.pop("scale")
    problem = read_problem(*tensors, mask=mask, window=None, scale=scale, options=options)
    run = run_kernel(problem, tile=ts.Tile(kv_tile=kv_tile), policy=ts.PRECISIONS[precision])
    return run.row_max[0, :, 0], run.row_sum[0, :, 0]


def simulate(scores, v, precision, **options):
    tensors, options = stated(scores, v, **options)
    return ts.simulate(*tensors, precision=precision, compare=(), allow_over_budget=True, **options)
