"""Other processors, one thread, no compiler: ordinary tests in processes of their own.

Compiling for other processors takes minutes, so those runs wait for ``pytest --portability``.
"""

import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding
from softmax_calls import call
from test_softmax_flash_v2 import CASES
from tiny_results import tiny_results

from tilesim import engine, softmax_flash_v2
from tilesim.kernels._jit import DISABLED
from tilesim.kernels.attention import attention_worker
from tilesim.kernels.operator import softmax_operator

TESTS = Path(__file__).parent
GOLDEN = [
    f"test_softmax_flash_v2.py::test_golden_call_is_reproduced_bit_for_bit[{case['id']}]"
    for case in CASES
    if (case["data"], case["state"]) == ("float16", "float32")
]
COMPILED = [
    "test_portability.py::test_without_a_compiler_results_have_the_same_bits",
    "test_portability.py::test_compiled_kernels_call_no_library",
    "test_kernels_rounding.py",
    "test_kernels_operator.py",
    "test_kernels_exp.py",
    "test_engine.py::test_every_rounding_point_bit_by_bit",
    "test_engine.py::test_narrow_tiles_whose_rows_end_anywhere",
    "test_attention.py::test_every_kind_of_head_dim",
    *GOLDEN,
]
THREADS = [
    "test_engine.py::test_the_number_of_threads_changes_no_bit",
    "test_engine.py::test_threads_on_a_problem_large_enough_to_share",
    "test_engine.py::test_callers_in_several_threads_at_once",
    "test_attention.py::test_every_kind_of_head_dim",
    "test_kernels_operator.py",
    *GOLDEN,
]
INTERPRETED = [
    "test_kernels_operator.py",
    "test_kernels_rounding.py::test_half_even_at_the_edges",
    "test_kernels_rounding.py::test_half_away_at_the_edges",
    "test_engine.py::test_long_tiles_add_in_the_documented_order[512-512]",
    "test_attention.py::test_grouped_heads_read_their_own_key_head",
    *GOLDEN[::6],
]
AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
RUNS = {
    "generic": (COMPILED, {"NUMBA_CPU_NAME": "generic"}),
    "avx2": (COMPILED, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": AVX2}),
    "one thread": (THREADS, {"NUMBA_NUM_THREADS": "1"}),
    "no compiler": (INTERPRETED, {"NUMBA_DISABLE_JIT": "1"}),
}
NEEDS = {"generic": ["sse2"], "avx2": ["avx2", "fma", "f16c", "bmi2"]}
"""Features that a processor must have to stand in for the other one."""


def run(arguments, settings):
    """Run Python with these settings; return what it said if it failed."""
    command, env = [sys.executable, *map(str, arguments)], os.environ | settings
    done = subprocess.run(command, env=env, cwd=TESTS.parent, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def possible(name):
    features = binding.get_host_cpu_features()
    return all(features.get(feature) for feature in NEEDS.get(name, []))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs, two at a time: name -> future of what went wrong."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = {}
        for name, (selection, settings) in RUNS.items():
            nodes = [TESTS / node for node in selection]
            arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *nodes]
            if "NUMBA_CPU_NAME" in settings:
                # Other machine code: of no use to anybody later. A single thread runs the same as many.
                settings = settings | {"NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
            if possible(name):
                futures[name] = pool.submit(run, arguments, settings)
        yield futures


@pytest.mark.parametrize("name", RUNS)
def test_ordinary_tests_pass(name, request):
    if not request.config.getoption("--portability"):
        pytest.skip("takes minutes: --portability")
    runs = request.getfixturevalue("runs")
    if name not in runs:
        pytest.skip("not a processor that can stand in")
    assert runs[name].result() == ""


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_without_a_compiler_results_have_the_same_bits(tmp_path):
    file = tmp_path / "results.npz"
    assert run([TESTS / "tiny_results.py", file], {"NUMBA_DISABLE_JIT": "1"}) == ""
    with np.load(file) as interpreted:
        for name, wanted in tiny_results().items():
            seen = interpreted[name]
            np.testing.assert_array_equal(np.isnan(seen), np.isnan(wanted), err_msg=name)
            same = seen.view(np.int32) == wanted.view(np.int32)
            assert (same | np.isnan(wanted)).all(), name


SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
"""One entry of the symbol table of a 64-bit ELF object."""


def undefined_symbols(object_code):
    """Return the names that an object file takes from elsewhere."""
    sections = binding.ObjectFileRef.from_data(object_code).sections()
    content = {section.name(): bytes(section.data()) for section in sections if section.name()}
    names = content[b".strtab"]
    table = np.frombuffer(content[b".symtab"], SYMBOL)
    places = table["name"][(table["section"] == 0) & (table["name"] > 0)]
    return {names[place : names.index(b"\0", place)].decode() for place in places}


@pytest.mark.skipif(DISABLED or sys.platform != "linux", reason="reads the ELF objects in Numba's cache")
def test_compiled_kernels_call_no_library():
    """No SVML, BLAS, libm or rounding helper of the compiler: only Python, Numba's glue and memset."""
    engine.warm_up()
    softmax_flash_v2(**call())
    for kernel in (attention_worker, softmax_operator):
        for signature, compiled in kernel.overloads.items():
            cache = kernel._cache
            key = cache._index_key(signature, compiled.library.codegen)
            _, _, (object_code, _) = cache._cache_file.load(key)[0]
            symbols = undefined_symbols(object_code)
            assert "PyEval_SaveThread" in symbols
            foreign = {name for name in symbols if not name.startswith(("Py", "_Py", "numba_", "NRT_"))}
            assert foreign <= {"memset", "memcpy", "memmove"}


def test_importing_compiles_nothing_and_loads_no_plots():
    program = """
import importlib, pkgutil, sys
import numba, numpy
theirs = set(sys.modules)
import tilesim.kernels
for module in pkgutil.iter_modules(tilesim.kernels.__path__, "tilesim.kernels."):
    names = vars(importlib.import_module(module.name)).values()
    assert not any(getattr(value, "overloads", None) for value in names), module.name
loaded = {"matplotlib", "scipy"} & (set(sys.modules) - theirs)
assert not loaded, loaded
"""
    assert run(["-c", program], {}) == ""
