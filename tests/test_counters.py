"""Deterministic counters against bench/counters.json, and some of them against figures worked out by hand."""

import json
import subprocess
import sys

import configurations
import counters
import pytest

RECORD = configurations.load_entries()


def test_counters_are_as_recorded():
    """Where a change is meant: ``python bench/counters.py --update``, and say why in the commit."""
    assert not counters.differences()


BY_HAND = {
    # 64 row groups see one tile, 64 see two, the last one, rows 1024 to 1031, sees three.
    ("ragged", "score_tiles"): 64 + 2 * 64 + 3,
    # 8 rows see one tile of 512 in the upper half of a head and two in the lower; 32 heads.
    ("reference kernel", "score_tiles"): 32 * (64 + 2 * 64),
    ("reference kernel", "useful_flops"): 32 * (1024 * 1025 // 2) * 4 * 128,
    ("reference kernel", "ub_used_bytes"): 137_472,
    ("head dim 64", "ub_used_bytes"): 104_704,
    ("one KV tile", "ub_used_bytes"): 73_984,
    # One row of each head reads 8 tiles of 512 keys, all visible.
    ("decode", "score_tiles"): 8 * 32 * 8,
    ("decode", "useful_flops"): 8 * 32 * 4096 * 4 * 128,
}


@pytest.mark.parametrize(("name", "counter"), BY_HAND)
def test_recorded_counters_are_those_worked_out_by_hand(name, counter):
    assert RECORD[name]["counters"][counter] == BY_HAND[name, counter]


def test_record_holds_whole_numbers_and_covers_the_axes():
    """Numbers that are not whole could differ in the last place between machines."""
    values = [value for entry in RECORD.values() for value in entry["counters"].values()]
    assert {type(value) for value in values} == {int}
    seen = {
        field: {entry["configuration"].get(field) for entry in RECORD.values()}
        for field in ("mask", "precision", "platform", "kv_heads", "slots")
    }
    assert {"causal", "full", "window"} <= seen["mask"]
    assert {"half-data-half-state", "bfloat16-data-float-state", "float"} <= seen["precision"]
    assert all(len(values) > 1 for values in seen.values())


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"mine": {"configuration": {"heads": 2, "seq_q": 256, "head_dim": 64}, "note": "kept"}}')
    return path


def call(*arguments):
    command = [sys.executable, counters.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_own_configurations_are_recorded_and_guarded(mine):
    assert call("--update", "--file", str(mine)).returncode == 0
    entry = json.loads(mine.read_text())["mine"]
    assert entry["note"] == "kept"
    assert entry["counters"]["score_tiles"] == 2 * 32
    assert call("--check", "--file", str(mine)).returncode == 0
    entry["counters"]["score_tiles"] = 65
    del entry["counters"]["gm_bytes"]
    mine.write_text(json.dumps({"mine": entry}))
    done = call("--check", "--file", str(mine))
    assert done.returncode == 1
    gm_bytes = counters.count(entry["configuration"])["gm_bytes"]
    assert done.stdout.splitlines() == [
        "mine.json: mine: score_tiles: got 64; recorded 65",
        f"mine.json: mine: gm_bytes: got {gm_bytes}; recorded None",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "got no readable file"),
        ("{", "got no valid JSON"),
        ("{}", "of no entries"),
        ("[1]", "got list"),
        ('{"a": 3}', "a: got 3; must be"),
        ('{"a": {"configuration": {}}, "a": {"configuration": {}}}', "key 'a' occurs twice"),
        ('{"a": {"configuration": {}}}', "a: got no counters; must be recorded with --update"),
        ('{"a": {"configuration": {"rows": 8}, "counters": {}}}', "got 'rows'; must be one of"),
        ('{"a": {"configuration": {"heads": 0}, "counters": {}}}', "Workload.heads: got 0; must be"),
        ('{"a": {"configuration": {"mask": []}, "counters": {}}}', "mask: got []; must be"),
        ('{"a": {"configuration": {"platform": 3}, "counters": {}}}', "platform: got 3; must be"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(mine, text, complaint):
    mine.unlink() if text is None else mine.write_text(text)
    done = call("--check", "--file", str(mine))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert complaint in done.stderr
    assert str(mine) in done.stderr


def test_bad_usage_is_one_line():
    done = call("--chek")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
