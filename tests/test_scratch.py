"""Storage kept between calls: never handed out twice, bounded, on a cache line."""

import contextlib
import gc
import sys
import threading

import numpy as np
import pytest
from interrupts import at_line, interrupt

from tilesim import scratch


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(scratch, "_kept", {})
    scratch._returned.clear()


def test_storage_is_large_enough_and_starts_on_a_cache_line():
    for size in (1, 17, 100_001):
        array = scratch.take(size)
        assert array.size >= size
        assert array.dtype == np.float32
        assert array.ctypes.data % scratch.CACHE_LINE_BYTES == 0


def test_what_was_given_back_is_used_again_but_never_twice():
    first = scratch.take(10_000)
    place = first.ctypes.data
    scratch.give_back(first)
    again, other = scratch.take(9_000), scratch.take(9_000)
    assert again.ctypes.data == place
    assert not np.shares_memory(again, other)


def test_small_requests_leave_large_storage_alone():
    large = scratch.take(1_000_000)
    scratch.give_back(large)
    assert not np.shares_memory(scratch.take(1_000), large)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(scratch, "MOST_BYTES", 1_000_000)
    for _ in range(5):
        scratch.give_back(scratch.aligned(100_000))
    assert sum(array.nbytes for array in scratch._kept.values()) <= 1_000_000
    scratch.give_back(scratch.aligned(1_000_000))
    assert not scratch._kept


def test_threads_never_share():
    failures = []

    def work(number):
        for _ in range(200):
            array = scratch.take(5_000)
            array[:5_000] = number
            if not (array[:5_000] == number).all():
                failures.append(number)
            scratch.give_back(array)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def is_scratch(code):
    return code.co_filename == scratch.__file__


@pytest.mark.parametrize("line", range(1, 30))
def test_an_interrupt_anywhere_leaves_storage_usable(line):
    scratch.give_back(scratch.aligned(5_000))
    with contextlib.suppress(KeyboardInterrupt), at_line(line, interrupt, is_scratch):
        scratch.give_back(scratch.take(5_000))
    one, other = scratch.take(5_000), scratch.take(5_000)
    assert not np.shares_memory(one, other)
    scratch.give_back(one)
    assert scratch.take(5_000) is one


@pytest.mark.parametrize("line", range(1, 30))
def test_a_signal_handler_takes_storage_of_its_own(line):
    scratch.give_back(scratch.aligned(5_000))
    scratch.give_back(scratch.aligned(5_000))
    taken = []

    def take_two():
        taken.extend((scratch.take(5_000), scratch.take(5_000)))

    with at_line(line, take_two, is_scratch):
        taken.append(scratch.take(5_000))
        scratch.give_back(scratch.aligned(3_000))
    for first, array in enumerate(taken):
        assert array.size >= 5_000
        assert not any(np.shares_memory(array, other) for other in taken[first + 1 :])


def test_a_result_is_not_used_again_while_any_array_looks_at_it():
    result = scratch.lend((300, 400))
    place = result.ctypes.data
    assert result.shape == (300, 400)
    assert result.flags.c_contiguous
    assert result.flags.writeable
    view = result[5:].T
    del result
    assert not np.shares_memory(scratch.lend((300, 400)), view)
    del view
    # Two results have come back by now.
    assert place in {array.ctypes.data for array in (scratch.lend((300, 400)), scratch.lend((300, 400)))}


def test_only_results_of_some_size_come_back():
    for shape in ((0, 3), (4, 5), (1, scratch.MOST_LENT_BYTES // 4 + 1)):
        assert scratch.lend(shape).shape == shape
    assert not scratch._returned


def test_what_results_let_go_is_bounded():
    results = [scratch.lend((64, 1024)) for _ in range(20)]
    del results
    assert len(scratch._returned) <= 4


def test_a_collection_within_take_may_give_storage_back():
    """Making a tuple for each array would begin one, once no tuples are kept ready."""
    for size in range(40):
        scratch.give_back(scratch.aligned(60_000 + size))

    def finalise(phase, _):
        scratch.give_back(scratch.aligned(50_000))

    hold, thresholds = [], gc.get_threshold()
    gc.callbacks.append(finalise)
    gc.set_threshold(1)
    try:
        for number in range(20):
            hold.extend((number, step) for step in range(3000))
            assert scratch.take(70_000 + number).size >= 70_000
    finally:
        gc.callbacks.remove(finalise)
        gc.set_threshold(*thresholds)


def test_a_loan_that_was_interrupted_has_nothing_to_give_back(monkeypatch):
    said = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    loan = scratch._Loan.__new__(scratch._Loan)
    del loan
    assert not said
