"""The Chrome trace: a strict check of the format, and of what it says."""

import collections
import itertools
import json

import pytest

import tilesim as ts
from tilesim.trace import chrome_trace

CASES = {
    "long": (ts.Workload(heads=4, seq_q=1100), ts.Tile()),
    "short": (ts.Workload(heads=40, seq_q=200, head_dim=64), ts.Tile()),
    "one slot": (ts.Workload(heads=2, seq_q=700, mask="full"), ts.Tile(slots=1, kv_tile=128)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    lines = ts.timeline(*CASES[request.param], "half-data-float-state", "ascend910b4")
    plan = ts.budget(*CASES[request.param], "half-data-float-state", "ascend910b4")
    return lines, json.loads(json.dumps(chrome_trace(lines, plan), allow_nan=False))


def events(document, phase):
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_every_event_has_what_its_phase_needs(case):
    _, document = case
    needed = {
        "M": {"name", "pid", "args"},
        "X": {"name", "pid", "tid", "ts", "dur", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
        "C": {"name", "pid", "ts", "args"},
    }
    for event in document["traceEvents"]:
        assert needed[event["ph"]] <= set(event)
        assert event.get("dur", 0) >= 0
        assert event.get("ts", 0) >= 0
        assert isinstance(event["pid"], int)


def names(document, kind):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events(document, "M")
        if event["name"] == kind
    }


def test_processes_and_threads_are_named(case):
    _, document = case
    threads, processes = names(document, "thread_name"), names(document, "process_name")
    assert {(event["pid"], event["tid"]) for event in events(document, "X")} <= set(threads)
    assert {"AIC", "AIV0", "AIV1"} <= {name.split()[-1] for name in processes.values()}


def test_no_lane_does_two_things_at_once(case):
    _, document = case
    lanes = collections.defaultdict(list)
    for event in events(document, "X"):
        lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-9


def test_every_wait_ends_after_its_set(case, request):
    lines, document = case
    slots = 1 if "one slot" in request.node.name else 2
    sets = {event["id"]: event for event in events(document, "s")}
    waits = {event["id"]: event for event in events(document, "f")}
    assert set(sets) == set(waits)
    flag_us = (
        ts.platform("ascend910b4").timing["flag_cycles"] / ts.platform("ascend910b4").timing["clock_mhz"]
    )
    for number, source in sets.items():
        assert waits[number]["ts"] >= source["ts"] + flag_us - 1e-9
    counts = collections.Counter(event["name"] for event in sets.values())
    turns = len({(event.task, event.tile) for event in lines.events})
    # A vector core whose rows see nothing of a tile has no softmax there.
    softmaxes = len(
        {(event.task, event.tile, event.lane) for event in lines.events if event.name == "softmax"}
    )
    assert counts["QK_READY"] == counts["PROB_READY"] == softmaxes
    assert counts["PV_READY"] == 2 * turns
    assert counts["PV_DONE"] == 2 * max(0, turns - slots)


def test_total_is_the_modelled_time(case):
    lines, document = case
    end = max(event["ts"] + event["dur"] for event in events(document, "X"))
    assert end == pytest.approx(lines.device_time.time_us)
    assert document["otherData"]["time_us"] == lines.device_time.time_us


def test_busy_times_are_those_of_the_estimate(case):
    lines, _ = case
    busy = collections.Counter()
    for event in lines.events:
        busy[event.lane] += event.end_us - event.start_us
    for lane, busy_us in lines.device_time.busy_us.items():
        assert busy[lane] == pytest.approx(busy_us, abs=1e-6)


def test_counter_never_exceeds_the_plan(case):
    _, document = case
    values = [event["args"]["live"] for event in events(document, "C")]
    assert values
    assert max(values) <= 196608
