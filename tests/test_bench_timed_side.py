"""What compare.py times is the configuration asked for, every field of it."""

import dataclasses

import pytest
import timed_side

import tilesim as ts
from tilesim.problem import read_problem

FIELDS = {
    "batch": 2, "heads": 4, "seq_q": 5, "seq_kv": 7, "head_dim": 4, "head_dim_v": 6,
    "mask": "full", "align": "top-left", "key_lengths": [3], "softcap": 30.0, "alibi": True, "sinks": True,
}  # fmt: skip
SMALL = {"heads": 2, "kv_heads": 2, "seq_q": 4, "head_dim": 8}
CHANGES = [
    {},
    *({name: value} for name, value in FIELDS.items()),
    {"kv_heads": 1}, {"attn_mask": "bool"}, {"attn_mask": "additive", "mask": "full"},
    {"mask": "window", "window": [2, 1]},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_call_has_every_field_of_the_configuration(monkeypatch, change):
    calls = []
    monkeypatch.setattr(ts, "attention", lambda *tensors, **options: calls.append((tensors, options)))
    configuration = SMALL | change | {"kv_tile": 64, "precision": "float"}
    workload, tile, precision, _ = timed_side.parts(configuration, ts)
    timed_side.prepare(configuration)[1]()
    ((tensors, options),) = calls
    assert (options.pop("tile"), options.pop("precision")) == (tile, precision)
    named = {"mask": options.pop("mask"), "window": options.pop("window")}
    got = read_problem(*tensors, **named, scale=None, options=options).workload
    assert got == workload


def test_every_field_of_a_workload_is_tried():
    names = {field.name for field in dataclasses.fields(ts.Workload)}
    assert names == {name for change in CHANGES for name in change}
