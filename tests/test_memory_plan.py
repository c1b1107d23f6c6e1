from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesim.errors import ConfigError
from tilesim.memory.plan import Lifetime, plan


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    result = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 6))
        size_bytes = draw(st.integers(0, 300))
        result.append(Lifetime(size_bytes=size_bytes, first=first, last=draw(st.integers(first, 7))))
    return result


def padded(size_bytes: int, alignment_bytes: int) -> int:
    while size_bytes % alignment_bytes:
        size_bytes += 1
    return size_bytes


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lives=lifetimes(), alignment_bytes=st.sampled_from([1, 32, 512]))
def test_no_two_live_pieces_overlap_and_every_offset_is_aligned(
    lives: list[Lifetime], alignment_bytes: int
) -> None:
    placed = plan(lives, alignment_bytes)
    assert len(placed.offsets_bytes) == len(lives)
    assert all(offset >= 0 and offset % alignment_bytes == 0 for offset in placed.offsets_bytes)
    spans = [
        (range(life.first, life.last + 1), offset, offset + life.size_bytes)
        for life, offset in zip(lives, placed.offsets_bytes, strict=True)
    ]
    for (stages, start, end), (other_stages, other_start, other_end) in itertools.combinations(spans, 2):
        if set(stages) & set(other_stages) and start < end and other_start < other_end:
            assert end <= other_start or other_end <= start


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lives=lifetimes(), alignment_bytes=st.sampled_from([1, 32, 512]))
def test_peak_is_the_largest_end_and_lies_between_live_bytes_and_the_sum(
    lives: list[Lifetime], alignment_bytes: int
) -> None:
    placed = plan(lives, alignment_bytes)
    sizes = [padded(life.size_bytes, alignment_bytes) for life in lives]
    ends = [offset + size for offset, size in zip(placed.offsets_bytes, sizes, strict=True)]
    assert placed.peak_bytes == max(ends, default=0)
    live = [0] * len(placed.live_bytes)
    for life, size in zip(lives, sizes, strict=True):
        for stage in range(life.first, life.last + 1):
            live[stage] += size
    assert list(placed.live_bytes) == live
    assert max(live, default=0) <= placed.peak_bytes <= sum(sizes)


def test_dead_pieces_make_room_for_later_ones() -> None:
    chain = [Lifetime(size_bytes=size, first=stage, last=stage) for stage, size in enumerate((40, 100, 60))]
    placed = plan(chain)
    assert placed.offsets_bytes == (0, 0, 0)
    assert placed.peak_bytes == 100
    assert placed.live_bytes == (40, 100, 60)


def test_long_lived_piece_does_not_split_the_room() -> None:
    # Largest first would put the lasting piece between the two short ones' room and waste 20 bytes.
    lives = [
        Lifetime(size_bytes=50, first=0, last=0),
        Lifetime(size_bytes=30, first=0, last=2),
        Lifetime(size_bytes=70, first=1, last=1),
        Lifetime(size_bytes=40, first=2, last=2),
        Lifetime(size_bytes=20, first=0, last=1),
    ]
    assert plan(lives).peak_bytes == 120


def test_nothing_needs_nothing() -> None:
    placed = plan([])
    assert (placed.offsets_bytes, placed.peak_bytes, placed.live_bytes) == ((), 0, ())


def test_placement_is_the_same_every_time() -> None:
    lives = [Lifetime(size_bytes=64, first=0, last=1)] * 4
    assert plan(lives) == plan(lives)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"size_bytes": -1, "first": 0, "last": 0}, "size_bytes"),
        ({"size_bytes": 1.5, "first": 0, "last": 0}, "size_bytes"),
        ({"size_bytes": 1, "first": -1, "last": 0}, "first"),
        ({"size_bytes": 1, "first": 2, "last": 1}, "last"),
    ],
)
def test_impossible_lifetimes_are_refused(fields: dict[str, int], where: str) -> None:
    with pytest.raises(ConfigError, match=f"Lifetime.{where}"):
        Lifetime(**fields)


def test_alignment_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="alignment_bytes"):
        plan([], 0)
