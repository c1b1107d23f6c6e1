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
