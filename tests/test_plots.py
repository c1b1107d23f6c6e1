"""Pictures carry units, limits and the values they were given."""

import subprocess
import sys

import numpy as np
import pytest

import tilesim as ts
from tilesim.memory import footprint
from tilesim.plots import (
    budget_figure,
    plot_budget,
    plot_errors,
    plot_footprint,
    plot_roofline,
    plot_simulation,
    plot_timeline,
    plot_usage,
    save_figure,
)


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 2, 64, 16)).astype(np.float16) for _ in range(3))
    return ts.simulate(q, k, v, compare=("half-data-half-state", "float"))


@pytest.mark.parametrize(("kv_tile", "verdict"), [(512, "fits"), (8192, "over")])
def test_budget_bar_is_the_buffers_end_to_end_against_the_limits(kv_tile, verdict):
    budget = ts.budget(
        ts.Workload(seq_q=16384), ts.Tile(kv_tile=kv_tile), "half-data-float-state", "ascend910b4"
    )
    ax = plot_usage(budget)
    assert [bar.get_width() * 1024 for bar in ax.patches] == [buffer.total_bytes for buffer in budget.buffers]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert [bar.get_x() for bar in ax.patches] == [0.0, *ends[:-1]]
    assert [line.get_xdata()[0] for line in ax.lines] == [191.75, 192.0]
    assert ax.get_xlim()[1] > max(192.0, ends[-1])
    assert "KiB" in ax.get_xlabel()
    assert verdict in ax.get_title()
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(labels) == len(budget.buffers) + 2
    assert budget_figure(budget).axes[0].get_title() == ax.get_title()


def test_error_bars_show_the_figures(result):
    ax = plot_errors(result)
    assert "error" in ax.get_xlabel()
    assert ax.get_xscale() == "log"
    assert [label.get_text() for label in ax.get_yticklabels()] == list(result.errors)
    widths = [bar.get_width() for bar in ax.patches]
    stats = list(result.errors.values())
    assert widths == [s.rms for s in stats] + [s.max_abs for s in stats]


def test_errors_that_cannot_be_drawn_are_labelled(result, tmp_path):
    x = np.full((1, 1, 2, 4), np.nan, np.float16)
    broken = ts.simulate(np.ones_like(x), np.ones_like(x), np.ones_like(x) * np.float16(np.inf))
    ax = plot_errors(broken)
    save_figure(ax.figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_axes_are_used_as_given(result):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert plot_errors(result, ax=ax) is ax


def test_figure_has_the_limit_and_the_errors(result):
    figure = plot_simulation(result)
    top, bottom = figure.axes[:2]
    assert "KiB" in top.get_xlabel()
    assert top.get_xlim()[1] > 192
    assert "error" in bottom.get_xlabel()


def test_plotting_touches_no_global_state():
    code = (
        "import sys, tilesim as ts, tilesim.plots as p; "
        "b = ts.budget(ts.Workload(), ts.Tile(), 'float', 'ascend910b4'); p.budget_figure(b); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_buffers_lie_over_their_stages_at_their_offsets():
    budget = ts.budget(ts.Workload(), ts.Tile(), "half-data-float-state", "ascend910b4")
    ax = plot_budget(budget)
    stages = list(budget.memories["UB"].stages)
    assert [label.get_text() for label in ax.get_xticklabels()] == stages
    for bar, buffer in zip(ax.patches, budget.buffers, strict=True):
        assert bar.get_y() * 1024 == buffer.offset_bytes
        assert bar.get_height() * 1024 == buffer.total_bytes
        assert bar.get_x() + 0.5 == stages.index(buffer.first_stage)
        assert bar.get_x() + bar.get_width() - 0.5 == stages.index(buffer.last_stage)
    assert [line.get_ydata()[0] for line in ax.lines] == [191.75, 192.0]
    assert "KiB" in ax.get_ylabel()


def test_footprint_shows_flat_tiles_against_growing_rows():
    lengths = (256, 512, 1024, 4096)
    curves = footprint(ts.Workload(), ts.Tile(), "half-data-float-state", "ascend910b4", lengths)
    ax = plot_footprint(curves)
    assert ax.get_xscale() == "log"
    whole = ax.lines[0]
    assert list(whole.get_xdata()) == list(lengths)
    assert list(whole.get_ydata() * 1024) == [budget.used_bytes for budget in curves.full_row]
    tops = [max(y for x, y in path.vertices if x == 4096) for path in ax.collections[-1].get_paths()]
    assert tops == [curves.tiled[-1].used_bytes / 1024]
    assert any(f"{curves.first_unfit_length:,}" in text.get_text() for text in ax.texts)
    assert "KiB" in ax.get_ylabel()
    assert "sequence length" in ax.get_xlabel()


def test_timeline_draws_every_operation_of_the_first_tiles():
    lines = ts.timeline(ts.Workload(heads=4), ts.Tile(), "half-data-float-state", "ascend910b4")
    ax = plot_timeline(lines, tiles=1)
    first = [event for event in lines.events if (event.task, event.tile) == (0, 0)]
    assert len(ax.patches) == len(first)
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
    assert max(ends) == pytest.approx(max(event.end_us for event in first))
    assert "us" in ax.get_xlabel()
    assert {label.get_text() for label in ax.get_yticklabels()} == {event.lane for event in first}


def test_roofline_has_its_roofs_above_the_point():
    device = ts.estimate(ts.Workload(), ts.Tile(), "half-data-float-state", "ascend910b4")
    ax = plot_roofline(device)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    *roofs, point = ax.lines
    (x,), (y,) = point.get_xdata(), point.get_ydata()
    assert (x, y) == (device.roofline.intensity, device.tflops)
    for roof in roofs:
        # Straight lines through two points: interpolate at the point.
        (x0, x1), (y0, y1) = roof.get_xdata(), roof.get_ydata()
        height = y0 if y0 == y1 else y0 + (x - x0) * (y1 - y0) / (x1 - x0)
        assert height > y
    assert "TFLOP/s" in ax.get_ylabel()
    assert "byte" in ax.get_xlabel()
