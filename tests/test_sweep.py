"""Sweeps: every row right, in order, whatever runs them; nothing lost, nothing doubled, nothing mixed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import tilesim as ts
from tilesim.errors import ConfigError, InputError, OutputError
from tilesim.results_file import ResultsFile, read_rows
from tilesim.sweep import COLUMNS, SweepTable, sweep

MODULE = sys.modules[sweep.__module__]
"""The module, which the function hides in the package."""
AXES = {
    "heads": [6, 32],
    "kv_heads": [None, 4],
    "softmax_rows": [8, 32],
    "kv_tile": [128, 512, 1024],
    "precision": ["half-data-float-state", "float"],
}


@pytest.fixture(scope="module")
def table():
    return sweep(**AXES)


def test_every_configuration_is_a_row_with_its_status(table):
    assert len(table) == 48
    assert [row["index"] for row in table] == list(range(48))
    assert all(tuple(row) == COLUMNS for row in table)
    counts = table.counts()
    assert counts["invalid"] == 12  # 6 heads on 4 key heads
    assert counts["fits"] + counts["over budget"] == 36


def test_table_as_a_data_frame(table):
    pytest.importorskip("pandas")
    assert table.to_pandas().shape == (48, len(COLUMNS))


def test_rows_are_what_budget_and_estimate_say(table):
    for row in table.rows[::5]:
        if row["status"] == "invalid":
            assert "kv_heads" in row["reason"]
            continue
        workload = ts.Workload(heads=row["heads"], kv_heads=row["kv_heads"])
        tile = ts.Tile(softmax_rows=row["softmax_rows"], kv_tile=row["kv_tile"])
        plan = ts.budget(workload, tile, row["precision"], row["platform"])
        assert row["ub_used_bytes"] == plan.used_bytes
        assert row["query_rows"] == plan.tile.query_rows
        assert (row["status"] == "fits") == plan.fits
        if plan.fits:
            device = ts.estimate(workload, tile, row["precision"], row["platform"])
            assert (row["time_us"], row["bound"]) == (device.time_us, device.bound)
        else:
            assert str(plan.excess_bytes) in row["reason"]
            assert row["time_us"] is None


def test_variants_are_axes(tmp_path):
    axes = {
        "heads": [2], "seq_q": [4], "seq_kv": [600], "head_dim": [16], "align": ["bottom-right", "top-left"],
        "softcap": [0, 30], "alibi": [False, True], "sinks": [True], "kv_tile": [128], "kv_splits": [1, 3],
    }  # fmt: skip
    rows = sweep(**axes, output=tmp_path / "rows.csv").rows
    assert len(rows) == 16
    assert read_rows(tmp_path / "rows.csv") == rows
    for row in rows:
        variant = {name: row[name] for name in ("align", "softcap", "alibi", "sinks")}
        workload = ts.Workload(heads=2, seq_q=4, seq_kv=600, head_dim=16, **variant)
        tile = ts.Tile(kv_tile=128, kv_splits=row["kv_splits"])
        assert row["time_us"] == ts.estimate(workload, tile, row["precision"], row["platform"]).time_us
    run = sweep(**{**axes, "align": ["top-left"]}, run=True, errors=True).rows
    assert all(0 < row["run_rms_error"] < 1e-2 for row in run)


def test_processes_give_the_same_rows(table, monkeypatch):
    monkeypatch.setattr(MODULE, "CHUNK", 5)
    assert sweep(**AXES, workers=2).rows == table.rows


def test_numbers_on_request():
    got = sweep(
        heads=[1], seq=[64], head_dim=[16], kv_tile=[16, 32], precision=["float"], run=True, errors=True
    )
    for row in got:
        assert 0 < row["run_rms_error"] < 1e-5
        assert 0 < row["sample_rms_error"] < 1e-6
        assert row["run_gflops"] > 0


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_rows_come_back_from_the_file(table, tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    assert sweep(**AXES, output=path).rows == table.rows
    assert read_rows(path) == table.rows
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_cut_file_is_readable_and_resumed_to_the_same_end(table, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(MODULE, "CHUNK", 7)
    whole, path = tmp_path / f"whole.{suffix}", tmp_path / f"rows.{suffix}"
    sweep(**AXES, output=whole)

    def stop(done, total):
        if done >= 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(**AXES, output=path, progress=stop)
    partial = tmp_path / f"rows.{suffix}.partial.jsonl" if suffix == "parquet" else path
    kept = read_rows(partial)
    assert kept == table.rows[: len(kept)]
    assert len(kept) >= 14
    with open(partial, "ab") as file:
        file.write(b'{"index": 21, "gri')  # as if cut in the middle of a line
    asked = []
    assert (
        sweep(**AXES, output=path, resume=True, progress=lambda done, _: asked.append(done)).rows
        == table.rows
    )
    assert asked[0] > len(kept)
    if suffix == "parquet":
        assert read_rows(path) == read_rows(whole)
        assert not partial.exists()
    else:
        assert path.read_bytes() == whole.read_bytes()
    assert sweep(**AXES, output=path, resume=True).rows == table.rows


def test_rows_of_another_grid_or_model_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    sweep(kv_tile=[128, 256], output=path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="another grid or model"):
        sweep(kv_tile=[128, 512], output=path, resume=True)
    monkeypatch.setattr(MODULE, "MODEL_VERSION", 2)
    with pytest.raises(InputError, match="another grid or model"):
        sweep(kv_tile=[128, 256], output=path, resume=True)
    path.write_bytes(before.splitlines(keepends=True)[1])
    monkeypatch.setattr(MODULE, "MODEL_VERSION", 1)
    with pytest.raises(InputError, match="index"):
        sweep(kv_tile=[128, 256], output=path, resume=True)


def test_outputs_that_cannot_be_used(tmp_path):
    with pytest.raises(OutputError, match=r"\.jsonl"):
        sweep(output=tmp_path / "rows.txt")
    with pytest.raises(OutputError, match="No such file"):
        sweep(output=tmp_path / "absent" / "rows.csv")
    (tmp_path / "rows.jsonl").write_text("no rows\n")
    with pytest.raises(InputError, match="damaged"):
        sweep(output=tmp_path / "rows.jsonl", resume=True)
    with pytest.raises(ConfigError, match="workers"):
        sweep(workers=0)


def test_a_killed_process_leaves_a_readable_file(tmp_path):
    path = tmp_path / "rows.csv"
    command = [
        sys.executable, "-m", "tilesim", "sweep", "--kv-tile", "64:1024:8", "--softmax-rows", "1:64:1",
        "--output", str(path), "--workers", "1",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not path.exists() or path.stat().st_size < 100_000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = read_rows(path)
    assert len(rows) >= 200
    assert [row["index"] for row in rows] == list(range(len(rows)))


def test_a_full_disk_is_an_output_error(tmp_path, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    with ResultsFile(tmp_path / "rows.csv", COLUMNS, "x", resume=False) as file:
        real, file._file = file._file, Full()
        with pytest.raises(OutputError, match="No space left"):
            file.append([dict.fromkeys(COLUMNS)])
        file._file = real


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.1)


def start(*command):
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_dask_cluster_gives_the_same_rows_with_a_worker_ended_midway(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(MODULE, "CHUNK", 20)
    axes = {"kv_tile": list(range(64, 1024, 8)), "softmax_rows": [4, 8, 16]}
    address_file = tmp_path / "scheduler.json"
    scheduler = start(
        "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(address_file),
    )  # fmt: skip
    wait_for(address_file.exists)
    wait_for(lambda: address_file.read_text().strip().endswith("}"))
    address = json.loads(address_file.read_text())["address"]
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path))
    workers = [start("distributed.cli.dask_worker", address, *options) for _ in range(2)]
    try:
        with distributed.Client(address) as client:
            client.wait_for_workers(2, timeout=60)

        def end_one(done, total):
            if done > total // 3 and workers[0].poll() is None:
                workers[0].kill()

        got = sweep(**axes, scheduler=address, progress=end_one)
        assert workers[0].wait(10) is not None
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()
    assert got.rows == sweep(**axes).rows


def test_a_scheduler_that_is_not_there_is_refused():
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match="cannot be reached"):
        sweep(scheduler="tcp://127.0.0.1:9")


def test_table_can_be_shared_between_threads(table):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(sweep(kv_tile=[256, 512]).rows)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rows == results[0] for rows in results)
    assert isinstance(table, SweepTable)


def test_an_interrupted_sweep_in_processes_ends_and_leaves_whole_rows(tmp_path):
    path = tmp_path / "rows.csv"
    command = [
        sys.executable, "-m", "tilesim", "sweep", "--kv-tile", "64:1024:8", "--softmax-rows", "1:64:1",
        "--output", str(path), "--workers", "2",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    wait_for(lambda: path.exists() and path.stat().st_size > 50_000)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "tilesim: interrupted"
    assert [row["index"] for row in read_rows(path)] == list(range(len(read_rows(path))))
