"""The tiling: how many score rows and keys one step takes, and how a launch is cut into tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tilesim._checks import whole_number
from tilesim.errors import ConfigError
from tilesim.units import align_up, ceil_div
from tilesim.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileCounts:
    """Score tiles (softmax_rows x kv_tile, tails included) of all heads and the batch, by what they hold.

    Attributes
    ----------
    full : int
        Every pair of query and key is visible: no mask is read.
    partial : int
        Some pairs are hidden, or an additive mask shifts scores: the mask is applied.
    skipped : int
        No pair is visible: nothing is loaded or computed.
    """

    full: int
    partial: int
    skipped: int

    @property
    def visited(self) -> int:
        """Tiles that are computed."""
        return self.full + self.partial

    @property
    def total(self) -> int:
        """All tiles of the rectangle of queries and keys."""
        return self.visited + self.skipped

    def to_dict(self) -> dict[str, int]:
        """Return the counts as JSON types."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """Tile sizes of the kernel.

    Attributes
    ----------
    softmax_rows : int
        Score rows handed to one softmax_flash_v2 call (SOFTMAX_ROWS).
    kv_tile : int
        Keys of one score tile (KV_TILE).
    query_rows : int or None
        Query rows of one task; None takes the reference rule, see `resolve_query_rows`.
    slots : int
        Score, probability and partial slots that let a tile's softmax overlap the previous tile's PV product.
    kv_splits : int
        Parts into which the keys of a task are cut, each a task of its own; their accumulators and states are
        combined at the end. For decoding, where a few query rows give too few tasks.

    Raises
    ------
    ConfigError
        If a size is no integer in its range.
    """

    softmax_rows: int = 8
    kv_tile: int = 512
    query_rows: int | None = None
    slots: int = 2
    kv_splits: int = 1

    def __post_init__(self) -> None:
        for name, most in (("softmax_rows", 65536), ("kv_tile", 2**24), ("slots", 64), ("kv_splits", 65536)):
            object.__setattr__(self, name, whole_number(f"Tile.{name}", getattr(self, name), most=most))
        if self.query_rows is not None:
            rows = whole_number("Tile.query_rows", self.query_rows, most=2**24)
            object.__setattr__(self, "query_rows", rows)

    def is_short(self, workload: Workload) -> bool:
        """Return whether all keys fit one KV tile, so that no accumulator is kept across tiles."""
        return workload.seq_kv <= self.kv_tile

    def resolve_query_rows(self, workload: Workload, cube_cores: int) -> int:
        """Return the query rows of one task: those given, else the reference kernel's choice.

        Short path: at most 128. Long path: 128 to 256, so that a head is cut into about as many tasks as
        are needed to give every cube core one. At least 1, even without queries.
        """
        seq_q = max(1, workload.seq_q)
        if self.query_rows is not None:
            return min(self.query_rows, seq_q)
        if self.is_short(workload):
            return min(seq_q, 128)
        tasks_per_head = max(1, ceil_div(cube_cores, max(1, workload.batch * workload.heads)))
        wanted = align_up(ceil_div(seq_q, tasks_per_head), 16)
        return max(min(seq_q, 128), min(seq_q, 256, wanted))

    def counts(self, workload: Workload) -> TileCounts:
        """Return how many score tiles are full, partial and skipped; needs no tensors.

        What a mask tensor holds is not known here, so every visited tile of a workload with one is partial.
        """
        groups = ceil_div(workload.seq_q, self.softmax_rows)
        tiles = ceil_div(workload.seq_kv, self.kv_tile)
        first_rows = np.arange(0, workload.seq_q, self.softmax_rows, dtype=np.int64)
        last_rows = np.minimum(first_rows + self.softmax_rows, workload.seq_q) - 1
        visited = full = 0
        for length, elements in workload.length_counts().items():
            start, start_of_all, stop_of_all, stop = workload.seen_by_groups(first_rows, last_rows, length)
            visits = np.where(stop > start, -(-stop // self.kv_tile) - start // self.kv_tile, 0)
            end = np.where(stop_of_all == workload.seq_kv, tiles, stop_of_all // self.kv_tile)
            visited += elements * int(visits.sum())
            full += elements * int(np.maximum(end - -(-start_of_all // self.kv_tile), 0).sum())
        if workload.attn_mask is not None:
            full = 0
        heads = workload.heads
        return TileCounts(
            full=heads * full,
            partial=heads * (visited - full),
            skipped=heads * (workload.batch * groups * tiles - visited),
        )

    def score_tiles(self, workload: Workload) -> int:
        """Return the score tiles that hold a visible pair; a mask tensor may hide more of them."""
        return self.counts(workload).visited

    def streamed_keys(self, workload: Workload, query_rows: int) -> int:
        """Return the keys that all tasks of `query_rows` rows stream in, whole tiles, summed over tasks."""
        first_rows = np.arange(0, workload.seq_q, query_rows, dtype=np.int64)
        last_rows = np.minimum(first_rows + query_rows, workload.seq_q) - 1
        keys = 0
        for length, elements in workload.length_counts().items():
            starts, _, _, stops = workload.seen_by_groups(first_rows, last_rows, length)
            first_keys = starts // self.kv_tile * self.kv_tile
            last_keys = np.minimum(-(-stops // self.kv_tile) * self.kv_tile, length)
            keys += elements * int(np.where(stops > starts, last_keys - first_keys, 0).sum())
        return workload.heads * keys

    @classmethod
    def given(cls, tile: Any) -> Tile:
        """Return `tile`, or the default for None.

        Raises
        ------
        ConfigError
            For anything else.
        """
        if tile is None:
            return cls()
        if not isinstance(tile, cls):
            raise ConfigError("tile", tile, "must be a Tile")
        return tile

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON types."""
        return dataclasses.asdict(self)
