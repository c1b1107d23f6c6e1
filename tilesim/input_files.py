"""Files of tensors that users hand in: .npz and .safetensors."""

from __future__ import annotations

import contextlib
import json
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tilesim.errors import DTypeError, InputError
from tilesim.interop import BFLOAT16_DTYPE

Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]

NAMES = ("q", "k", "v")
"""Names of queries, keys and values in a file, unless others are asked for."""

VARIANT_NAMES = ("attn_mask", "alibi_slopes", "sinks", "key_lengths")
"""Names of further arrays of a file, by the names of `tilesim.VariantOptions`."""

LISTED_NAMES, LISTED_CHARACTERS = 20, 60
"""Names that a message lists at most, and characters of each: a file may hold thousands."""

REASON_CHARACTERS = 200
"""Characters that a message takes from what a library says of a damaged file."""

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, EOFError, ValueError, KeyError, MemoryError,
    ArithmeticError, RecursionError, RuntimeError, SyntaxError,
)  # fmt: skip
"""What NumPy and zipfile raise on a file that is no .npz, is encrypted or was cut short."""

_SAFETENSORS_TYPES = ("F16", "BF16", "F32", "F64")


def load_tensors(path: str | Path, names: Sequence[str] = NAMES) -> Arrays:
    """Return queries, keys and values of an .npz or .safetensors file.

    The suffix tells which. Only the three tensors are read. NumPy stores bfloat16 in an .npz file as a type
    without a name, two bytes wide; such an array is read as bfloat16.

    Parameters
    ----------
    path : str or path
    names : sequence of str
        Names of queries, keys and values in the file.

    Returns
    -------
    q, k, v : arrays
        As they stand in the file: shapes are not checked.

    Raises
    ------
    InputError
        If the file is missing, damaged, of another kind or lacks an array, or safetensors is not installed;
        the message names the file.
    DTypeError
        If a tensor of a .safetensors file is neither float16, bfloat16, float32 nor float64.
    """
    where = str(path)
    is_safetensors = Path(path).suffix.lower() == ".safetensors"
    read = _from_safetensors if is_safetensors else _from_npz
    try:
        # Opened here: NumPy leaves a damaged file open, and safetensors hides why one cannot be opened.
        with open(path, "rb") as file:
            return read(where, file, names)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            where, "no readable file", f"must be an .npz or .safetensors file: {reason}"
        ) from None


def load_variant(path: str | Path, used: Sequence[str] = NAMES) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `VARIANT_NAMES` that a file holds beside the three tensors.

    Parameters
    ----------
    path : str or path
        A file that `load_tensors` has read.
    used : sequence of str
        Names that stand for queries, keys or values.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    if Path(path).suffix.lower() == ".safetensors":
        from safetensors import safe_open

        with safe_open(str(path), framework="np") as tensors:
            present = set(tensors.keys()) - set(used)
            return {name: tensors.get_tensor(name) for name in VARIANT_NAMES if name in present}
    with open(path, "rb") as file, _npz_arrays(str(path), file, used) as arrays:
        held = [name for name in VARIANT_NAMES if name in arrays.files and name not in used]
        return {name: _named_type(arrays[name]) for name in held}


def _from_npz(where: str, file: IO[bytes], names: Sequence[str]) -> Arrays:
    with _npz_arrays(where, file, names) as arrays:
        _require(where, arrays.files, names)
        q, k, v = (_named_type(arrays[name]) for name in names)
    return q, k, v


@contextlib.contextmanager
def _npz_arrays(where: str, file: IO[bytes], names: Sequence[str]) -> Iterator[Any]:
    """Open an .npz file, and say so if reading an array of it fails."""
    try:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            rule = f"must be an .npz file with arrays {_enumerated(names)}"
            raise InputError(where, "a single .npy array", rule)
        with loaded as arrays:
            yield arrays
    except InputError:
        raise
    except _DAMAGE as error:
        rule = f"must be an .npz file as np.savez writes it: {error}"
        raise InputError(where, "a damaged file", rule) from None


def _named_type(array: Any) -> npt.NDArray[Any]:
    if not isinstance(array, np.ndarray):
        raise ValueError("a member is no .npy array")
    return array.view(BFLOAT16_DTYPE) if array.dtype == np.dtype("V2") else array


def _from_safetensors(where: str, file: IO[bytes], names: Sequence[str]) -> Arrays:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        rule = "needs safetensors: pip install 'tilesim[safetensors]'"
        raise InputError(where, "a .safetensors file", rule) from None
    try:
        with safe_open(where, framework="np") as tensors:
            _refuse_repeated_names(where, file)
            _require(where, tensors.keys(), names)
            for name in names:
                seen = tensors.get_slice(name).get_dtype()
                if seen not in _SAFETENSORS_TYPES:
                    rule = "must have dtype float16, bfloat16, float32 or float64"
                    raise DTypeError(f"{where}: {_short(name)}", seen, rule)
            q, k, v = (tensors.get_tensor(name) for name in names)
    except InputError:
        raise
    except (SafetensorError, ValueError, MemoryError) as error:
        # It may quote a name from the file: repr() keeps control characters from the terminal.
        rule = f"must be a .safetensors file: {_short(repr(str(error))[1:-1], REASON_CHARACTERS)}"
        raise InputError(where, "a damaged file", rule) from None
    return q, k, v


def _refuse_repeated_names(where: str, file: IO[bytes]) -> None:
    """Look for what safetensors overlooks in a header: of two tensors with one name it takes the last."""

    def checked(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise InputError(where, _short(name), "must stand in the header only once")
            seen.add(name)

    json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=checked)


def _require(where: str, held: Iterable[str], names: Sequence[str]) -> None:
    held = list(held)
    missing = [name for name in names if name not in held]
    if not missing:
        return
    listed = ", ".join(_short(name) for name in held[:LISTED_NAMES]) or "nothing"
    if len(held) > LISTED_NAMES:
        listed += f" and {len(held) - LISTED_NAMES:,} more"
    rule = f"must hold arrays {_enumerated(names)}; lacks {', '.join(_short(name) for name in missing)}"
    raise InputError(where, listed, rule, "--q-name, --k-name and --v-name choose others")


def _enumerated(names: Sequence[str]) -> str:
    q, k, v = (_short(name) for name in names)
    return f"{q}, {k} and {v}"


def _short(text: str, most: int = LISTED_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
