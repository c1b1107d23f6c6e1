"""Calls of bench/compare.py, and stand-ins for tilesim whose clock only a call of the kernel moves on."""

import json
import os
import subprocess
import sys

import compare

STAND_IN = """
import time
from pathlib import Path

now_s, calls = 0.0, 0
time.perf_counter = lambda: now_s

class Workload:
    mask = window = None
    batch = heads = kv_heads = seq_q = seq_kv = head_dim = head_dim_v = 1
    def __init__(self, **fields):
        self.fields = fields
    def to_dict(self):
        return {"heads": 1}

class Tile:
    def __init__(self, **fields):
        pass

def attention(q, k, v, **options):
    global now_s, calls
    calls += 1
    now_s += SECONDS
"""


def make_checkout(folder, seconds, extra=""):
    (folder / "tilesim").mkdir(parents=True)
    (folder / "tilesim" / "__init__.py").write_text(STAND_IN.replace("SECONDS", seconds) + extra)
    return folder


def environment(tmp_path):
    (tmp_path / "tmp").mkdir(exist_ok=True)
    return os.environ | {"TMPDIR": str(tmp_path / "tmp")}


def call(tmp_path, *arguments, cwd=None):
    command = [sys.executable, compare.__file__, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(tmp_path), cwd=cwd
    )
    assert not list((tmp_path / "tmp").iterdir())
    return done


def call_json(tmp_path, *arguments):
    done = call(tmp_path, *arguments, "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["entries"]
