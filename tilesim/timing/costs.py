"""What each step costs in cycles: a fixed part and work divided by a rate, all from the platform."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tilesim.memory.buffers import Launch
from tilesim.platform import Platform
from tilesim.softmax.tiling import is_basic_block
from tilesim.timing.program import (
    Program,
    SoftmaxTile,
    accumulate_program,
    alibi_program,
    around_softmax,
    combine_program,
    divide_program,
    keep_program,
    normalise_program,
    sink_program,
    softcap_program,
    softmax_program,
    take_program,
)
from tilesim.units import align_up, ceil_div

CUBE_EDGE = 16
"""Rows, columns and depth of the block that one cube cycle multiplies."""


def program_cycles(program: Program, platform: Platform) -> float:
    """Return the cycles of a vector program whose instructions depend on each other.

    Each instruction takes its repeats times the cycles of one, at least the shortest there is, and the next
    one waits until its result is there.
    """
    cycles, timing = platform.vector_cycles, platform.timing
    least, dependent = timing["vector_least_cycles"], timing["vector_dependent_cycles"]
    return sum(max(least, repeats * cycles[name]) + dependent for name, repeats in program)


class VectorCosts:
    """Cycles of the vector programs of one launch.

    Parameters
    ----------
    launch : Launch
        The configuration with nothing left open.
    platform : Platform
        A chip with timing figures.
    """

    def __init__(self, launch: Launch, platform: Platform) -> None:
        self.launch, self.platform = launch, platform
        self.data, self.state = launch.dtype("score"), launch.precision.state
        self.group = functools.lru_cache(maxsize=None)(self._group)

    def _group(self, rows: int, columns: int, update: bool, masked: bool) -> float:
        """Return the cycles of one row group: scaling, mask where needed, variant of the scores, softmax."""
        padded = align_up(columns, self.data.lanes)
        itemsize = self.data.itemsize
        basic = self.launch.layout.basic_block and rows % 8 == 0 and is_basic_block(rows, padded, itemsize)
        tile = SoftmaxTile(
            rows=rows,
            columns=padded,
            half_data=itemsize == 2,
            half_state=self.state.itemsize == 2,
            update=update,
            basic=basic,
            broadcast=self.launch.layout.state_mode == "NORMAL",
            reduced=columns,
        )
        programs = (
            around_softmax(rows, padded, itemsize, masked=masked),
            self._variant(rows, padded, itemsize),
            softmax_program(tile),
        )
        return sum(program_cycles(program, self.platform) for program in programs)

    def _variant(self, rows: int, columns: int, itemsize: int) -> Program:
        workload = self.launch.workload
        program: Program = ()
        if workload.softcap:
            program += softcap_program(rows, columns, itemsize)
        if workload.alibi:
            program += alibi_program(rows, columns, itemsize, both_sides=workload.band.right > 0)
        return program

    def endings(self, row_counts: set[int]) -> list[list[float]]:
        """Return the cycles of taking, accumulating and ending a task for the given numbers of rows."""
        width, itemsize = self.launch.workload.head_dim_v, self.launch.dtype("accumulator").itemsize
        end = normalise_program if self.launch.splits == 1 else keep_program
        tables = [[0.0] * (self.launch.vector_rows + 1) for _ in range(3)]
        for rows in row_counts - {0}:
            for table, program in zip(tables, (take_program, accumulate_program, end), strict=True):
                table[rows] = program_cycles(program(rows, width, itemsize), self.platform)
            if self.launch.workload.sinks:
                tables[0][rows] += program_cycles(sink_program(rows), self.platform)
        return tables

    def combine(self) -> Any:
        """Return how the splits are combined: all vector cores of the chip take equal shares of the rows."""
        from tilesim.kernels.pipeline import Combine

        workload, block = self.launch.workload, self.launch.tile.softmax_rows
        rows = workload.batch * workload.heads * workload.seq_q
        width, itemsize = workload.head_dim_v, self.data.itemsize
        sizes = range(block + 1)
        add = [program_cycles(combine_program(size, width), self.platform) for size in sizes]
        divide = [program_cycles(divide_program(size, width, itemsize), self.platform) for size in sizes]
        return Combine(
            rows=ceil_div(rows, self.platform.vector_cores),
            block=block,
            splits=self.launch.splits,
            split_bytes=self.launch.split_row_bytes,
            output_bytes=width * itemsize,
            add=np.array(add),
            divide=np.array(divide),
        )


def rates(platform: Platform, float_products: bool) -> Any:
    """Return the figures of a platform as the pipeline takes them."""
    from tilesim.kernels.pipeline import Rates

    t = platform.timing
    return Rates(
        l1_start=t["gm_to_l1_start_cycles"],
        l1_rate=t["gm_to_l1_bytes_per_cycle"],
        ub_start=t["gm_to_ub_start_cycles"],
        ub_rate=t["gm_to_ub_bytes_per_cycle"],
        out_start=t["ub_to_gm_start_cycles"],
        out_rate=t["ub_to_gm_bytes_per_cycle"],
        fixp_start=t["l0c_to_gm_start_cycles"],
        fixp_rate=t["l0c_to_gm_bytes_per_cycle"],
        l0_start=t["l1_to_l0_start_cycles"],
        l0a_rate=t["l1_to_l0a_bytes_per_cycle"],
        l0b_rate=t["l1_to_l0b_bytes_per_cycle"],
        cube_start=t["cube_start_cycles"],
        cube_blocks=t["float_cube_blocks_per_cycle" if float_products else "half_cube_blocks_per_cycle"],
        queue=t["queue_cycles"],
        matmul=t["matmul_call_cycles"],
        flag=t["flag_cycles"],
    )
