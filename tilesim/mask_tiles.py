"""Score tiles of a problem whose mask tensor is at hand: what each holds, and the pairs that count."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim import kernel_inputs
from tilesim.precision import Precision
from tilesim.problem import Problem
from tilesim.tile import Tile, TileCounts
from tilesim.units import ceil_div

Rows = npt.NDArray[np.int64]


class MaskTiles:
    """What a mask tensor leaves of each score tile; reads it in place, once for each way to group rows.

    Parameters
    ----------
    problem : Problem
    policy : Precision
        An additive mask counts as rounded to its data type.
    tile : Tile

    Attributes
    ----------
    counts : TileCounts
    visible_pairs : int
        Query-key pairs that count, over all heads and the batch.
    """

    def __init__(self, problem: Problem, policy: Precision, tile: Tile) -> None:
        from tilesim.kernels.mask_tiles import FULL, PARTIAL, SKIPPED

        self._workload = workload = problem.workload
        self._variant = kernel_inputs.score_variant(problem, policy)
        mask = self._variant.mask
        # Heads and batch elements that share mask and length are looked at once.
        self._heads = 1 if mask.head_stride == 0 else workload.heads
        same = mask.batch_stride == 0 and len(workload.length_counts()) == 1
        self._batch = min(1, workload.batch) if same else workload.batch
        self._known: dict[Any, tuple[npt.NDArray[np.uint8], int]] = {}
        first_rows = np.arange(0, workload.seq_q, tile.softmax_rows, dtype=np.int64)
        last_rows = np.minimum(first_rows + tile.softmax_rows, workload.seq_q) - 1
        kinds, pairs = self._classified(first_rows, last_rows, tile.kv_tile)
        # Each head looked at stands for this many.
        copies = workload.batch * workload.heads // max(1, self._batch * self._heads)
        full, partial, skipped = (copies * int((kinds == kind).sum()) for kind in (FULL, PARTIAL, SKIPPED))
        self.counts = TileCounts(full=full, partial=partial, skipped=skipped)
        self.visible_pairs = copies * pairs

    def kinds(self, first_rows: Rows, last_rows: Rows, kv_tile: int) -> npt.NDArray[np.uint8]:
        """Return what the tiles of groups of rows hold, by the constants of `kernels.mask_tiles`.

        Parameters
        ----------
        first_rows, last_rows : int64 arrays (groups)
        kv_tile : int

        Returns
        -------
        array (1 or batch, 1 or heads, groups, tiles)
            Axes along which nothing changes have length 1.
        """
        return self._classified(first_rows, last_rows, kv_tile)[0]

    def _classified(
        self, first_rows: Rows, last_rows: Rows, kv_tile: int
    ) -> tuple[npt.NDArray[np.uint8], int]:
        from tilesim.kernels.mask_tiles import classify_groups

        key = (first_rows.tobytes(), last_rows.tobytes(), kv_tile)
        if key not in self._known:
            workload, rows = self._workload, np.arange(self._workload.seq_q, dtype=np.int64)
            tiles = ceil_div(workload.seq_kv, kv_tile)
            kinds = np.zeros((self._batch, self._heads, len(first_rows), tiles), np.uint8)
            pairs = 0
            for element, head in np.ndindex(self._batch, self._heads):
                starts, stops = workload.band.key_range(rows, workload.seq_q, workload.lengths[element])
                pairs += classify_groups(
                    self._variant.mask, element * workload.heads + head, starts, stops, first_rows, last_rows,
                    workload.seq_kv, kv_tile, self._variant.kind, kinds[element, head],
                )  # fmt: skip
            self._known[key] = kinds, int(pairs)
        return self._known[key]
