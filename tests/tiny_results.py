"""What kernels give on tiny inputs, to compare ways to run them: ``python tiny_results.py FILE``."""

import sys

import numpy as np

import tilesim as ts
from tilesim.kernels import elementwise, exp, rounding, rows
from tilesim.kernels._jit import jit_entry
from tilesim.precision import PRECISIONS


@jit_entry
def _each(values, out, kind):
    for i in range(values.size):
        out[i] = rounding.round_away(values[i], kind)


@jit_entry
def _round_array(values, out, kind):
    elementwise.round_array(values, out, kind)


@jit_entry
def exp_each(values, out):
    for i in range(values.size):
        out[i] = exp.exp_any(values[i])


@jit_entry
def _exp_row(scores, lanes):
    chunks, visible = (0, scores.size // rows.CHUNK), (0, scores.size - 5)
    rows.exponentials(scores, 0, chunks, visible, scores.size - 3, np.float32(0.5))
    rows.sum_and_round(scores, 0, chunks, visible, scores.size - 3, rounding.HALF_KIND, lanes, -1)


def attention_results(rng):
    """Every policy and mask: several tiles, rows that see nothing, infinity and NaN among the inputs."""
    q, k, v = (rng.standard_normal((1, 1, seq, 16)).astype(np.float32) for seq in (20, 18, 18))
    k[0, 0, 17, 0], v[0, 0, 16, 5] = -np.inf, np.nan
    for policy in PRECISIONS:
        for mask, window in (("causal", None), ("full", None), ("window", (3, 0))):
            options = {"mask": mask, "window": window, "tile": ts.Tile(kv_tile=10), "precision": policy}
            output, lse = ts.attention(q, k, v, **options, return_lse=True)
            yield f"{policy} {mask}", output
            yield f"{policy} {mask} lse", lse


def tiny_results():
    """Return results by name, as float32 arrays."""
    rng = np.random.default_rng(3)
    results = dict(attention_results(rng))
    # All signs, exponents and first fraction bits, with and without something behind them.
    patterns = np.arange(65536, dtype=np.uint32) << 16 | rng.integers(0, 3, 65536).astype(np.uint32) << 12
    patterns = patterns.view(np.float32)
    for name, kind in (("half", rounding.HALF_KIND), ("bfloat16", rounding.BFLOAT16_KIND)):
        even = np.empty_like(patterns)
        _round_array(patterns, even, kind)
        away = np.empty_like(patterns[::37])
        _each(patterns[::37].copy(), away, kind)
        results |= {f"{name} even": even, f"{name} away": away}
    arguments = rng.uniform(-110, 95, 1024).astype(np.float32)
    each = np.empty_like(arguments)
    exp_each(arguments, each)
    scores, lanes = -np.abs(arguments), np.zeros(64, np.float32)
    _exp_row(scores, lanes)
    return results | {"exp": each, "exp row": scores, "exp sums": lanes}


if __name__ == "__main__":
    np.savez(sys.argv[1], **tiny_results())
