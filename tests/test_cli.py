"""The commands as a user types them: documents, exit statuses, one-line errors, nothing half-written."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tilesim
from tilesim import cli
from tilesim.samples import load_sample

SMALL = ["--heads", "2", "--seq", "40", "--head-dim", "8"]


@pytest.fixture
def small_file(tmp_path, rng):
    q, k, v = (rng.standard_normal((1, heads, 20, 8)).astype(np.float16) for heads in (4, 2, 2))
    np.savez(tmp_path / "in.npz", q=q, k=k, v=v)
    return tmp_path / "in.npz"


def refused(result, *words, status=2):
    code, out, err = result
    assert code == status, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_run_prints_what_the_contract_promises(tilesim_cli):
    status, out, err = tilesim_cli("run", *SMALL, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["workload"]["seq_q"] == document["workload"]["seq_kv"] == 40
    assert document["tile"] == {
        "softmax_rows": 8,
        "kv_tile": 512,
        "query_rows": 40,
        "slots": 2,
        "kv_splits": 1,
    }
    assert document["platform"] == "ascend910b4"
    assert document["budget"]["capacity_bytes"] == 196608
    assert list(document["errors"]) == ["half-data-float-state", "half-data-half-state"]
    for figures in document["errors"].values():
        assert {"max_abs", "rms", "max_rel", "max_ulp_half", "cosine_distance"} <= set(figures)
    assert {"wall_s", "gflops", "score_tiles_per_s"} <= set(document["throughput"])
    assert "device" in document


def test_run_without_arguments_takes_the_real_sample_and_compares_both_states(tilesim_cli):
    status, out, _ = tilesim_cli("run")
    assert status == 0
    for text in (
        "SmolLM2",
        "9 heads on 3 key heads",
        "104,704",
        "float-state",
        "half-state",
        "GFLOP/s",
        "score tiles/s",
    ):
        assert text in out


@pytest.mark.parametrize("policy", tilesim.PRECISIONS)
def test_every_policy_is_compared_with_half_and_float_state(tilesim_cli, policy):
    status, out, _ = tilesim_cli("run", *SMALL, "--precision", policy, "--json")
    assert status == 0
    names = list(json.loads(out)["errors"])
    assert names[0] == policy
    assert {"half-data-float-state", "half-data-half-state"} <= set(names)


def test_run_on_a_file_writes_what_simulate_returns(tilesim_cli, small_file, tmp_path):
    out = tmp_path / "out.npz"
    status, text, _ = tilesim_cli(
        "run", "--input", small_file, "--out", out, "--mask", "full", "--scale", 0.5
    )
    assert status == 0
    assert "4 heads on 2 key heads, 20 queries x 20 keys" in text
    with np.load(small_file) as tensors, np.load(out) as written:
        output, lse = tilesim.attention(
            tensors["q"], tensors["k"], tensors["v"], mask="full", scale=0.5, return_lse=True
        )
        np.testing.assert_array_equal(written["output"], output)
        np.testing.assert_array_equal(written["lse"], lse)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_run_draws(tilesim_cli, tmp_path, suffix):
    path = tmp_path / f"figure.{suffix}"
    assert tilesim_cli("run", *SMALL, "--plot", path)[0] == 0
    assert path.stat().st_size > 5000
    assert os.listdir(tmp_path) == [path.name]


def test_budget_prints_what_the_contract_promises(tilesim_cli):
    status, out, err = tilesim_cli("budget", "--seq", 1024, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["used_bytes"] == sum(buffer["total_bytes"] for buffer in document["buffers"]) == 137472
    assert document["capacity_bytes"] == 196608
    assert document["peak_bytes"] <= document["used_bytes"]
    assert document["fits"] is True
    wanted = {"name", "position", "count", "bytes_each", "total_bytes", "dtype", "shape"}
    assert all(wanted <= set(buffer) for buffer in document["buffers"])
    assert set(document["memories"]) == {"UB", "L1", "L0A", "L0B", "L0C", "GM"}


@pytest.mark.parametrize(
    ("options", "used"),
    [((), "137,472"), (("--head-dim", 64), "104,704"), (("--seq", 512), "73,984")],
)
def test_known_budgets(tilesim_cli, options, used):
    status, out, _ = tilesim_cli("budget", *options)
    assert status == 0
    assert used in out


def test_a_budget_that_does_not_fit_is_printed_and_refused(tilesim_cli):
    status, out, err = tilesim_cli("budget", "--kv-tile", 8192, "--seq", 16384)
    assert status == 3
    assert "DOES NOT FIT" in out
    for word in ("UB does not fit", "over", "score", "would fit with kv_tile"):
        assert word in err
    status, out, _ = tilesim_cli("budget", "--kv-tile", 8192, "--seq", 16384, "--json")
    document = json.loads(out)
    assert status == 3
    assert document["fits"] is False
    assert document["excess_bytes"] == document["used_bytes"] - document["available_bytes"] > 0


def test_times_of_what_does_not_fit_are_shown_and_refused(tilesim_cli, tmp_path):
    big, path = ("--kv-tile", 8192, "--seq", 16384, "--heads", 1), tmp_path / "trace.json"
    status, out, err = tilesim_cli("estimate", *big)
    assert status == 3
    assert "DOES NOT FIT" in out
    assert "UB does not fit" in err
    assert json.loads(tilesim_cli("estimate", *big, "--json")[1])["fits"] is False
    status, out, err = tilesim_cli("trace", "--out", path, *big)
    assert status == 3
    assert "UB does not fit" in err
    assert json.loads(path.read_text())["traceEvents"]


def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(tilesim_cli, tmp_path):
    big = ["--seq", 2048, "--heads", 1, "--head-dim", 16, "--kv-tile", 2048, "--softmax-rows", 32]
    refused(tilesim_cli("run", *big, "--out", tmp_path / "out.npz"), "UB does not fit", "over", status=3)
    assert not os.listdir(tmp_path)
    status, out, err = tilesim_cli("run", *big, "--allow-over-budget")
    assert status == 0
    assert "OVER BUDGET" in out
    assert "over budget" in err


def test_platforms_show_every_figure_with_its_source(tilesim_cli):
    status, out, _ = tilesim_cli("platforms", "--json")
    document = json.loads(out)
    assert status == 0
    assert [chip["name"] for chip in document["platforms"]] == list(tilesim.platforms())
    for chip in document["platforms"]:
        assert all(figure["source"] for figure in chip["figures"].values())
    status, out, _ = tilesim_cli("platforms", "--platform", "ascend910b4")
    assert "memory.UB.capacity_bytes" in out
    assert "196,608" in out


def test_tables_survive_an_ascii_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "tilesim", "budget"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=True,
    )
    assert b"137,472" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--precision", "half-data-flaot-state"], ["did you mean 'half-data-float-state'"]),
        (["run", "--platform", "ascend910b44"], ["platform", "did you mean 'ascend910b4'"]),
        (["estimate", "--kv-tile", "0"], ["kv_tile", "0"]),
        (["trace"], ["--out"]),
        (["trace", "--out", "trace.txt"], ["trace.txt", ".json"]),
        (["trace", "--out", "absent/trace.json"], ["absent/trace.json", "No such file"]),
        (["run", "--mask", "casual"], ["mask", "did you mean 'causal'"]),
        (["run", "--kv-tile", "0"], ["kv_tile", "0", "integer from 1"]),
        (["run", "--kv-tile", "many"], ["--kv-tile", "many"]),
        (["run", "--kv-tile", "-5"], ["kv_tile", "-5"]),
        (["run", "--softmax-rows", "1.5"], ["--softmax-rows"]),
        (["run", "--heads", "6", "--kv-heads", "4"], ["kv_heads", "heads"]),
        (["run", "--threads", "0", *SMALL], ["threads", "0"]),
        (["run", "--scale", "nan"], ["scale", "nan"]),
        (["run", "--window", "x"], ["--window"]),
        (["run", "--colour"], ["--colour"]),
        (["run", "stray"], ["stray"]),
        (["runn"], ["runn", "run"]),
        (["run", "--input", "absent.npz"], ["absent.npz", "No such file"]),
        (["run", "--out", "absent/out.npz"], ["absent/out.npz", "No such file"]),
        (["run", "--out", "out.txt"], ["out.txt", ".npz"]),
        (["run", "--plot", "out.bmp"], ["out.bmp", ".png"]),
        (["budget", "--head-dim", "0"], ["head_dim", "0"]),
        (["budget", "--slots", "100"], ["slots", "100"]),
        (["platforms", "--platform", "absent.toml"], ["absent.toml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line_and_status_2(tilesim_cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refused(tilesim_cli(*arguments), *words)
    assert not os.listdir(tmp_path)


def bad_tensors(kind):
    q, k, v = (np.ones((1, 2, 4, 8), np.float16) for _ in range(3))
    return {
        "rank": (q[0], k, v),
        "head_dim": (q, k[..., :4], v),
        "batch": (np.concatenate([q, q]), k, v),
        "keys and values": (q, k, v[:, :, :3]),
        "heads": (q[:, [0, 1, 0]], k, v),
        "integer": (q.astype(np.int32), k, v),
        "complex": (q, k.astype(np.complex64), v),
        "boolean": (q, k, v.astype(bool)),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    ["rank", "head_dim", "batch", "keys and values", "heads", "integer", "complex", "boolean"],
)
def test_bad_tensors_are_one_line_and_status_2(tilesim_cli, tmp_path, kind):
    q, k, v = bad_tensors(kind)
    np.savez(tmp_path / "in.npz", q=q, k=k, v=v)
    refused(tilesim_cli("run", "--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz"), "got", "must")
    assert os.listdir(tmp_path) == ["in.npz"]


def test_values_that_are_not_finite_are_reported_and_still_valid_json(tilesim_cli, tmp_path):
    q, k, v = (np.ones((1, 1, 4, 8), np.float16) for _ in range(3))
    q[0, 0, 1, 0], v[0, 0, 3, 0] = np.nan, np.inf
    np.savez(tmp_path / "in.npz", q=q, k=k, v=v)
    status, out, err = tilesim_cli("run", "--input", tmp_path / "in.npz", "--json")
    document = json.loads(out, parse_constant=pytest.fail)
    assert status == 0
    assert any("q holds 1 NaN" in line for line in document["warnings"])
    assert "q holds 1 NaN" in err
    assert "v holds 0 NaN and 1 infinite" in err
    assert tilesim_cli("run", "--input", tmp_path / "in.npz", "--quiet")[2] == ""


def test_no_bar_without_a_terminal_and_one_with(tmp_path):
    pty = pytest.importorskip("pty")
    code = (
        "import tilesim.progress as p; p.DELAY_S = 0; import tilesim.cli as c; c.call(['run', '--seq', '64'])"
    )
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert plain.stderr == ""
    master, slave = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=slave, check=True)
    os.close(slave)
    os.set_blocking(master, False)
    shown = b""
    # A terminal hands out at most a few thousand bytes at a time.
    with contextlib.suppress(OSError):
        while part := os.read(master, 65536):
            shown += part
    assert "float64 reference" in shown.decode()
    os.close(master)


def test_version_and_module_entry():
    done = subprocess.run(
        [sys.executable, "-m", "tilesim", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == tilesim.__version__


def test_interrupt_ends_with_status_130_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "tilesim", "run", "--seq", "16384", "--heads", "64", "--out", "out.npz"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "tilesim: interrupted"
    assert b"Traceback" not in err
    assert not os.listdir(tmp_path)


def test_a_reader_that_goes_away_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "tilesim", "platforms"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_standard_output_that_is_closed_is_no_error():
    command = f"{sys.executable} -m tilesim budget >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_standard_output_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.call(["budget", "--json"]) == 2
    assert "No space left" in capsys.readouterr().err


def test_sample_is_not_changed_by_a_run(tilesim_cli):
    before = [x.copy() for x in load_sample()]
    tilesim_cli("run", "--quiet")
    for old, new in zip(before, load_sample(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_footprint_over_sequence_lengths(tilesim_cli, tmp_path):
    picture, table = tmp_path / "f.png", tmp_path / "f.csv"
    options = ("--seq-range", "128:131072", "--plot", picture, "--csv", table)
    status, out, err = tilesim_cli("budget", *options)
    assert (status, err) == (0, "")
    assert "131,072" in out
    assert "no longer fit from sequence length" in out
    assert picture.stat().st_size > 5000
    lines = table.read_text().splitlines()
    assert lines[0].startswith("seq,available_bytes,tiled_used_bytes")
    assert [line.split(",")[0] for line in lines[1:]] == [str(128 * 2**n) for n in range(11)]
    document = json.loads(tilesim_cli("budget", "--seq-range", "64:80:8", "--json")[1])
    assert [row["seq"] for row in document["lengths"]] == [64, 72, 80]


def test_budget_as_csv_and_picture(tilesim_cli, tmp_path):
    picture, table = tmp_path / "b.svg", tmp_path / "b.csv"
    status, _, _ = tilesim_cli("budget", "--plot", picture, "--csv", table)
    assert status == 0
    rows = [line.split(",") for line in table.read_text().splitlines()]
    column = rows[0].index("total_bytes")
    assert sum(int(row[column]) for row in rows[1:] if row[0] == "UB") == 137472
    assert picture.read_text().startswith("<?xml")


def test_layout_options_reach_the_plan(tilesim_cli):
    options = (
        "--score-buffers", 2, "--mask-buffers", 0, "--score-dtype", "float", "--state-mode", "WITHOUT_BRC",
        "--temporary", "maximum", "--framework-temporary", "--l1-buffers", 1,
    )  # fmt: skip
    document = json.loads(tilesim_cli("budget", *options, "--json")[1])
    buffers = {buffer["name"]: buffer for buffer in document["buffers"]}
    assert buffers["score"]["count"] == 2
    assert buffers["score"]["dtype"] == "float"
    assert "mask" not in buffers
    assert "message slot" in buffers
    assert buffers["max"]["total_bytes"] == 128 * 4
    assert {buffer["count"] for buffer in document["memories"]["L1"]["buffers"]} == {1}
    refused(tilesim_cli("budget", "--state-mode", "WITHOUT_BRD"), "state_mode", "WITHOUT_BRC")
    refused(tilesim_cli("budget", "--mask-dtype", "int8"), "--mask-dtype", "half")
    refused(tilesim_cli("budget", "--seq-range", "8:4"), "sequence range", "8:4")


def test_measured_bytes_stand_beside_the_projected_ones(tilesim_cli):
    status, out, _ = tilesim_cli("run", *SMALL, "--measure")
    assert status == 0
    assert "measured" in out
    document = json.loads(tilesim_cli("run", *SMALL, "--measure", "--json")[1])
    for name, measured in document["measured_bytes"].items():
        assert 0 < measured <= document["budget"]["memories"][name]["peak_bytes"]


def test_output_of_a_run_over_budget_says_so(tilesim_cli, tmp_path):
    out = tmp_path / "out.npz"
    big = ["--seq", 2048, "--heads", 1, "--head-dim", 16, "--kv-tile", 2048, "--softmax-rows", 32]
    assert tilesim_cli("run", *big, "--allow-over-budget", "--out", out)[0] == 0
    with np.load(out) as arrays:
        assert arrays["over_budget"]
    assert tilesim_cli("run", *SMALL, "--out", out)[0] == 0
    with np.load(out) as arrays:
        assert set(arrays.files) == {"output", "lse"}


def test_estimate_prints_time_bound_and_lanes(tilesim_cli, tmp_path):
    status, out, err = tilesim_cli("estimate")
    assert (status, err) == (0, "")
    for text in (
        "Modelled on ascend910b4",
        "bound: AIV0.VECTOR",
        "roofline",
        "load balance",
        "softmax",
        "% busy",
    ):
        assert text in out
    document = json.loads(tilesim_cli("estimate", "--json", "--seq", 2048)[1])
    assert {"schema", "time_us", "bound", "pipes", "roofline", "fits"} <= set(document)
    assert tilesim_cli("estimate", "--plot", tmp_path / "e.png")[0] == 0
    assert (tmp_path / "e.png").stat().st_size > 20000


def test_run_shows_the_modelled_device_time(tilesim_cli):
    document = json.loads(tilesim_cli("run", *SMALL, "--json")[1])
    assert {"time_us", "bound", "pipes"} <= set(document["device"])
    assert "Modelled on ascend910b4" in tilesim_cli("run", *SMALL)[1]


def test_trace_writes_a_document_that_loads(tilesim_cli, tmp_path):
    path = tmp_path / "trace.json"
    status, out, _ = tilesim_cli("trace", "--out", path, "--heads", 4)
    assert status == 0
    assert "us" in out
    document = json.loads(path.read_text())
    assert len(document["traceEvents"]) > 100
    summary = json.loads(tilesim_cli("trace", "--out", path, "--heads", 4, "--json")[1])
    assert summary["events"] == len(document["traceEvents"])
    assert os.listdir(tmp_path) == ["trace.json"]


def test_own_platform_from_a_file(tilesim_cli, tmp_path):
    from importlib import resources

    text = (resources.files("tilesim") / "platforms" / "ascend910b4.toml").read_text()
    slower = text.replace("clock_mhz = { value = 1650", "clock_mhz = { value = 825")
    assert slower != text
    (tmp_path / "mine.toml").write_text(slower.replace('name = "ascend910b4"', 'name = "mine"'))
    times = [
        json.loads(tilesim_cli("estimate", "--json", "--platform", name)[1])
        for name in ("ascend910b4", tmp_path / "mine.toml")
    ]
    one, two = (time["time_us"] - time["launch_us"] for time in times)
    assert two == pytest.approx(2 * one)
    (tmp_path / "bad.toml").write_text(text.replace("queue_cycles", "queue_cycle"))
    refused(tilesim_cli("estimate", "--platform", tmp_path / "bad.toml"), "queue_cycle", "did you mean")


def test_sweep_prints_the_fastest_and_writes_rows(tilesim_cli, tmp_path):
    path = tmp_path / "rows.csv"
    status, out, err = tilesim_cli(
        "sweep", "--kv-tile", "128,512,8192", "--softmax-rows", "8,16", "--output", path
    )
    assert (status, err) == (0, "")
    assert "6 configurations: 4 fits, 2 over budget" in out
    assert path.read_text().count("\n") == 7
    document = json.loads(tilesim_cli("sweep", "--kv-tile", "128,512", "--json")[1])
    assert [row["kv_tile"] for row in document["rows"]] == [128, 512]
    assert document["counts"] == {"fits": 2}


def test_sweep_recommends_within_limits(tilesim_cli):
    grid = ("--kv-tile", "128,256,512", "--softmax-rows", "8,16,32")
    status, out, _ = tilesim_cli("sweep", *grid, "--best")
    assert status == 0
    assert "Recommended: softmax_rows 32, kv_tile 256" in out
    assert "slower" in out
    best = json.loads(tilesim_cli("sweep", *grid, "--max-ub", "128KiB", "--json")[1])["advice"]["best"]
    assert best["ub_used_bytes"] <= 128 * 1024
    refused(tilesim_cli("sweep", *grid, "--max-ub", "1KiB"), "no configuration")


def test_sweep_from_a_file_with_options_over_it(tilesim_cli, tmp_path):
    (tmp_path / "grid.toml").write_text("kv_tile = [128, 256]\nheads = [1, 2]\n")
    document = json.loads(tilesim_cli("sweep", "--grid", tmp_path / "grid.toml", "--heads", "4", "--json")[1])
    assert [(row["heads"], row["kv_tile"]) for row in document["rows"]] == [(4, 128), (4, 256)]
    (tmp_path / "bad.toml").write_text("kv_tile = [128]\nkvtile = 3\n")
    refused(tilesim_cli("sweep", "--grid", tmp_path / "bad.toml"), "line 2", "kvtile", "did you mean")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv-tile", ""], ["--kv-tile"]),
        (["--kv-tile", "8:4"], ["--kv-tile", "8:4"]),
        (["--output", "rows.txt"], ["rows.txt", ".csv"]),
        (["--html", "page.txt"], ["page.txt", ".html"]),
        (["--workers", "0"], ["workers", "0"]),
        (["--max-ub", "10KB"], ["10KB", "KiB"]),
        (["--grid", "absent.toml"], ["absent.toml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_sweep_refuses_bad_options(tilesim_cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refused(tilesim_cli("sweep", *arguments), *words)
    assert not os.listdir(tmp_path)


def test_sweep_draws_every_picture_and_writes_a_page(tilesim_cli, tmp_path):
    pictures, page = tmp_path / "pictures", tmp_path / "page.html"
    options = ("--kv-tile", "256,512", "--best", "--plot", pictures, "--html", page)
    assert tilesim_cli("sweep", *options)[0] == 0
    names = {"heatmap.png", "pareto.png", "footprint.png", "error.png", "throughput.png"}
    assert set(os.listdir(pictures)) == names
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 5
    assert "http://" not in text
    assert "https://" not in text


def test_sweep_reports_progress_unless_quiet():
    code = (
        "import tilesim.cli_sweep as s, tilesim.cli as c; s.REPORT_S = 0; "
        "c.call(['sweep', '--kv-tile', '64:512:4', '--slots', '1,2', '--workers', '1'{}])"
    )
    for more, shown in (("", True), (", '--quiet'", False)):
        done = subprocess.run(
            [sys.executable, "-c", code.format(more)], capture_output=True, text=True, check=True
        )
        assert ("configurations" in done.stderr and "s left" in done.stderr) == shown
