"""The modelled pipeline as Chrome trace JSON, which Perfetto and chrome://tracing open.

Processes are the units of one AI core, threads their lanes. Arrows lead from the operation that sets a
cross-core flag to the one that waited for it; a counter shows the UB bytes in use at each stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilesim.memory.budget import Budget
from tilesim.timing.device_time import LANES
from tilesim.timing.timeline import Event, Timeline

HOST = 0
"""Process of the launch itself; the units of the core follow."""
UNITS = ("AIC", "AIV0", "AIV1")

STAGE_OF = {
    "copy score in": "copy_in",
    "copy mask in": "mask",
    "softmax": "softmax",
    "copy probability out": "copy_out",
    "copy partial in": "accumulate",
    "accumulate": "accumulate",
    "load split": "store",
    "combine split": "store",
    "normalise": "normalise",
    "store output": "store",
}
"""Operation of a vector core -> the stage of the memory plan it belongs to."""


def chrome_trace(timeline: Timeline, budget: Budget) -> dict[str, Any]:
    """Return a trace document.

    Parameters
    ----------
    timeline : Timeline
    budget : Budget
        Of the same configuration: gives the UB bytes of each stage.

    Returns
    -------
    dict
        Times in microseconds. The last event ends at ``timeline.device_time.time_us``.
    """
    device = timeline.device_time
    events = [*_names(timeline), *_host(timeline)]
    events += [_complete(event) for event in timeline.events]
    events += _flows(timeline.events, budget.tile.slots)
    events += _counters(timeline.events, budget)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "time_us": device.time_us,
            "bound": device.bound,
            "platform": device.platform,
            "core": timeline.core,
        },
    }


def _place(lane: str) -> dict[str, int]:
    unit = lane.split(".")[0]
    return {"pid": 1 + UNITS.index(unit), "tid": LANES.index(lane)}


def _names(timeline: Timeline) -> list[dict[str, Any]]:
    def name(kind: str, text: str, **place: int) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "ts": 0, "args": {"name": text}, **place}

    names = [name("process_name", f"launch on {timeline.device_time.platform}", pid=HOST, tid=0)]
    names.append(name("thread_name", "host", pid=HOST, tid=0))
    for index, unit in enumerate(UNITS):
        names.append(name("process_name", f"core {timeline.core} {unit}", pid=1 + index, tid=0))
    names += [name("thread_name", lane.split(".")[1], **_place(lane)) for lane in LANES]
    return names


def _host(timeline: Timeline) -> list[dict[str, Any]]:
    device = timeline.device_time
    spans = [("launch", 0.0, device.launch_us)]
    last = max((event.end_us for event in timeline.events), default=device.launch_us)
    if device.time_us > last:
        spans.append((f"{device.bound} bandwidth", last, device.time_us))
    return [
        {"ph": "X", "name": name, "pid": HOST, "tid": 0, "ts": start, "dur": end - start, "args": {}}
        for name, start, end in spans
    ]


def _complete(event: Event) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": event.name,
        "ts": event.start_us,
        "dur": event.end_us - event.start_us,
        "args": {"lane": event.lane, "task": event.task, "tile": event.tile, "group": event.group},
        **_place(event.lane),
    }


def _flows(events: Iterable[Event], slots: int) -> list[dict[str, Any]]:
    """Return arrows for the four flags of every tile: from the end that sets one to the start that waited."""
    by_turn: dict[tuple[int, int], dict[tuple[str, str], list[Event]]] = {}
    for event in events:
        unit = event.lane.split(".")[0]
        by_turn.setdefault((event.task, event.tile), {}).setdefault((unit, event.name), []).append(event)
    # The steps that combine splits have no flags of their own.
    turns = sorted(turn for turn, done in by_turn.items() if ("AIC", "matmul call") in done)
    flows: list[dict[str, Any]] = []

    def arrow(name: str, source: Event, target: Event) -> None:
        number = len(flows) // 2 + 1
        common = {"name": name, "cat": "flag", "id": number}
        flows.append({"ph": "s", "ts": source.end_us, **common, **_place(source.lane)})
        flows.append({"ph": "f", "bp": "e", "ts": target.start_us, **common, **_place(target.lane)})

    for index, turn in enumerate(turns):
        done = by_turn[turn]
        calls = done[("AIC", "matmul call")]
        reused = by_turn[turns[index + slots]] if index + slots < len(turns) else None
        for unit in UNITS[1:]:
            if (unit, "softmax") in done:
                arrow("QK_READY", done[("AIC", "store score")][-1], done[(unit, "copy score in")][0])
                arrow("PROB_READY", done[(unit, "copy probability out")][-1], calls[1])
            if (unit, "accumulate") not in done:
                continue
            arrow("PV_READY", done[("AIC", "store partial")][-1], done[(unit, "copy partial in")][0])
            if reused is not None:
                arrow("PV_DONE", done[(unit, "accumulate")][-1], reused[("AIC", "matmul call")][0])
    return flows


def _counters(events: Iterable[Event], budget: Budget) -> list[dict[str, Any]]:
    live_bytes = budget.memories["UB"].live_bytes
    return [
        {
            "ph": "C",
            "name": "UB in use (bytes)",
            "ts": event.start_us,
            "pid": _place(event.lane)["pid"],
            "args": {"live": live_bytes[STAGE_OF[event.name]]},
        }
        for event in events
        if event.name in STAGE_OF
    ]
