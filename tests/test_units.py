import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesim.errors import ConfigError
from tilesim.units import align_up, ceil_div, format_bytes, format_seconds, format_size, parse_bytes


@given(size=st.integers(0, 10**12), unit=st.integers(1, 10**6))
def test_align_up_is_the_least_multiple_not_below(size, unit):
    aligned = align_up(size, unit)
    assert aligned % unit == 0
    assert size <= aligned < size + unit
    assert ceil_div(size, unit) * unit == aligned


def test_formats():
    assert format_bytes(18688) == "18,688 B (18.25 KiB)"
    assert format_bytes(31) == "31 B"
    assert format_size(196608) == "192 KiB"
    assert format_size(1536) == "1.5 KiB"
    assert format_size(16 * 1024**2) == "16 MiB"
    assert format_seconds(0.0032) == "3.2 ms"
    assert format_seconds(12.5) == "12.5 s"
    assert format_seconds(3e-9) == "3 ns"


def test_parse_bytes():
    assert parse_bytes("192 KiB") == parse_bytes("196608") == parse_bytes(196608) == 196608
    assert parse_bytes("0.5 MiB") == 524288


@pytest.mark.parametrize("text", ["192 KB", "-1", "many", "1.5", "0.3 B", "3 bits", ""])
def test_sizes_that_could_be_misread(text):
    with pytest.raises(ConfigError, match="size"):
        parse_bytes(text)
