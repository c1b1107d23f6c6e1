"""Every worker has a processor to itself where there are as many of both, and runs anywhere else again."""

import os
import sys
import threading

import pytest

from tilesim import placement, workers
from tilesim.placement import Placement, Seat


@pytest.fixture
def moves(monkeypatch):
    """A machine of four processors, the caller on number 2; what the system is asked for."""
    asked = []
    monkeypatch.setattr(placement, "_allowed", lambda: frozenset(range(4)))
    monkeypatch.setattr(placement, "_current", lambda: 2)
    monkeypatch.setattr(placement, "_allow", lambda thread, where: asked.append(sorted(where)))
    return asked


def test_waiting_threads_are_moved_off_the_processor_of_a_caller_that_takes_part(moves):
    seats = [Seat() for _ in range(5)]
    Placement(4, caller_takes_part=True).prepare(seats)
    assert [seat.processor for seat in seats] == [0, 1, 3, 0, 1]
    assert moves == [[0], [1], [3], [0], [1]]


def test_a_caller_that_only_watches_takes_no_processor(moves):
    seats = [Seat() for _ in range(4)]
    Placement(4, caller_takes_part=False).prepare(seats)
    assert [seat.processor for seat in seats] == [0, 1, 2, 3]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_more_or_fewer_workers_than_processors_run_anywhere(moves, workers):
    seat = Seat()
    seat.move(3)
    Placement(workers, caller_takes_part=False).prepare([seat])
    assert seat.processor is None
    assert moves == [[3], [0, 1, 2, 3]]


def test_two_that_wake_on_one_processor_part(moves):
    first, second, third = seats = [Seat() for _ in range(3)]
    for seat in seats:
        seat.move(1)
    shared = Placement(4, caller_takes_part=True)
    for seat in seats:
        shared.settle(seat)
    assert first.processor == 1
    assert {second.processor, third.processor} == {0, 3}
    late = Seat()
    late.move(0)
    shared.settle(late)
    assert late.processor is None


def test_nothing_is_asked_for_twice(moves):
    seat = Seat()
    for _ in range(3):
        shared = Placement(4, caller_takes_part=True)
        shared.prepare([seat])
        shared.settle(seat)
    assert moves == [[0]]


def test_a_refusal_does_no_harm_and_is_asked_for_again(moves, monkeypatch):
    def refuse(thread, where):
        moves.append(sorted(where))
        raise PermissionError

    monkeypatch.setattr(placement, "_allow", refuse)
    seat = Seat()
    seat.move(1)
    assert seat.processor is None
    seat.move(1)
    assert moves == [[1], [1]]


def test_where_the_caller_is_unknown_all_run_anywhere(moves, monkeypatch):
    monkeypatch.setattr(placement, "_current", lambda: None)
    seat = Seat()
    Placement(4, caller_takes_part=True).prepare([seat])
    assert moves == []


@pytest.mark.skipif(sys.platform != "linux", reason="processors of a thread")
@pytest.mark.parametrize("brief", [True, False])
def test_workers_of_a_call_run_on_processors_of_their_own(brief):
    everywhere = os.sched_getaffinity(0)
    count = len(everywhere)

    def places(count):
        seen, everybody = {}, threading.Barrier(count)

        def note(counter):
            everybody.wait(10)
            seen[threading.get_ident()] = os.sched_getaffinity(0)

        workers.run_workers(count, 8, None, note, brief=brief)
        assert seen.pop(threading.get_ident(), everywhere) == everywhere
        return list(seen.values())

    for _ in range(5):
        own = places(count)
        if count > 1:
            assert sorted(map(len, own)) == [1] * (count - brief)
            assert len(set().union(*own)) == len(own)
        assert places(count + 1) == [everywhere] * (count + 1 - brief)
    assert os.sched_getaffinity(0) == everywhere


@pytest.mark.skipif(sys.platform != "linux", reason="processors of a thread")
def test_the_processor_of_the_caller_is_one_that_it_may_use():
    assert placement._current() in os.sched_getaffinity(0)
