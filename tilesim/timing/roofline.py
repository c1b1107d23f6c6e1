"""Lower bounds of a launch from peak rates alone: matrix unit, L2 and HBM."""

from __future__ import annotations

import dataclasses
from typing import Any

from tilesim.memory.buffers import Launch
from tilesim.platform import Platform

BLOCK_PRODUCTS = 16**3
"""Products of one block of the matrix unit."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Times below which no schedule can come, launch overhead aside.

    Attributes
    ----------
    compute_us : float
        Executed operations at the peak rate of all cube cores.
    l2_us : float
        All bytes through GM at the bandwidth of L2, in which exchange slots stay.
    hbm_us : float
        The tensors of the caller, each once, at the bandwidth of HBM.
    peak_tflops : float
        Peak rate of all cube cores for the data type.
    intensity : float
        Useful floating-point operations for each byte of the tensors.
    """

    compute_us: float
    l2_us: float
    hbm_us: float
    peak_tflops: float
    intensity: float

    @property
    def time_us(self) -> float:
        """The largest of the bounds."""
        return max(self.compute_us, self.l2_us, self.hbm_us)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the bound as JSON types."""
        return {**dataclasses.asdict(self), "time_us": self.time_us}


def roofline(
    launch: Launch, platform: Platform, gm_bytes: int, executed_flops: int, useful_flops: int
) -> Roofline:
    """Return the bounds of a launch.

    Parameters
    ----------
    launch : Launch
    platform : Platform
        With timing figures.
    gm_bytes : int
        Bytes through GM, exchange between cores included.
    executed_flops : int
        Floating-point operations of whole tiles.
    useful_flops : int
        Those on visible pairs.
    """
    timing, workload = platform.timing, launch.workload
    float_products = launch.precision.data.itemsize == 4
    blocks = timing["float_cube_blocks_per_cycle" if float_products else "half_cube_blocks_per_cycle"]
    peak_flops_per_us = 2 * BLOCK_PRODUCTS * blocks * timing["clock_mhz"] * platform.cube_cores
    rows = workload.batch * workload.heads * workload.seq_q
    keys = workload.kv_heads * sum(workload.lengths)
    tensor_bytes = (rows + keys) * (workload.head_dim + workload.head_dim_v) * launch.precision.data.itemsize
    return Roofline(
        compute_us=executed_flops / peak_flops_per_us,
        l2_us=gm_bytes / timing["l2_bytes_per_us"],
        # A window may leave keys that nobody reads.
        hbm_us=min(tensor_bytes, gm_bytes) / timing["hbm_bytes_per_us"],
        peak_tflops=peak_flops_per_us / 1e6,
        intensity=useful_flops / tensor_bytes if tensor_bytes else 0.0,
    )
