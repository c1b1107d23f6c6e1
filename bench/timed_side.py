"""Times one configuration with the tilesim on PYTHONPATH, on demand; `sides.py` starts it, one for each side.

The first line on standard input is the configuration, every further one a number of calls; each is answered
by one line of JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from configurations import parts


def variant_of(workload, rng):
    """Return the options of `ts.attention` that a workload's fields stand for, with tensors of its own.

    A checkout compared may be older than a field: it is then without it, as its workloads are.
    """
    fields = {"align": "bottom-right", "key_lengths": None, "softcap": 0.0}
    options = {name: getattr(workload, name, default) for name, default in fields.items()}
    options = {name: value for name, value in options.items() if value != fields[name]}
    kind = getattr(workload, "attn_mask", None)
    if kind is not None:
        shown = rng.random((workload.seq_q, workload.seq_kv), np.float32) < 0.9
        options["attn_mask"] = shown if kind == "bool" else np.where(shown, np.float32(0), -np.inf)
    if getattr(workload, "alibi", False):
        options["alibi_slopes"] = 2.0 ** -np.linspace(1, 8, workload.heads)
    if getattr(workload, "sinks", False):
        options["sinks"] = rng.standard_normal(workload.heads)
    return options


def prepare(configuration):
    """Return a call of the kernel on random tensors that are the same for every side."""
    import tilesim as ts

    workload, tile, precision, _ = parts(configuration, ts)
    rng = np.random.default_rng(0)
    key = (workload.batch, workload.kv_heads, workload.seq_kv)
    shapes = (
        (workload.batch, workload.heads, workload.seq_q, workload.head_dim),
        (*key, workload.head_dim),
        (*key, workload.head_dim_v),
    )
    q, k, v = (rng.standard_normal(shape, np.float32) for shape in shapes)
    options = {"mask": workload.mask, "window": workload.window, "precision": precision, "tile": tile}
    options |= variant_of(workload, rng)
    return Path(ts.__file__).parent, lambda: ts.attention(q, k, v, **options)


def seconds(call, count=1):
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def serve(questions, answer):
    package, call = prepare(json.loads(questions.readline()))
    first_call_s = seconds(call)
    answer({"package": str(package), "first_call_s": first_call_s, "second_call_s": seconds(call)})
    for line in questions:
        # While the other side ran, this one's threads slept and its data left the caches.
        call()
        answer({"seconds": seconds(call, int(line))})


def main():
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(document):
        print(json.dumps(document), file=answers, flush=True)

    try:
        serve(sys.stdin, answer)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
