"""Everything at once: any problem, variant, tile, policy, layout and special values, all promises together.

The ordinary run keeps a slice of it; ``pytest tests/test_fuzz.py --fuzz`` goes on for about ten minutes.
"""

import dataclasses
import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import variant_problems

import tilesim as ts
from tilesim.tensors import in_layout

SPECIAL = (np.nan, np.inf, -np.inf, 1e4, -6e4, 1e-8)


@st.composite
def poisoned_problems(draw):
    """Draw a problem with a few special numbers among its queries, keys and values."""
    wide = draw(st.booleans())
    sizes = {"max_seq_q": 3, "max_seq_kv": 90, "max_dim": 70} if wide else {}
    problem = draw(variant_problems(**sizes))
    if wide and problem.v.size:
        problem = dataclasses.replace(problem, v=np.resize(problem.v, (*problem.v.shape[:3], 64)))
    for array in problem.tensors:
        for _ in range(draw(st.sampled_from([0, 0, 1, 3])) if array.size else 0):
            place = draw(st.integers(0, array.size - 1))
            array.reshape(-1)[place] = draw(st.sampled_from(SPECIAL))
    return problem


def check_numbers(problem, policy, layout):
    """Shapes, input left alone, any number of threads the same bits, NaN where the reference has it."""
    tensors = [np.ascontiguousarray(in_layout(x, layout)) for x in problem.tensors]
    before = [x.tobytes() for x in tensors]
    options = {**problem.arguments, "tile": problem.tile, "layout": layout, "return_lse": True}
    output, lse = ts.attention(*tensors, precision=policy, threads=1, **options)
    again, lse_again = ts.attention(*tensors, precision=policy, threads=3, **options)
    assert [x.tobytes() for x in tensors] == before
    assert (output.tobytes(), lse.tobytes()) == (again.tobytes(), lse_again.tobytes())
    assert in_layout(output, layout).shape == (*problem.q.shape[:3], problem.v.shape[3])
    del options["tile"]
    exact, exact_lse = ts.attention_reference(*tensors, **options)
    assert output.dtype == problem.q.dtype
    empty = np.isneginf(exact_lse)
    np.testing.assert_array_equal(in_layout(exact, layout)[empty], 0.0)
    if policy != "float":
        return
    # Where float64 meets NaN or infinity, or float32 overflows, only the kind of the result is compared.
    finite = np.isfinite(exact)
    tame = all(np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0.0) < 1e3 for x in tensors)
    if tame:
        assert (np.isnan(output.astype(np.float64)) <= ~finite).all()
        assert np.isfinite(output.astype(np.float64)[finite]).all()
        np.testing.assert_array_equal(np.isneginf(lse), empty)


def check_plans(problem, policy):
    """A simulation gives whole tables: JSON without NaN, tiles that add up, times that are numbers."""
    try:
        result = ts.simulate(
            *problem.tensors, tile=problem.tile, precision=policy, compare=(), threads=1,
            allow_over_budget=True, **problem.arguments,
        )  # fmt: skip
    except ts.TilesimError:
        return
    text = json.dumps(result.to_dict(), allow_nan=False)
    assert json.loads(text)["schema"] == 1
    tiles = result.tiles
    rows, columns = problem.q.shape[2], problem.k.shape[2]
    rectangle = -(-rows // problem.tile.softmax_rows) * -(-columns // problem.kv_tile)
    assert tiles.full + tiles.partial + tiles.skipped == problem.q.shape[0] * problem.q.shape[1] * rectangle
    assert result.device.time_us >= 0
    assert result.throughput.gflops >= 0


@settings(
    max_examples=max(300, settings.default.max_examples),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    problem=poisoned_problems(),
    policy=st.sampled_from(list(ts.PRECISIONS)),
    layout=st.sampled_from(["BNSD", "BSND"]),
)
def test_any_problem_keeps_every_promise(problem, policy, layout):
    check_numbers(problem, policy, layout)
    check_plans(problem, policy)
