"""The command line: every problem is one line on standard error and an exit status."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from cyclopts import App, CycloptsError, Parameter

import tilesim
from tilesim import options as opt
from tilesim.cli_sweep import sweep_command
from tilesim.errors import BudgetError, TilesimError
from tilesim.files import atomic_write, check_writable, save_arrays, save_csv
from tilesim.memory.budget import Budget
from tilesim.memory.budget import budget as plan_budget
from tilesim.memory.footprint import footprint, parse_lengths
from tilesim.memory.measure import measure_memory
from tilesim.platform import platform as find_platform
from tilesim.platform import platforms as platform_names
from tilesim.progress import progress_bar
from tilesim.simulate import simulate
from tilesim.tensors import in_layout
from tilesim.timing import estimate as estimate_time
from tilesim.timing import timeline
from tilesim.timing.ahead import compiled_ahead
from tilesim.trace import chrome_trace

DONE, BAD_USAGE, OVER_BUDGET, INTERRUPTED = 0, 2, 3, 130

GARBAGE_THRESHOLD = 100_000
"""New objects after which this process looks for garbage; Python does after 700."""

PLOT_SUFFIXES = (".png", ".pdf", ".svg")

app = App(
    name="tilesim",
    help="Simulate tiled FlashAttention-2 attention on an Ascend-like AI core.",
    help_epilogue="Exit status: 0 done, 2 bad usage or input, 3 does not fit the memory budget.",
    version=tilesim.__version__,
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)


@app.command
def run(
    *,
    source: opt.InputOptions = opt.InputOptions(),  # noqa: B008
    out: Path | None = None,
    plot: Path | None = None,
    workload: opt.WorkloadOptions = opt.WorkloadOptions(),  # noqa: B008
    kernel: opt.KernelOptions = opt.KernelOptions(),  # noqa: B008
    scale: float | None = None,
    seed: opt.Whole = 0,
    threads: opt.Whole | None = None,
    allow_over_budget: bool = False,
    measure: bool = False,
    output: opt.OutputOptions = opt.OutputOptions(),  # noqa: B008
) -> int:
    """Simulate one attention call: UB table, error of half and float state, measured throughput.

    Runs on the bundled real sample; on your own tensors with --input; on random ones if sizes are given.

    Parameters
    ----------
    out
        Write arrays output and lse to this .npz file.
    plot
        Draw the UB bar and the errors to this .png, .pdf or .svg file.
    scale
        Factor of the scores. [default: 1 / sqrt(head_dim)]
    seed
        Seed of random tensors.
    threads
        Worker threads; the numbers do not depend on it. [default: all cores]
    allow_over_budget
        Run even if the configuration does not fit; every output says so.
    measure
        Run the launch a second time inside its planned memory and show the bytes it really held. Slow.
    """
    for path, suffixes in ((out, (".npz",)), (plot, PLOT_SUFFIXES)):
        if path is not None:
            check_writable(path, suffixes)
    if source.input is None and workload.sizes and not allow_over_budget:
        # simulate() would refuse as well, but only after the tensors are made.
        plan_budget(workload.workload(), kernel.tile(), kernel.precision, kernel.platform).require()
    (q, k, v), origin = opt.tensors(source, workload, seed)
    variant, notes = opt.variant(source, workload, q)
    problem: dict[str, Any] = {
        "tile": kernel.tile(),
        "precision": kernel.precision,
        "scale": scale,
        "platform": kernel.platform,
        "allow_over_budget": allow_over_budget,
        **variant,
    }
    with progress_bar(quiet=output.quiet) as progress, compiled_ahead():
        result = simulate(
            q,
            k,
            v,
            compare=opt.COMPARED,
            threads=threads,
            layout=source.layout,
            progress=progress,
            **problem,
        )
    if measure:
        views = (in_layout(x, source.layout) for x in (q, k, v))
        measured = measure_memory(*views, **problem).measured_bytes
        result = dataclasses.replace(result, measured_bytes=measured)
    if out is not None:
        mark = {"over_budget": np.array(True)} if result.over_budget else {}
        save_arrays(out, {"output": result.output, "lse": result.lse, **mark})
    _export(plot, None, lambda plots: plots.plot_simulation(result), [])
    if not output.quiet:
        for note in (*notes, *result.warnings):
            _complain(f"note: {note}")
    _show(output, result.to_dict, lambda report, width: report.simulation_report(result, origin, width))
    return DONE


@app.command
def budget(
    *,
    workload: opt.WorkloadOptions = opt.WorkloadOptions(),  # noqa: B008
    kernel: opt.KernelOptions = opt.KernelOptions(),  # noqa: B008
    layout: opt.LayoutOptions = opt.LayoutOptions(),  # noqa: B008
    seq_range: str | None = None,
    plot: Path | None = None,
    csv: Path | None = None,
    output: opt.OutputOptions = opt.OutputOptions(),  # noqa: B008
) -> int:
    """Show what a configuration takes of every memory; needs no tensors and runs nothing.

    Parameters
    ----------
    seq_range
        Show the footprint against sequence length, beside a kernel that keeps whole score rows: FIRST:LAST
        doubles, FIRST:LAST:STEP goes up by STEP.
    plot
        Draw it to this .png, .pdf or .svg file.
    csv
        Write it to this .csv file: one row a buffer, or one row a sequence length.
    """
    for path, suffixes in ((plot, PLOT_SUFFIXES), (csv, (".csv",))):
        if path is not None:
            check_writable(path, suffixes)
    problem, choices = workload.workload(), layout.layout()
    plan = plan_budget(problem, kernel.tile(), kernel.precision, kernel.platform, layout=choices)
    if seq_range is not None:
        lengths = parse_lengths(seq_range)
        curves = footprint(problem, kernel.tile(), kernel.precision, kernel.platform, lengths, layout=choices)
        _export(plot, csv, lambda plots: plots.footprint_figure(curves), curves.rows())
        _show(output, curves.to_dict, lambda report, _: report.footprint_report(curves))
        return DONE
    _export(plot, csv, lambda plots: plots.budget_figure(plan), plan.rows())
    _show(output, plan.to_dict, lambda report, width: report.budget_report(plan, width))
    return _verdict(plan)


def _verdict(plan: Budget) -> int:
    """Return the status of a command that shows a configuration whether it fits or not."""
    if plan.fits:
        return DONE
    _complain(plan.explain())
    return OVER_BUDGET


def _export(
    plot: Path | None, csv: Path | None, draw: Callable[[Any], Any], rows: list[dict[str, Any]]
) -> None:
    if plot is not None:
        from tilesim import plots

        plots.save_figure(draw(plots), plot)
    if csv is not None:
        save_csv(csv, rows)


@app.command
def estimate(
    *,
    workload: opt.WorkloadOptions = opt.WorkloadOptions(),  # noqa: B008
    kernel: opt.KernelOptions = opt.KernelOptions(),  # noqa: B008
    layout: opt.LayoutOptions = opt.LayoutOptions(),  # noqa: B008
    plot: Path | None = None,
    output: opt.OutputOptions = opt.OutputOptions(),  # noqa: B008
) -> int:
    """Model how long the chip would take, what bounds it and where it waits; needs no tensors.

    Parameters
    ----------
    plot
        Draw the timeline of the slowest core and the roofline to this .png, .pdf or .svg file.
    """
    if plot is not None:
        check_writable(plot, PLOT_SUFFIXES)
    case = (workload.workload(), kernel.tile(), kernel.precision, kernel.platform)
    choices = layout.layout()
    device = estimate_time(*case, layout=choices)
    if plot is not None:
        from tilesim import plots

        plots.save_figure(plots.device_figure(timeline(*case, layout=choices)), plot)
    plan = plan_budget(*case, layout=choices)
    _show(
        output,
        lambda: {"schema": 1, "fits": plan.fits, **device.to_dict()},
        lambda report, _: report.estimate_report(device, plan),
    )
    return _verdict(plan)


@app.command
def trace(
    *,
    out: Path,
    workload: opt.WorkloadOptions = opt.WorkloadOptions(),  # noqa: B008
    kernel: opt.KernelOptions = opt.KernelOptions(),  # noqa: B008
    layout: opt.LayoutOptions = opt.LayoutOptions(),  # noqa: B008
    output: opt.OutputOptions = opt.OutputOptions(),  # noqa: B008
) -> int:
    """Write the modelled pipeline of the slowest core as Chrome trace JSON, which Perfetto opens.

    Parameters
    ----------
    out
        The .json file.
    """
    check_writable(out, (".json",))
    case = (workload.workload(), kernel.tile(), kernel.precision, kernel.platform)
    choices = layout.layout()
    lines = timeline(*case, layout=choices)
    plan = plan_budget(*case, layout=choices)
    document = chrome_trace(lines, plan)
    with atomic_write(out) as file:
        file.write(json.dumps(document, allow_nan=False).encode())
    device = lines.device_time
    _show(
        output,
        lambda: {"schema": 1, "file": str(out), "events": len(document["traceEvents"]), **device.to_dict()},
        lambda report, _: (
            f"{out}: {len(lines.events):,} operations of core {lines.core}, "
            f"{device.time_us:.1f} us; open it at https://ui.perfetto.dev"
        ),
    )
    return _verdict(plan)


@app.command
def platforms(
    *,
    platform: str | None = None,
    output: opt.OutputOptions = opt.OutputOptions(),  # noqa: B008
) -> int:
    """List the chips and their figures, each with its source.

    Parameters
    ----------
    platform
        Only this chip: a name, or a .toml file. [default: all that come with tilesim]
    """
    chips = [find_platform(name) for name in (platform_names() if platform is None else (platform,))]
    _show(
        output,
        lambda: {"schema": 1, "platforms": [chip.to_dict() for chip in chips]},
        lambda report, width: report.platforms_report(chips),
    )
    return DONE


app.command(sweep_command, name="sweep")


def _show(output: opt.OutputOptions, document: Callable[[], Any], table: Callable[[Any, int], Any]) -> None:
    if output.json:
        print(json.dumps(document(), indent=2, allow_nan=False))
        return
    from tilesim import report

    console = report.console()
    console.print(table(report, console.width))


def _complain(text: str) -> None:
    print("tilesim: " + " ".join(text.split()), file=sys.stderr)


def call(tokens: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Parameters
    ----------
    tokens : sequence of str, optional
        Arguments; those of the process by default.
    """
    try:
        status = app(
            tokens, exit_on_error=False, print_error=False, help_on_error=False, result_action="return_value"
        )
        if sys.stdout is not None:  # as it is when the caller closed it
            sys.stdout.flush()
        return status if isinstance(status, int) else DONE
    except BudgetError as error:
        _complain(str(error))
        return OVER_BUDGET
    except TilesimError as error:
        _complain(str(error))
    except CycloptsError as error:
        _complain(f"{error} Try tilesim --help.")
    except MemoryError as error:
        _complain(f"out of memory: {error or 'no detail'}; take a shorter sequence or fewer heads")
    except BrokenPipeError:
        # The reader went away, as `tilesim run | head` does: nothing to say, and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        _complain(f"standard output: {error.strerror or error}")
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    return BAD_USAGE


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    # Loading kernels makes a million objects that stay: looking through them is a tenth of a short run.
    gc.set_threshold(GARBAGE_THRESHOLD)
    sys.exit(call())
