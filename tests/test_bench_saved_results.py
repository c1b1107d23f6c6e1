"""bench/compare.py on files of pytest-benchmark."""

import copy
import json

import pytest
from bench_calls import call, call_json

MACHINE = {"node": "one", "cpu": {"brand_raw": "EPYC", "count": 2, "hz_actual": [3_000_000_000, 0]}}
STEADY = [0.0305] * 9


def save(path, benches, machine=MACHINE):
    benchmarks = [
        {"name": name, "fullname": f"bench/b.py::{name}", "stats": {"data": data}}
        for name, data in benches.items()
    ]
    path.write_text(json.dumps({"machine_info": machine, "benchmarks": benchmarks}))
    return path


def compared(tmp_path, base, head):
    paths = save(tmp_path / "base.json", base), save(tmp_path / "head.json", head)
    status, entries = call_json(tmp_path, *paths)
    return status, {entry["name"]: entry for entry in entries}


def test_benchmarks_are_matched_by_name(tmp_path):
    base = {"same": STEADY, "slower": STEADY, "gone": STEADY}
    head = {"added": STEADY, "slower": [1.2 * x for x in STEADY], "same": STEADY}
    status, entries = compared(tmp_path, base, head)
    assert status == 1
    assert {name: entry["outcome"] for name, entry in entries.items()} == {
        "same": "no regression",
        "slower": "regression",
        "gone": "missing",
        "added": "new",
    }
    assert (entries["gone"]["reason"], entries["added"]["reason"]) == ("only in base", "only in head")


def test_missing_and_new_benchmarks_are_no_failure(tmp_path):
    status, _ = compared(tmp_path, {"gone": STEADY}, {"added": STEADY})
    assert status == 0


def test_the_first_call_is_no_steady_sample(tmp_path):
    status, entries = compared(tmp_path, {"a": [17.2, *STEADY]}, {"a": STEADY})
    assert (status, entries["a"]["outcome"]) == (0, "no regression")
    assert entries["a"]["base"] == {"first_call_s": 17.2, "samples_s": STEADY}
    assert entries["a"]["head"]["first_call_s"] is None


def test_one_sample_asks_for_more(tmp_path):
    status, entries = compared(tmp_path, {"a": [0.0305]}, {"a": [0.0305 * 1.84]})
    assert (status, entries["a"]["outcome"]) == (0, "inconclusive")


@pytest.mark.parametrize("data", [[0.0] * 9, [float("nan")] * 9, [None] * 9, ["x"] * 9, [], None])
def test_a_baseline_that_is_no_time_is_an_error_of_its_entry(tmp_path, data):
    status, entries = compared(tmp_path, {"bad": data, "good": STEADY}, {"bad": STEADY, "good": STEADY})
    assert status == 2
    assert entries["bad"]["outcome"] == "error"
    assert entries["bad"]["reason"].startswith("base: ")
    assert entries["bad"]["median_ratio"] is None
    assert entries["good"]["outcome"] == "no regression"
    table = call(tmp_path, tmp_path / "base.json", tmp_path / "head.json")
    assert table.returncode == 2
    assert table.stdout.splitlines()[-1] == "1 error, 1 no regression"


def test_files_of_different_machines_are_refused(tmp_path):
    base = save(tmp_path / "base.json", {"a": STEADY})
    for change in ({"node": "two"}, {"cpu": {**MACHINE["cpu"], "brand_raw": "Xeon"}}):
        head = save(tmp_path / "head.json", {"a": STEADY}, {**MACHINE, **change})
        done = call(tmp_path, base, head)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert "both must come from one machine" in done.stderr
    same = copy.deepcopy(MACHINE)
    same["cpu"]["hz_actual"] = [2_900_000_000, 0]
    assert call(tmp_path, base, save(tmp_path / "head.json", {"a": STEADY}, same)).returncode == 0


def test_benchmarks_of_one_name_are_told_apart_by_their_files(tmp_path):
    paths = []
    for side in ("base", "head"):
        benches = [
            {"name": "peak", "fullname": f"{file}::peak", "stats": {"data": STEADY}} for file in ("a", "b")
        ]
        paths.append(tmp_path / f"{side}.json")
        paths[-1].write_text(json.dumps({"benchmarks": benches}))
    _, entries = call_json(tmp_path, *paths)
    assert [entry["name"] for entry in entries] == ["a::peak", "b::peak"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"benchmarks": 3}', '{"benchmarks": [{}]}', "{", "\x00"])
def test_another_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = call(tmp_path, path, save(tmp_path / "good.json", {"a": STEADY}))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "bad.json: got no" in done.stderr
