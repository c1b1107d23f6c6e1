"""Worker threads: all of them done when a call ends, whatever ends it, and kept for the next one."""

import _thread
import contextlib
import itertools
import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from interrupts import at_line, interrupt

import tilesim as ts
from tilesim import workers
from tilesim.kernels.counter import STOPPED


class Work:
    """Waits until it is told to stop, as a kernel does between tasks, and counts who is at it."""

    def __init__(self):
        self.lock, self.begun, self.ended = threading.Lock(), 0, 0

    def __call__(self, counter):
        with self.lock:
            self.begun += 1
        while not counter[STOPPED]:
            time.sleep(0.001)
        with self.lock:
            self.ended += 1


def test_an_error_in_progress_stops_the_workers_and_passes_on():
    work = Work()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        workers.run_workers(3, 8, interrupt, work)
    assert work.begun == work.ended == 3


def test_an_error_in_one_worker_stops_the_others_and_passes_on():
    work, turns = Work(), itertools.count()

    def fails_second(counter):
        if next(turns) == 1:
            raise MemoryError("no scratch")
        work(counter)

    with pytest.raises(MemoryError, match="no scratch"):
        workers.run_workers(2, 8, None, fails_second)
    assert work.begun == work.ended == 1


def test_threads_are_used_again():
    def idents(count):
        seen, everybody = [], threading.Barrier(count)

        def note(counter):
            everybody.wait(10)
            seen.append(threading.get_ident())

        workers.run_workers(count, 8, None, note)
        return set(seen)

    first = idents(4)
    assert len(first) == 4
    before = _thread._count()
    for _ in range(20):
        idents(4)
    assert _thread._count() == before


@pytest.mark.parametrize(
    ("brief", "total", "progress", "takes_part"),
    [
        (True, 8, None, True),
        (False, 1, None, True),
        (False, 8, None, False),
        (True, 8, lambda done, total: None, False),
    ],
    ids=["brief", "one task", "long", "watched"],
)
def test_the_caller_takes_part_unless_it_has_to_watch(brief, total, progress, takes_part):
    seen, everybody = [], threading.Barrier(3)

    def note(counter):
        everybody.wait(10)
        seen.append(threading.get_ident())

    workers.run_workers(3, total, progress, note, brief=brief)
    assert len(set(seen)) == 3
    assert (threading.get_ident() in seen) == takes_part


def test_an_error_in_the_caller_stops_the_others_and_passes_on():
    work, caller = Work(), threading.get_ident()

    def fails_in_the_caller(counter):
        if threading.get_ident() == caller:
            while not work.begun:
                time.sleep(0.001)
            raise KeyboardInterrupt
        work(counter)

    with pytest.raises(KeyboardInterrupt):
        workers.run_workers(2, 8, None, fails_in_the_caller, brief=True)
    assert work.begun == work.ended == 1


def test_an_error_beside_the_caller_passes_on():
    caller = threading.get_ident()

    def fails_elsewhere(counter):
        if threading.get_ident() != caller:
            raise MemoryError("no scratch")
        while not counter[STOPPED]:
            time.sleep(0.001)

    with pytest.raises(MemoryError, match="no scratch"):
        workers.run_workers(2, 8, None, fails_elsewhere, brief=True)


LATE = """
import threading, numpy as np, tilesim as ts
x = np.random.default_rng(1).standard_normal((1, 2, 300, 32), np.float32)
wanted = ts.attention(x, x, x, threads=2).tobytes()
def late():
    main.join()
    print(ts.attention(x, x, x, threads=2).tobytes() == wanted)
main = threading.main_thread()
threading.Thread(target=late).start()
"""


def test_a_thread_that_outlives_the_main_one_still_gets_its_result():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


def _output():
    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((3, 1, 4, 300, 32), np.float32)
    return ts.attention(q, k, v, threads=3).tobytes()


def _send_output(pipe):
    pipe.send(_output())


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_computes_with_workers_of_its_own():
    wanted = _output()
    receive, send = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send_output, args=(send,), daemon=True)
    child.start()
    try:
        assert receive.poll(60)
        assert receive.recv() == wanted
    finally:
        child.kill()


class StoppedPool(workers._Pool):
    """Threads that cannot start, or never come to their work."""

    def __init__(self, starts):
        super().__init__()
        self.starts = starts

    def _start(self):
        return self.starts


def test_who_begins_after_the_end_does_nothing(monkeypatch):
    pool, calls = StoppedPool(True), []
    monkeypatch.setattr(workers, "_pool", pool)
    workers.run_workers(4, 8, None, calls.append)
    assert len(calls) == 1
    assert pool._tasks.qsize() == 4
    pool._tasks.get().take_part(before_end=lambda: None)
    assert len(calls) == 1


def test_the_caller_works_where_no_thread_starts(monkeypatch):
    pool, calls = StoppedPool(False), []
    monkeypatch.setattr(workers, "_pool", pool)
    workers.run_workers(4, 8, None, calls.append)
    assert len(calls) == 1


def test_the_caller_works_where_every_thread_dies_before_it_begins(monkeypatch):
    class Full(list):
        def append(self, _):
            raise MemoryError

    def shift(*arguments):
        made = make(*arguments)
        made._begun = Full()
        return made

    make, calls = workers._Shift, []
    monkeypatch.setattr(workers, "_Shift", shift)
    monkeypatch.setattr(workers, "_pool", workers._Pool())
    # Python says on standard error that a thread ended so.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    workers.run_workers(2, 8, None, calls.append)
    assert len(calls) == 1
    assert not workers._pool._idle


def test_interrupts_between_any_two_steps_cost_no_thread():
    def is_submit(code):
        return code is workers._Pool.submit.__code__

    workers.run_workers(2, 8, None, lambda counter: None)
    time.sleep(0.05)
    before = _thread._count()
    for line in [*range(1, 12)] * 5:
        with contextlib.suppress(KeyboardInterrupt), at_line(line, interrupt, is_submit):
            workers.run_workers(2, 8, None, lambda counter: None)
        time.sleep(0.005)
    assert _thread._count() <= before + 2


FINAL = """
import numpy as np, tilesim as ts
x = np.ones((1, 4, 300, 32), np.float32)
wanted = ts.attention(x, x, x, threads=2).tobytes()
class Last:
    def __del__(self):
        print(ts.attention(x, x, x, threads=2).tobytes() == wanted, flush=True)
last = Last()
last.itself = last
del last
"""


def test_a_finaliser_at_the_very_end_gets_its_result():
    done = subprocess.run([sys.executable, "-c", FINAL], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


INTERRUPTED = """
import numpy as np, os, signal, sys, threading, time, tilesim as ts
keys = int(sys.argv[1])
x = np.random.default_rng(1).standard_normal((1, 2, keys, 128), np.float32)
ts.attention(x[:, :, :8], x, x)
def interrupt():
    for _ in range(8):
        time.sleep(0.03)
        os.kill(os.getpid(), signal.SIGINT)
interrupts = threading.Thread(target=interrupt)
interrupts.start()
try:
    while True:
        ts.attention(x, x, x, attn_mask=np.ones((2, keys, keys), bool), threads=2)
except KeyboardInterrupt:
    pass
while interrupts.is_alive():
    try:
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
print(np.isfinite(ts.attention(x, x, x)).all())
"""


@pytest.mark.parametrize("keys", [3000, 300], ids=["long call", "short calls"])
def test_repeated_interrupts_leave_no_worker_behind(keys):
    command = [sys.executable, "-c", INTERRUPTED, str(keys)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


SIGNALLED = """
import numpy as np, signal, sys, time, tilesim as ts
x = np.random.default_rng(1).standard_normal((1, 4, 200, 32), np.float32)
def call(threads):
    return ts.attention(x, x, x, threads=threads).tobytes()
wanted, calls, wrong = call(1), [], []
def arm():
    signal.setitimer(signal.ITIMER_REAL, 0.0005 + len(calls) % 97 * 2e-5)
def compute(*_):
    calls.append(None)
    wrong.extend([None] * (call(2) != wanted))
    arm()
def stop(*_):
    calls.append(None)
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, {"computes": compute, "raises": stop}[sys.argv[1]])
end = time.perf_counter() + 3
while time.perf_counter() < end:
    try:
        arm()
        while time.perf_counter() < end:
            wrong.extend([None] * (call(2) != wanted))
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGALRM, signal.SIG_IGN)
start = time.perf_counter()
wrong.extend(None for _ in range(10) if call(2) != wanted)
print(len(wrong), len(calls) > 100, time.perf_counter() - start < 5)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals by the clock")
@pytest.mark.parametrize("handler", ["computes", "raises"])
def test_signals_anywhere_leave_the_library_usable(handler):
    command = [sys.executable, "-c", SIGNALLED, handler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "0 True True\n", done.stderr
