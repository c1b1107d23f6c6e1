"""The parameter records of softmax_flash_v2, with their fields in the operator's own order."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from tilesim._checks import whole_number
from tilesim.errors import ConfigError


class SoftmaxMode(enum.IntEnum):
    """How the state tensors (row sum, row maximum, exp_max) are laid out."""

    SOFTMAX_NORMAL = 0
    """One 32-byte block per row, every lane holding the same value."""

    SOFTMAX_OUTPUT_WITHOUT_BRC = 1
    """One element per row."""


def _check_sizes(record: Any, fields: tuple[str, ...]) -> None:
    for name in fields:
        value = getattr(record, name)
        if type(value) is not int or value < 0:
            value = whole_number(f"{type(record).__name__}.{name}", value, least=0)
            object.__setattr__(record, name, value)


@dataclasses.dataclass(frozen=True)
class SoftmaxTiling:
    """How the operator cuts a tile of rows into steps; sizes are elements, not bytes.

    `softmax_flash_v2_tiling` computes one. Fields may be given by position, in this order.

    Attributes
    ----------
    src_m, src_k, src_size : int
        Rows, columns and elements of the source.
    out_max_m, out_max_k, out_max_size : int
        The same of a whole state tensor with one block per row.
    split_m, split_k, split_size : int
        Rows, columns and elements of one step.
    reduce_m, reduce_k, reduce_size : int
        The same of the state of one step.
    range_m : int
        Number of whole steps.
    tail_m, tail_split_size, tail_reduce_size : int
        Rows of the last, shorter step, and the elements of its source and state; 0 without one.

    Raises
    ------
    ConfigError
        If a field is no integer >= 0.
    """

    src_m: int = 0
    src_k: int = 0
    src_size: int = 0
    out_max_m: int = 0
    out_max_k: int = 0
    out_max_size: int = 0
    split_m: int = 0
    split_k: int = 0
    split_size: int = 0
    reduce_m: int = 0
    reduce_k: int = 0
    reduce_size: int = 0
    range_m: int = 0
    tail_m: int = 0
    tail_split_size: int = 0
    tail_reduce_size: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self, tuple(self.__dataclass_fields__))


@dataclasses.dataclass(frozen=True)
class SoftMaxShapeInfo:
    """The padded shape of the source and the part of it that holds data.

    Attributes
    ----------
    src_m, src_k : int
        Rows and columns as stored. If either is 0, the shape of the source array is used instead.
    ori_src_m, ori_src_k : int
        Rows and columns that count.

    Raises
    ------
    ConfigError
        If a field is no integer >= 0.
    """

    src_m: int = 0
    src_k: int = 0
    ori_src_m: int = 0
    ori_src_k: int = 0

    def __post_init__(self) -> None:
        _check_sizes(self, tuple(self.__dataclass_fields__))


@dataclasses.dataclass(frozen=True)
class SoftmaxConfig:
    """Compile-time choices of the operator.

    Attributes
    ----------
    check_tiling : bool
        Recompute the tiling from the temporary buffer if its rows and columns are not those of the source.
    src_m, src_k : int
        A shape known at compile time, or 0. With both given, and only in mode ``SOFTMAX_NORMAL``, the
        operator decides by itself whether the tile is a basic block, and `src_k` columns count.
    mode : SoftmaxMode
        Layout of the state tensors.

    Raises
    ------
    ConfigError
        If a size is no integer >= 0, the mode unknown or `check_tiling` no boolean.
    """

    check_tiling: bool = True
    src_m: int = 0
    src_k: int = 0
    mode: SoftmaxMode = SoftmaxMode.SOFTMAX_NORMAL

    def __post_init__(self) -> None:
        if not isinstance(self.check_tiling, bool):
            raise ConfigError("SoftmaxConfig.check_tiling", self.check_tiling, "must be True or False")
        _check_sizes(self, ("src_m", "src_k"))
        try:
            object.__setattr__(self, "mode", SoftmaxMode(self.mode))
        except ValueError:
            names = ", ".join(f"SoftmaxMode.{mode.name}" for mode in SoftmaxMode)
            raise ConfigError("SoftmaxConfig.mode", self.mode, f"must be one of {names}") from None
