"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tilesim.errors import OutputError


def check_writable(path: str | Path, suffixes: tuple[str, ...]) -> None:
    """Refuse an output path that could not be written later; leaves no trace.

    Raises
    ------
    OutputError
        If the suffix is none of `suffixes`, the path is a directory, or its directory takes no new file.
    """
    target = Path(path)
    if target.suffix.lower() not in suffixes and not _is_device(target):
        raise OutputError("output file", str(path), f"must end in {' or '.join(suffixes)}")
    with atomic_write(target, keep=False):
        pass


@contextlib.contextmanager
def atomic_write(path: str | Path, *, keep: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` only when all is written.

    Bytes go to a temporary name beside it, which is renamed at the end and removed if anything fails. A
    symbolic link is followed; a device such as /dev/null is written directly.

    Parameters
    ----------
    path : str or path
    keep : bool
        False to try everything but the rename.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise OutputError("output file", str(path), "is a directory; must be a file")
    temporary = target if _is_device(target) else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
        if keep and temporary != target:
            if target.exists():
                shutil.copymode(target, temporary)
            os.replace(temporary, target)
    except OSError as error:
        raise OutputError("output file", str(path), f"cannot be written: {error.strerror or error}") from None
    finally:
        if temporary != target:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _is_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def save_arrays(path: str | Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write named arrays to an .npz file, whole or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def save_csv(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write flat records with the same keys to a .csv file, whole or not at all.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())
