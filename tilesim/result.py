"""What a simulation returns: tensors, budget, errors and throughput, with units in the names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim.compare import ErrorStats
from tilesim.effects import Effects
from tilesim.memory.budget import Budget
from tilesim.platform import Platform
from tilesim.precision import Precision
from tilesim.tile import Tile, TileCounts
from tilesim.timing.device_time import DeviceTime
from tilesim.workload import Workload

SCHEMA = 1
"""Version of the JSON documents; raised when a key changes its meaning or goes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
    """How fast the simulation itself ran on this machine.

    Attributes
    ----------
    wall_s : float
        Seconds of the kernel under the chosen policy, packing included, compilation excluded.
    compile_s : float
        Seconds to compile the kernels or load them from Numba's cache; 0 if done before.
    gflops : float
        Useful floating-point operations (visible pairs only) per second, in 10^9.
    score_tiles : int
        Score tiles (softmax_rows x kv_tile) that hold a visible pair: full and partial ones.
    score_tiles_per_s : float
    gm_bytes : int
        Bytes the modelled kernel moves through GM for its tensors: queries in and output out once, keys and
        values once for every task that streams them.
    threads : int
        Worker threads used.
    """

    wall_s: float
    compile_s: float
    gflops: float
    score_tiles: int
    score_tiles_per_s: float
    gm_bytes: int
    threads: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SimulationResult:
    """Everything one simulation tells.

    Attributes
    ----------
    workload : Workload
    tile : Tile
        With `query_rows` resolved.
    precision : Precision
    platform : Platform
    scale : float
        Factor of the scores.
    output : array (batch, heads, seq_q, head_dim_v)
        In the dtype of `q`, and with its axes in the order of `q`.
    lse : float32 array (batch, heads, seq_q)
    budget : Budget
    errors : mapping of str to ErrorStats
        Policy name -> error of its output against the float64 reference, the policy of this run first.
    effects : mapping of str to Effects
        Policy name -> which rounding point causes its error, from a sample of rows; not for float data.
    throughput : Throughput
    tiles : TileCounts
        Full, partial and skipped score tiles; those of a mask tensor as it is.
    device : DeviceTime or None
        Modelled device time; None where the platform has no timing figures.
    warnings : tuple of str
        What a reader should know before trusting the numbers: NaN in the inputs, overflow, over budget.
    measured_bytes : mapping of str to int, or None
        Memory name -> most bytes that the launch held at the same time, where that was measured.
    """

    workload: Workload
    tile: Tile
    precision: Precision
    platform: Platform
    scale: float
    output: npt.NDArray[Any]
    lse: npt.NDArray[np.float32]
    budget: Budget
    errors: Mapping[str, ErrorStats]
    throughput: Throughput
    tiles: TileCounts
    effects: Mapping[str, Effects] = dataclasses.field(default_factory=dict)
    device: DeviceTime | None = None
    warnings: tuple[str, ...] = ()
    measured_bytes: Mapping[str, int] | None = None

    @property
    def over_budget(self) -> bool:
        """Whether the configuration was run although it does not fit the chip."""
        return not self.budget.fits

    def to_dict(self) -> dict[str, Any]:
        """Return all but the tensors as JSON types: the document of ``tilesim run --json``."""
        return {
            "schema": SCHEMA,
            "workload": self.workload.to_dict(),
            "tile": self.tile.to_dict(),
            "precision": self.precision.to_dict(),
            "platform": self.platform.name,
            "scale": self.scale,
            "over_budget": self.over_budget,
            "budget": self.budget.to_dict(),
            "measured_bytes": None if self.measured_bytes is None else dict(self.measured_bytes),
            "errors": {name: stats.to_dict() for name, stats in self.errors.items()},
            "tiles": self.tiles.to_dict(),
            "effects": {name: effects.to_dict() for name, effects in self.effects.items()},
            "throughput": dataclasses.asdict(self.throughput),
            "device": None if self.device is None else self.device.to_dict(),
            "warnings": list(self.warnings),
        }
