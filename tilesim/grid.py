"""The configurations of a sweep: the product of lists of values, in a fixed order, made one at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilesim._checks import is_whole_number, whole_number
from tilesim.errors import ConfigError, InputError, UnknownNameError, did_you_mean
from tilesim.masks import parse_window
from tilesim.platform import DEFAULT_PLATFORM
from tilesim.precision import DEFAULT_PRECISION
from tilesim.workload import check_softcap

AXES = (
    "batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "mask", "window", "align", "softcap",
    "alibi", "sinks", "softmax_rows", "kv_tile", "query_rows", "slots", "kv_splits", "precision", "platform",
)  # fmt: skip
"""Names of the axes; the last one varies fastest."""
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "batch": (1,), "heads": (32,), "kv_heads": (None,), "seq_q": (1024,), "seq_kv": (None,),
    "head_dim": (128,), "mask": ("causal",), "window": (None,), "align": ("bottom-right",),
    "softcap": (0.0,), "alibi": (False,), "sinks": (False,), "softmax_rows": (8,), "kv_tile": (512,),
    "query_rows": (None,), "slots": (2,), "kv_splits": (1,), "precision": (DEFAULT_PRECISION,),
    "platform": (DEFAULT_PLATFORM,),
}  # fmt: skip
TEXTS = ("mask", "window", "align", "precision", "platform")
FLAGS = ("alibi", "sinks")
OPTIONAL = ("kv_heads", "seq_kv", "query_rows", "window")
"""Axes that take ``auto``: as many as query heads, as long as the queries, the reference rule, none."""
MOST = 10_000_000
"""Configurations of one grid."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Lists of values, one for each of `AXES`.

    Attributes
    ----------
    axes : mapping of str to sequence
        Values by axis; axes that are left out have their default alone. ``seq`` sets `seq_q`, and `seq_kv`
        follows it.

    Raises
    ------
    ConfigError
        If an axis is unknown, empty or holds a value of the wrong kind, or the product is too large.
    """

    axes: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        given = dict(self.axes)
        if "seq" in given:
            given = {"seq_q": given.pop("seq")} | given
        for name in given:
            if name not in AXES:
                raise UnknownNameError("grid key", name, "is no axis", did_you_mean(name, AXES))
        axes = {name: _values(name, given.get(name, DEFAULTS[name])) for name in AXES}
        object.__setattr__(self, "axes", axes)
        if len(self) > MOST:
            raise ConfigError("grid", f"{len(self):,} configurations", f"must have at most {MOST:,}")

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one configuration: axis -> value."""
        chosen: dict[str, Any] = {}
        for name in reversed(AXES):
            index, place = divmod(index, len(self.axes[name]))
            chosen[name] = self.axes[name][place]
        return chosen

    def digest(self, *more: Any) -> str:
        """Return a short digest of the axes and anything else that decides the rows."""
        text = json.dumps([{name: list(values) for name, values in self.axes.items()}, *more], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _values(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        values = (values,)
    if not values:
        raise ConfigError(f"grid {name}", "no values", "must have at least one value")
    return tuple(_value(name, value) for value in values)


def _value(name: str, value: Any) -> Any:
    if value is None or value == "auto":
        if name not in OPTIONAL:
            raise ConfigError(f"grid {name}", value, "must have a value")
        return None
    if name == "window":
        window = parse_window(value) if isinstance(value, str) else value
        return list(window) if isinstance(window, tuple | list) else window
    if name in TEXTS:
        if not isinstance(value, str):
            raise ConfigError(f"grid {name}", value, "must be a text")
        return value
    if name in FLAGS:
        if not isinstance(value, bool):
            raise ConfigError(f"grid {name}", value, "must be true or false")
        return value
    if name == "softcap":
        return check_softcap("grid softcap", value)
    return whole_number(f"grid {name}", value)


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """Return the values that a command-line text stands for.

    Lists are separated by commas, in `window` by semicolons. A number may be a range: ``A:B`` doubles from A
    on up to B, ``A:B:STEP`` goes up by STEP.

    Raises
    ------
    ConfigError
        If a part is malformed; the message names the axis and the part.
    """
    where = f"--{name.replace('_', '-')}"
    parts = [part.strip() for part in text.split(";" if name == "window" else ",")]
    if not all(parts):
        raise ConfigError(where, text, "must be values separated by commas, none of them empty")
    if name in TEXTS:
        return tuple(parts)
    if name == "softcap":
        return tuple(check_softcap(where, _decimal(part)) for part in parts)
    values: list[Any] = []
    for part in parts:
        values += [None] if part == "auto" and name in OPTIONAL else _numbers(where, part)
    return tuple(values)


def _decimal(part: str) -> float | str:
    try:
        return float(part)
    except ValueError:
        return part


def _numbers(where: str, part: str) -> list[int]:
    bounds = part.split(":")
    if not all(is_whole_number(bound) for bound in bounds) or len(bounds) > 3:
        raise ConfigError(where, part, "must be a number, FIRST:LAST, which doubles, or FIRST:LAST:STEP")
    first, last, step = ([int(bound) for bound in bounds] + [0, 0])[:3]
    if len(bounds) == 1:
        return [first]
    if not 1 <= first <= last or (len(bounds) == 3 and step < 1):
        raise ConfigError(where, part, "must have 1 <= FIRST <= LAST and STEP >= 1")
    if len(bounds) == 3:
        if (last - first) // step > MOST:
            raise ConfigError(where, part, f"must hold at most {MOST:,} values")
        return list(range(first, last + 1, step))
    values = []
    while first <= last:
        values.append(first)
        first *= 2
    return values


def load_grid(path: str | Path) -> dict[str, Sequence[Any]]:
    """Return the axes of a TOML file: one key an axis, with a value or a list of values.

    Raises
    ------
    InputError
        If the file cannot be read or is no TOML; the message names the line.
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), "a malformed file", f"must be TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "no readable file", f"must be a TOML file: {error}") from None
    known = (*AXES, "seq")
    for key, value in document.items():
        line = _line_of(Path(path), key)
        if key not in known:
            raise UnknownNameError(f"{path}, line {line}: key", key, "is no axis", did_you_mean(key, known))
        try:
            _values("seq_q" if key == "seq" else key, value)
        except ConfigError as error:
            raise ConfigError(f"{path}, line {line}: {key}", error.value, error.rule) from None
    return document


def _line_of(path: Path, key: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.split("=")[0].strip() == key), 0)
