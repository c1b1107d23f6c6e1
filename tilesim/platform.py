"""Chips as data: capacities and cores of each platform, every figure with its source."""

from __future__ import annotations

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tilesim._checks import whole_number
from tilesim.errors import ConfigError, InputError, UnknownNameError, did_you_mean

DEFAULT_PLATFORM = "ascend910b4"
MEMORIES = ("UB", "L1", "L0A", "L0B", "L0C", "GM")
_CORES = ("cube", "vector")

TIMING = (
    "clock_mhz", "launch_us", "hbm_bytes_per_us", "l2_bytes_per_us", "cube_start_cycles",
    "half_cube_blocks_per_cycle", "float_cube_blocks_per_cycle", "gm_to_l1_start_cycles",
    "gm_to_l1_bytes_per_cycle", "gm_to_ub_start_cycles", "gm_to_ub_bytes_per_cycle",
    "ub_to_gm_start_cycles", "ub_to_gm_bytes_per_cycle", "l0c_to_gm_start_cycles",
    "l0c_to_gm_bytes_per_cycle", "l1_to_l0_start_cycles", "l1_to_l0a_bytes_per_cycle",
    "l1_to_l0b_bytes_per_cycle", "vector_dependent_cycles", "vector_least_cycles", "queue_cycles",
    "matmul_call_cycles", "flag_cycles",
)  # fmt: skip
"""Figures of the table ``timing``: all of them or none."""
VECTOR_INSTRUCTIONS = (
    "Add", "Sub", "Mul", "Max", "Muls", "Exp", "Div", "Copy", "Brcb", "CastUp", "CastDown", "BlockReduceMax",
    "BlockReduceSum", "WholeReduceMax", "WholeReduceSum",
)  # fmt: skip
"""Figures of the table ``timing.vector``: cycles of one repeat of each instruction."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One number about a chip and where it comes from.

    Attributes
    ----------
    value : int or float
        The number; its unit stands in the figure's name.
    source : str
        The document or measurement it was read from; for a fitted one, why its size is plausible.
    fitted : str
        The rows it was fitted on; empty for a published figure.
    """

    value: int | float
    source: str
    fitted: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """One memory of the chip.

    Attributes
    ----------
    name : str
        ``UB`` of a vector core, ``L1``, ``L0A``, ``L0B``, ``L0C`` of a cube core, or ``GM`` of the chip.
    capacity_bytes : int
        All of it.
    reserved_bytes : int
        What the system keeps and a kernel cannot plan with.
    """

    name: str
    capacity_bytes: int
    reserved_bytes: int = 0

    def __post_init__(self) -> None:
        if self.name not in MEMORIES:
            raise UnknownNameError("Memory.name", self.name, "must be one of " + ", ".join(MEMORIES))
        whole_number(f"Memory.capacity_bytes of {self.name}", self.capacity_bytes)
        whole_number(
            f"Memory.reserved_bytes of {self.name}", self.reserved_bytes, least=0, most=self.capacity_bytes
        )

    @property
    def available_bytes(self) -> int:
        """Bytes a kernel can plan with: capacity less reserved."""
        return self.capacity_bytes - self.reserved_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Platform:
    """One chip.

    Attributes
    ----------
    name : str
        Name as used on the command line.
    title : str
        Name as the vendor writes it.
    cube_cores, vector_cores : int
        AI cores with a matrix unit (AIC), and vector cores (AIV); each cube core has the same number of
        vector cores.
    memories : mapping of str to Memory
        One for each of UB, L1, L0A, L0B, L0C and GM.
    figures : mapping of str to Figure
        Every number by its dotted name (``"memory.UB.capacity_bytes"``), with its source.
    timing : mapping of str to float
        Clock, rates and latencies by the names of `TIMING`; empty for a chip without timing figures.
    vector_cycles : mapping of str to float
        Cycles of one 256-byte repeat of each vector instruction.

    Raises
    ------
    ConfigError
        If a memory is missing or the vector cores are no multiple of the cube cores.
    """

    name: str
    title: str
    cube_cores: int
    vector_cores: int
    memories: Mapping[str, Memory]
    figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
    timing: Mapping[str, float] = dataclasses.field(default_factory=dict)
    vector_cycles: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"Platform {self.name!r}"
        whole_number(f"{where}.cube_cores", self.cube_cores)
        whole_number(f"{where}.vector_cores", self.vector_cores)
        if self.vector_cores % self.cube_cores:
            raise ConfigError(
                f"{where}.vector_cores",
                self.vector_cores,
                f"must be a multiple of cube_cores, {self.cube_cores}",
            )
        missing = [name for name in MEMORIES if name not in self.memories]
        if missing:
            raise ConfigError(f"{where}.memories", sorted(self.memories), f"lacks {', '.join(missing)}")
        object.__setattr__(self, "memories", MappingProxyType(dict(self.memories)))
        for name in ("figures", "timing", "vector_cycles"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[Any, ...]:
        # Mapping proxies do not pickle, and process pools send platforms to their workers.
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        mappings = {name: dict(value) for name, value in fields.items() if isinstance(value, Mapping)}
        return _rebuild, (fields | mappings,)

    @property
    def has_timing(self) -> bool:
        """Whether the platform has the figures that `tilesim.estimate` needs."""
        return bool(self.timing)

    @property
    def vector_cores_per_cube(self) -> int:
        """Vector cores that share one cube core's work: 2 on the 910B family."""
        return self.vector_cores // self.cube_cores

    def to_dict(self) -> dict[str, Any]:
        """Return the platform as JSON types, every figure with its source."""
        return {
            "name": self.name,
            "title": self.title,
            "cube_cores": self.cube_cores,
            "vector_cores": self.vector_cores,
            "memories": {name: dataclasses.asdict(memory) for name, memory in self.memories.items()},
            "figures": {name: dataclasses.asdict(figure) for name, figure in self.figures.items()},
        }


def _rebuild(fields: dict[str, Any]) -> Platform:
    return Platform(**fields)


def platforms() -> tuple[str, ...]:
    """Return the names of the packaged platforms, sorted."""
    folder = resources.files("tilesim") / "platforms"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml")))


def platform(name: str | Path | Platform) -> Platform:
    """Return a packaged platform by name, or one of your own from a TOML file.

    Parameters
    ----------
    name : str, path or Platform
        A name that `platforms` lists, or the path of a file that ends in ``.toml``.

    Raises
    ------
    UnknownNameError
        For a name that is not packaged; the message holds the closest one.
    ConfigError
        If the file breaks a rule; the message names file and key.
    InputError
        If the file cannot be read or is no TOML.
    """
    if isinstance(name, Platform):
        return name
    if isinstance(name, Path) or (isinstance(name, str) and name.endswith(".toml")):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("platform file", str(name), f"cannot be read: {_reason(error)}") from None
        return _parse(text, str(name))
    if not isinstance(name, str) or name not in platforms():
        rule = "must be one of " + ", ".join(platforms()) + ", or a .toml file"
        hint = did_you_mean(name, platforms()) if isinstance(name, str) else ""
        raise UnknownNameError("platform", name, rule, "" if hint.startswith("known") else hint)
    return _packaged(name)


@functools.cache
def _packaged(name: str) -> Platform:
    file = resources.files("tilesim") / "platforms" / f"{name}.toml"
    return _parse(file.read_text(encoding="utf-8"), f"{name}.toml")


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _parse(text: str, where: str) -> Platform:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("platform file", where, f"is no TOML: {error}") from None
    _known_keys(where, document, ("name", "title", "cores", "memory", "timing"))
    figures: dict[str, Figure] = {}
    cores = _table(where, document, "cores")
    _known_keys(f"{where}: cores", cores, _CORES)
    counts = {kind: _figure(where, cores, "cores", kind, figures) for kind in _CORES}
    memory_tables = _table(where, document, "memory")
    _known_keys(f"{where}: memory", memory_tables, MEMORIES)
    memories = {}
    for name in memory_tables:
        table = _table(where, memory_tables, name)
        _known_keys(f"{where}: memory.{name}", table, ("capacity_bytes", "reserved_bytes"))
        sizes = {key: _figure(where, table, f"memory.{name}", key, figures) for key in table}
        if "capacity_bytes" not in sizes:
            raise ConfigError(f"{where}: memory.{name}", sorted(sizes), "lacks capacity_bytes")
        memories[name] = Memory(name=name, **sizes)
    return Platform(
        name=_text(where, document, "name"),
        title=_text(where, document, "title"),
        cube_cores=counts["cube"],
        vector_cores=counts["vector"],
        memories=memories,
        figures=figures,
        **_timing(where, document, figures),
    )


def _timing(
    where: str, document: Mapping[str, Any], figures: dict[str, Figure]
) -> dict[str, dict[str, float]]:
    if "timing" not in document:
        return {}
    table = _table(where, document, "timing")
    _known_keys(f"{where}: timing", table, (*TIMING, "vector"))
    vector = _table(where, table, "vector")
    _known_keys(f"{where}: timing.vector", vector, VECTOR_INSTRUCTIONS)
    numbers: dict[str, dict[str, float]] = {}
    for field, prefix, names, entries in (
        ("timing", "timing", TIMING, table),
        ("vector_cycles", "timing.vector", VECTOR_INSTRUCTIONS, vector),
    ):
        missing = [name for name in names if name not in entries]
        if missing:
            raise ConfigError(f"{where}: {prefix}", sorted(entries), f"lacks {', '.join(missing)}")
        numbers[field] = {name: _rate(where, entries, prefix, name, figures) for name in names}
    return numbers


def _rate(where: str, table: Mapping[str, Any], prefix: str, key: str, figures: dict[str, Figure]) -> float:
    name, entry = f"{prefix}.{key}", table[key]
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {name}", entry, "must be a table with value and source")
    _known_keys(f"{where}: {name}", entry, ("value", "source", "fitted"))
    value = entry.get("value")
    least_known = key.endswith(("_per_cycle", "_per_us", "_mhz")) or prefix.endswith("vector")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{where}: {name}", value, "must be a number >= 0")
    if least_known and value == 0:
        raise ConfigError(f"{where}: {name}", value, "must be above 0")
    fitted = entry.get("fitted", "")
    if not isinstance(fitted, str):
        raise ConfigError(f"{where}: {name}.fitted", fitted, "must be a text: the rows it was fitted on")
    source = _text(f"{where}: {name}", entry, "source")
    figures[name] = Figure(value=value, source=source, fitted=fitted)
    return float(value)


def _known_keys(where: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known)
            raise UnknownNameError(f"{where}: key", key, "is not known here", hint)


def _table(where: str, parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = parent.get(key)
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {key}", table, "must be a table")
    return table


def _text(where: str, document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: {key}", value, "must be a text")
    return value


def _figure(where: str, table: Mapping[str, Any], prefix: str, key: str, figures: dict[str, Figure]) -> int:
    entry = table.get(key)
    name = f"{prefix}.{key}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {name}", entry, "must be a table with value and source")
    _known_keys(f"{where}: {name}", entry, ("value", "source"))
    source = _text(f"{where}: {name}", entry, "source")
    value = whole_number(f"{where}: {name}", entry.get("value"), least=0)
    figures[name] = Figure(value=value, source=source)
    return value
