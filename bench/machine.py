"""What this machine can do at best: multiply-adds in registers, and reading memory."""

import threading

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tilesim.kernels.processor import BLOCK
from tilesim.placement import Placement, Seat

CHAINS = 16 if BLOCK.lanes == 16 else 10
"""Independent sums: enough to hide the latency of an FMA, few enough to stay in registers."""
STEPS = 2_000_000
PEAK_FLOPS = 2 * CHAINS * BLOCK.lanes * STEPS
READ_BYTES = 2**28


@intrinsic
def _multiply_adds(typing_context, steps):
    """Run `steps` rounds of one FMA on each chain, all in registers; the result keeps them alive."""

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.FloatType(), BLOCK.lanes)
        index = ir.IntType(64)
        name = f"llvm.fma.v{BLOCK.lanes}f32"
        module = builder.module
        fma = module.globals.get(name) or ir.Function(module, ir.FunctionType(vector, [vector] * 3), name)
        factor = ir.Constant(vector, [0.5] * BLOCK.lanes)
        entry = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(index)
        sums = [builder.phi(vector) for _ in range(CHAINS)]
        added = [builder.call(fma, [total, factor, total]) for total in sums]
        following = builder.add(step, index(1))
        step.add_incoming(index(0), entry)
        step.add_incoming(following, loop)
        for number, (total, value) in enumerate(zip(sums, added, strict=True)):
            total.add_incoming(ir.Constant(vector, [1.0 + number] * BLOCK.lanes), entry)
            total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, args[0]), loop, done)
        builder.position_at_end(done)
        total = added[0]
        for value in added[1:]:
            total = builder.fadd(total, value)
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.float32(types.intp), codegen


@njit(nogil=True)
def _peak(steps):
    return _multiply_adds(steps)


@njit(nogil=True)
def _read(values):
    # Integers, so that the compiler may keep as many partial results in registers as it likes.
    found = 0
    for at in range(values.size):
        found |= values[at]
    return found


def _together(jobs):
    # What the machine can do at best: a processor for each thread.
    shared = Placement(len(jobs), caller_takes_part=False)

    def run(function, arguments):
        shared.settle(Seat())
        function(*arguments)

    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fma_peak(threads):
    """Return a call of ``threads * PEAK_FLOPS`` floating-point operations."""
    return lambda: _together([(_peak, (STEPS,))] * threads)


def read_bandwidth(threads):
    """Return a call that reads READ_BYTES once."""
    parts = np.array_split(np.ones(READ_BYTES // 8, np.int64), threads)
    return lambda: _together([(_read, (part,)) for part in parts])
