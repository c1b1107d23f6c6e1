"""One simulation: budget, the tiled kernel under several precision policies, and their errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from tilesim.attention import cast_like
from tilesim.compare import ErrorStats, error_stats
from tilesim.effects import Effects, find_effects
from tilesim.kernel_inputs import PLAIN_POLICY, has_variant
from tilesim.mask_tiles import MaskTiles
from tilesim.masks import Window
from tilesim.memory.budget import budget as plan_budget
from tilesim.platform import DEFAULT_PLATFORM, Platform
from tilesim.platform import platform as find_platform
from tilesim.precision import DEFAULT_PRECISION, Precision
from tilesim.precision import precision as find_precision
from tilesim.problem import Problem, read_problem
from tilesim.reference import Reference, reference_of
from tilesim.result import SimulationResult, Throughput
from tilesim.tensors import DEFAULT_LAYOUT, check_threads, in_layout, to_data_type
from tilesim.tile import Tile, TileCounts
from tilesim.timing import estimate
from tilesim.variant import VariantOptions

if TYPE_CHECKING:
    from tilesim.engine import KernelRun

Progress = Callable[[str, int, int], None]
"""Called now and then from the calling thread with a stage, the tasks done and the tasks in all."""


def simulate(
    q: Any,
    k: Any,
    v: Any,
    *,
    tile: Tile | None = None,
    precision: str | Precision = DEFAULT_PRECISION,
    mask: Any = "causal",
    window: Window = None,
    scale: float | None = None,
    platform: str | Platform = DEFAULT_PLATFORM,
    compare: Sequence[str | Precision] = ("half-data-half-state",),
    allow_over_budget: bool = False,
    threads: int | None = None,
    layout: str = DEFAULT_LAYOUT,
    progress: Progress | None = None,
    **options: Unpack[VariantOptions],
) -> SimulationResult:
    """Simulate one attention call on the modelled chip.

    Parameters
    ----------
    q : array_like (batch, heads, seq_q, head_dim)
    k : array_like (batch, kv_heads, seq_kv, head_dim)
    v : array_like (batch, kv_heads, seq_kv, head_dim_v)
        float16, bfloat16, float32 or float64; each is rounded to the data type of the policy.
    tile : Tile, optional
        8 x 512 with the reference rule for query rows by default.
    precision : str or Precision
        Policy of the run.
    mask : {"causal", "full", "window"} or array_like
        An array stands for ``"full"`` with that `attn_mask`.
    window : int or (left, right), optional
        Only with ``mask="window"``.
    scale : float, optional
        ``1 / sqrt(head_dim)`` by default.
    platform : str or Platform
    compare : sequence of str or Precision
        Further policies whose error is measured beside it.
    allow_over_budget : bool
        Run although the configuration does not fit the chip; the result says so.
    threads : int, optional
        Worker threads, as many as Numba is set to use by default; never changes a bit of the result.
    layout : {"BNSD", "BSND"}
        Order of the axes of `q`, `k`, `v` and the output: (batch, heads, seq, head_dim) as written here, or
        (batch, seq, heads, head_dim).
    progress : callable, optional
    **options
        align, attn_mask, key_lengths, softcap, alibi_slopes, sinks: see `tilesim.VariantOptions`.

    Returns
    -------
    SimulationResult

    Raises
    ------
    BudgetError
        If the configuration does not fit UB, unless `allow_over_budget`.
    InputError, DTypeError
        For tensors that are malformed or do not belong together.
    ConfigError, UnknownNameError
        For a bad tile, mask, policy, platform or layout.
    """
    chip = find_platform(platform)
    policies = _distinct(precision, compare)
    problem = read_problem(q, k, v, mask=mask, window=window, scale=scale, layout=layout, options=options)
    tensors, workload = problem.tensors, problem.workload
    threads, wanted = check_threads(threads), Tile.given(tile)
    budget = plan_budget(workload, wanted, policies[0], chip)
    if not allow_over_budget:
        budget.require()

    shown = MaskTiles(problem, policies[0], wanted) if workload.attn_mask else None
    run = _Run(problem=problem, tile=wanted, shown=shown, threads=threads, progress=progress)
    reference = run.reference()
    effects = _effects(problem, wanted, policies)
    outputs, throughput, notes = [], None, list(tensors.notes(policies[0].data))
    errors: dict[str, ErrorStats] = {}
    for policy in policies:
        kernel_run, speed = run.measure(policy, budget.tile.query_rows or 1)
        errors[policy.name] = error_stats(kernel_run.output, reference.output)
        notes += _overflow_notes(problem, policy, kernel_run, errors[policy.name], reference)
        if throughput is None:
            throughput = speed
            outputs = [in_layout(cast_like(kernel_run.output, tensors.q), layout), kernel_run.lse]
    assert throughput is not None
    if not budget.fits:
        notes.append(f"over budget: {budget.explain()}")
    return SimulationResult(
        workload=workload,
        tile=budget.tile,
        precision=policies[0],
        platform=chip,
        scale=problem.scale,
        output=outputs[0],
        lse=outputs[1],
        budget=budget,
        errors=_with_effects(errors, effects),
        throughput=throughput,
        tiles=run.tiles,
        effects=effects,
        device=estimate(workload, wanted, policies[0], chip, shown=shown) if chip.has_timing else None,
        warnings=tuple(notes),
    )


def _effects(problem: Problem, tile: Tile, policies: list[Precision]) -> dict[str, Effects]:
    found = {policy.name: find_effects(problem, tile, policy) for policy in policies}
    return {name: effects for name, effects in found.items() if effects is not None}


def _with_effects(errors: dict[str, ErrorStats], effects: dict[str, Effects]) -> dict[str, ErrorStats]:
    """Return the errors of each policy with what was seen on the way to them."""
    return errors | {
        name: dataclasses.replace(
            errors[name],
            stalled_sums=seen.stalled_sums,
            underflowed_exp_max=seen.underflowed_exp_max,
            dominant_effect=seen.dominant,
        )
        for name, seen in effects.items()
    }


def _overflow_notes(
    problem: Problem, policy: Precision, run: KernelRun, stats: ErrorStats, reference: Reference
) -> list[str]:
    """Return what overflows under a policy though the reference is finite, a line each."""
    notes = []
    infinite = ~(np.isfinite(run.row_max) & np.isfinite(run.row_sum)) | _has_lost_score(
        problem, policy, reference
    )
    rows = int((infinite & np.isfinite(reference.lse)).sum())
    if rows:
        notes.append(
            f"{policy.name}: scores or running sum overflow in {rows:,} of {reference.lse.size:,} rows"
        )
    for count, seen in ((stats.overflow_count, "infinite"), (stats.nan_count, "NaN")):
        if count:
            notes.append(f"{policy.name}: {count:,} of {stats.count:,} outputs are {seen}, not the reference")
    return notes


def _has_lost_score(problem: Problem, policy: Precision, reference: Reference) -> npt.NDArray[np.bool_]:
    """Return in which rows a score becomes -inf: nothing in the row's state shows that a key is lost."""
    with np.errstate(over="ignore", invalid="ignore"):
        *products, least = reference.extremes
        lost = np.isneginf(to_data_type(least, policy.data))
        if not problem.workload.softcap:  # which makes any score finite again
            scale = np.array(problem.scale)
            if policy.name != PLAIN_POLICY:
                *products, scale = (
                    to_data_type(x, policy.data).astype(np.float64) for x in (*products, scale)
                )
            for product in products:
                lost |= np.isneginf(to_data_type(product * scale, policy.data))
        return lost


def _distinct(
    first: str | Precision, compare: str | Precision | Sequence[str | Precision]
) -> list[Precision]:
    """Return the policies to run, each once."""
    others = [compare] if isinstance(compare, str | Precision) else compare
    policies = [find_precision(name) for name in (first, *others)]
    return list({policy.name: policy for policy in policies}.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """One problem that is run under several policies."""

    problem: Problem
    tile: Tile
    shown: MaskTiles | None
    threads: int | None
    progress: Progress | None

    @property
    def tiles(self) -> TileCounts:
        return self.tile.counts(self.problem.workload) if self.shown is None else self.shown.counts

    @property
    def useful_flops(self) -> int:
        workload = self.problem.workload
        return workload.useful_flops if self.shown is None else workload.flops(self.shown.visible_pairs)

    def reference(self) -> Reference:
        if self.progress is not None:
            self.progress("float64 reference", 0, 1)
        return reference_of(self.problem)

    def measure(self, policy: Precision, query_rows: int) -> tuple[KernelRun, Throughput]:
        from tilesim import engine

        compile_s = engine.warm_up(variant=has_variant(self.problem))
        workload, report = self.problem.workload, self.progress
        run = engine.run_kernel(
            self.problem,
            tile=self.tile,
            policy=policy,
            threads=self.threads,
            progress=None if report is None else lambda done, total: report(policy.name, done, total),
        )
        score_tiles = self.tiles.visited
        rows = workload.batch * workload.heads * workload.seq_q
        streamed = self.tile.streamed_keys(workload, query_rows)
        elements = (rows + streamed) * (workload.head_dim + workload.head_dim_v)
        return run, Throughput(
            wall_s=run.wall_s,
            compile_s=compile_s,
            gflops=self.useful_flops / run.wall_s / 1e9,
            score_tiles=score_tiles,
            score_tiles_per_s=score_tiles / run.wall_s,
            gm_bytes=elements * policy.data.itemsize,
            threads=run.threads,
        )
