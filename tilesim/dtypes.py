"""The element types of the modelled chip: half, bfloat16 and float."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 32
"""Bytes of one data block of UB: the unit of alignment and of one row's broadcast state."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DType:
    """An IEEE-like binary floating-point type.

    Attributes
    ----------
    name : str
        ``"half"``, ``"bfloat16"`` or ``"float"``.
    itemsize : int
        Bytes of one element.
    significand_bits : int
        Bits of the significand, the hidden one included.
    min_exponent : int
        Exponent of the smallest normal number.
    max_value : float
        Largest finite number.
    """

    name: str
    itemsize: int
    significand_bits: int
    min_exponent: int
    max_value: float

    @property
    def lanes(self) -> int:
        """Elements in one 32-byte block."""
        return BLOCK_BYTES // self.itemsize

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0 ** (1 - self.significand_bits)

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0**self.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number."""
        return 2.0 ** (self.min_exponent - self.significand_bits + 1)

    def ulp(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the spacing of this type at each of `values`; NaN where the value is NaN or infinite."""
        magnitude = np.abs(np.asarray(values, dtype=np.float64))
        finite = np.isfinite(magnitude)
        in_range = np.clip(magnitude, self.smallest_normal, self.max_value)
        _, exponent = np.frexp(np.where(finite, in_range, 1.0))
        spacing = np.ldexp(1.0, exponent - self.significand_bits)
        return np.where(finite, spacing, np.nan)

    def round_away(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return values rounded to this type, ties away from zero, as the vector core's cast rounds."""
        wide = np.asarray(values, dtype=np.float64)
        spacing = self.ulp(wide)
        rounded = np.copysign(np.floor(np.abs(wide) / spacing + 0.5) * spacing, wide)
        rounded = np.where(np.abs(rounded) > self.max_value, np.copysign(np.inf, wide), rounded)
        return np.where(np.isfinite(wide), rounded, wide)


HALF = DType(name="half", itemsize=2, significand_bits=11, min_exponent=-14, max_value=65504.0)
BFLOAT16 = DType(
    name="bfloat16", itemsize=2, significand_bits=8, min_exponent=-126, max_value=float(2.0**128 - 2.0**120)
)
FLOAT = DType(
    name="float", itemsize=4, significand_bits=24, min_exponent=-126, max_value=float(2.0**128 - 2.0**104)
)
