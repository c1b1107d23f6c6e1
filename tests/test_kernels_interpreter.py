"""What stands in for compiled code: multiply-add with one rounding, and additions that threads share."""

import threading
from fractions import Fraction

import numpy as np
import pytest

from tilesim.kernels.counter import fetch_add
from tilesim.kernels.fused import fused_multiply_add
from tilesim.kernels.interpreter import interpreted

EXPONENTS = {np.float32: 60, np.float64: 250}


def numbers(rng, dtype, count):
    powers = rng.integers(-EXPONENTS[dtype], EXPONENTS[dtype], count)
    return (rng.standard_normal(count) * 2.0**powers).astype(dtype)


def nearest(exact, dtype):
    """The number of a type next to a fraction, ties to even."""
    close = dtype(float(exact))
    around = [np.nextafter(close, dtype(-np.inf)), close, np.nextafter(close, dtype(np.inf))]
    around = [x for x in around if np.isfinite(x)]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), x.view(f"i{x.itemsize}") & 1))


@pytest.mark.parametrize("dtype", EXPONENTS)
@pytest.mark.parametrize("kind", ["any", "cancels", "tie"])
def test_multiply_add_rounds_once(dtype, kind, rng):
    a, b, c = (numbers(rng, dtype, 2000) for _ in range(3))
    if kind == "cancels":
        with np.errstate(over="ignore"):
            c = (-a * b * (1 + rng.integers(-3, 4, a.size) * 2.0 ** -rng.integers(5, 50, a.size))).astype(
                dtype
            )
    if kind == "tie":
        # Half of the last place of c, and a little more or less: rounding the sum twice goes wrong here.
        b = (np.spacing(np.abs(c)) / a / 2 * rng.choice([1, 1 + 2.0**-20, 1 - 2.0**-20], a.size)).astype(
            dtype
        )
    usable = np.isfinite(c)
    a, b, c = a[usable], b[usable], c[usable]
    got = fused_multiply_add(a, b, c)
    assert got.dtype == dtype
    for x, y, z, seen in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if abs(exact) < Fraction(float(np.finfo(dtype).max)):
            assert seen == nearest(exact, dtype), (x, y, z)


@pytest.mark.parametrize("dtype", EXPONENTS)
def test_multiply_add_of_special_values(dtype):
    inf, nan = np.inf, np.nan
    cases = [(0, inf, 1, nan), (inf, 1, 0, inf), (inf, 1, -inf, nan), (nan, 1, 1, nan), (1, 1, -inf, -inf)]
    cases += [(-0.0, 1, -0.0, -0.0), (2, 3, -6, 0.0), (0, -1, 0, 0.0)]
    a, b, c, wanted = np.array(cases, dtype).T
    with np.errstate(invalid="ignore"):
        got = fused_multiply_add(a, b, c)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[-3:]), np.signbit(wanted[-3:]))


def test_threads_never_take_the_same_number():
    take = interpreted(getattr(fetch_add, "_defn", fetch_add))
    counter, taken = np.zeros(3, np.int64), []

    def work():
        for _ in range(300):
            taken.append(int(take(counter, 1, 2)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(0, 2400, 2))
    assert counter.tolist() == [0, 2400, 0]
