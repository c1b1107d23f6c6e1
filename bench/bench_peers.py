"""tilesim against other attention kernels: one process per contender, interleaved rounds, medians.

Run ``pytest bench/bench_peers.py``; peers come with ``pip install 'tilesim[bench]'`` and are left out where
they are missing. Rates are useful GFLOP/s; ``of peak`` is the share of what the multiply-add units did in
the same rounds. On AMD processors PyTorch's matrix library skips its AVX-512 path; the contender "AVX-512
forced" answers its processor check with yes, which shows how much of a ratio is that dispatch alone.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
import pytest
from contenders import THREADS

import tilesim as ts

ROUNDS = 9
PAUSE_S = 0.05
"""Between two contenders: the threads of a matrix library spin for a while after a call."""

SHAPES = {
    "1x8x1024x128-causal": (1, 8, 8, 1024, 1024, 128, True),
    "1x8x1024x128-full": (1, 8, 8, 1024, 1024, 128, False),
    "1x32x512x128-causal": (1, 32, 32, 512, 512, 128, True),
    "1x4x4096x128-causal": (1, 4, 4, 4096, 4096, 128, True),
    "1x1x8192x64-full": (1, 1, 1, 8192, 8192, 64, False),
}
HEAD_DIMS = {f"1x8x1024x{d}-full": (1, 8, 8, 1024, 1024, d, False) for d in (16, 32, 60, 64, 80, 96, 256)}
DECODE = {
    "8x32x1x128-kv4096": (8, 32, 32, 1, 4096, 128, False),
    "1x32x1x128-kv32768-gqa8": (1, 32, 8, 1, 32768, 128, False),
}
SMALL = {"1x2x256x64-full": (1, 2, 2, 256, 256, 64, False)}

OWN = (
    "tilesim float",
    "tilesim half-data-float-state",
    "tilesim half-data-half-state",
    "tilesim bfloat16-data-float-state",
)
PEERS = ("PyTorch SDPA", "PyTorch SDPA, AVX-512 forced", "ONNX Runtime MHA", "NumPy", "JAX")
SIMULATORS = ("Pallas interpret", "Pallas TPU interpret", "Triton interpreter")

FORCE_SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"


@pytest.fixture(scope="module")
def forced_library():
    """A library whose functions stand in for the matrix library's processor check."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "force.c"), Path(folder, "force.so")
        source.write_text(FORCE_SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        yield library


class Contender:
    """A process that runs one kernel on demand."""

    def __init__(self, name, problem, forced_library):
        # Some machines pin OpenBLAS to an older core type; the peer must run as it is shipped.
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
        }
        environment["OMP_NUM_THREADS"] = environment["OPENBLAS_NUM_THREADS"] = str(THREADS)
        if name.endswith("forced"):
            environment["LD_PRELOAD"] = str(forced_library)
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("contenders.py")), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.seconds = []
        self.missing = self._ask(json.dumps(problem)).get("missing")
        if name.endswith("forced") and forced_library is None:
            self.missing = "no compiler for the stand-in"

    def _ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {"missing": "process ended"}

    def run(self):
        self.seconds.append(self._ask("run")["seconds"])

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def compare(benchmark, shape, names, forced_library, rounds=ROUNDS):
    """Time all contenders in turn, `rounds` times; the benchmark's own figure is the first one's call."""
    fields = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "causal")
    problem = dict(zip(fields, shape, strict=True))
    contenders = {name: Contender(name, problem, forced_library) for name in names}
    alive = {name: contender for name, contender in contenders.items() if contender.missing is None}
    first, *others = alive.values()

    def one_round():
        for other in others:
            time.sleep(PAUSE_S)
            other.run()
        time.sleep(PAUSE_S)

    benchmark.pedantic(first.run, setup=one_round, rounds=rounds)
    for contender in contenders.values():
        contender.close()
    medians = {name: statistics.median(contender.seconds) for name, contender in alive.items()}
    mask = "causal" if problem.pop("causal") else "full"
    _report(benchmark, ts.Workload(mask=mask, **problem), medians)
    for name, contender in contenders.items():
        if contender.missing is not None:
            print(f"left out {name}: {contender.missing}")


def _report(benchmark, workload, medians):
    info = benchmark.extra_info
    peak_s = medians.pop("FMA peak", None)
    read_s = medians.pop("read bandwidth", None)
    rates = {name: workload.useful_flops / seconds / 1e9 for name, seconds in medians.items()}
    for name, rate in rates.items():
        info[f"{name} GFLOP/s"] = round(rate, 1)
    own = next(iter(rates.values()))
    if peak_s is not None:
        peak = THREADS * machine.PEAK_FLOPS / peak_s / 1e9
        info["FMA peak GFLOP/s"] = round(peak, 1)
        info["of peak"] = round(own / peak, 3)
    if read_s is not None:
        size_bytes = 4 * workload.batch * workload.kv_heads * workload.seq_kv * 2 * workload.head_dim
        bandwidth = machine.READ_BYTES / read_s / 1e9
        info["read bandwidth GB/s"] = round(bandwidth, 1)
        info["of bandwidth"] = round(size_bytes / next(iter(medians.values())) / 1e9 / bandwidth, 3)
    for name, rate in rates.items():
        info[f"first / {name}"] = round(own / rate, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_five_shapes(benchmark, shape, forced_library):
    compare(benchmark, SHAPES[shape], (*OWN, *PEERS, "FMA peak"), forced_library)


@pytest.mark.parametrize("shape", HEAD_DIMS)
def test_head_dims(benchmark, shape, forced_library):
    compare(benchmark, HEAD_DIMS[shape], ("tilesim float", "FMA peak"), forced_library)


@pytest.mark.parametrize("shape", DECODE)
def test_decode(benchmark, shape, forced_library):
    names = ("tilesim float", "PyTorch SDPA", "NumPy", "read bandwidth")
    compare(benchmark, DECODE[shape], names, forced_library)


@pytest.mark.parametrize("shape", SMALL)
def test_tile_simulators(benchmark, shape, forced_library):
    compare(benchmark, SMALL[shape], ("tilesim float", *SIMULATORS), forced_library, rounds=7)
