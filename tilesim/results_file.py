"""The output of a sweep: rows appended as they arrive in whole lines, so that a cut run stays readable."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tilesim.errors import ConfigError, InputError, OutputError
from tilesim.files import atomic_write

SUFFIXES = (".jsonl", ".csv", ".parquet")


class ResultsFile:
    """A .jsonl, .csv or .parquet file of flat records with the columns of `columns`.

    Parquet files are only readable once complete: rows go to ``<file>.partial.jsonl`` first, which becomes
    the Parquet file at the end and is removed.

    Parameters
    ----------
    path : str or path
    columns : sequence of str
    digest : str
        What decides the rows, in the column ``grid`` of each.
    resume : bool
        Keep the rows that are there.

    Raises
    ------
    OutputError
        If the file cannot be written.
    InputError
        If the rows there belong to another grid or model, or are no rows.
    ConfigError
        If pyarrow is missing for a .parquet file.
    """

    def __init__(self, path: str | Path, columns: Sequence[str], digest: str, *, resume: bool) -> None:
        self.path, self.columns, self.digest = Path(path), tuple(columns), digest
        if self.path.suffix not in SUFFIXES:
            raise OutputError("output file", str(path), f"must end in {', '.join(SUFFIXES)}")
        self.parquet = self.path.suffix == ".parquet"
        if self.parquet:
            _pyarrow()
        self._rows_path = (
            self.path.with_name(self.path.name + ".partial.jsonl") if self.parquet else self.path
        )
        self.complete: list[dict[str, Any]] = []
        if resume and self.parquet and self.path.exists():
            self.complete = self._checked(_read_parquet(self.path))
        if resume and not self.complete and self._rows_path.exists():
            self.complete = self._checked(read_rows(self._rows_path))
        self._file: BinaryIO | None = None

    def _checked(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, row in enumerate(rows):
            where = f"{self.path}, row {number}"
            if row.get("grid") != self.digest:
                raise InputError(
                    where, row.get("grid"), f"belongs to another grid or model, not {self.digest}"
                )
            if row.get("index") != number:
                raise InputError(where, row.get("index"), f"must have index {number}")
        return rows

    def __enter__(self) -> ResultsFile:
        try:
            with atomic_write(self._rows_path) as file:
                file.write(self._text(self.complete, header=True))
            self._file = open(self._rows_path, "ab", buffering=0)
        except OSError as error:
            reason = error.strerror or error
            raise OutputError("output file", str(self.path), f"cannot be written: {reason}") from None
        return self

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Write rows in one piece."""
        assert self._file is not None
        try:
            self._file.write(self._text(rows, header=False))
        except OSError as error:
            reason = error.strerror or error
            raise OutputError("output file", str(self.path), f"cannot be written: {reason}") from None

    def __exit__(self, kind: Any, *rest: Any) -> None:
        assert self._file is not None
        self._file.close()
        if kind is None and self.parquet:
            _write_parquet(self.path, read_rows(self._rows_path), self.columns)
            with contextlib.suppress(OSError):
                os.unlink(self._rows_path)

    def _text(self, rows: list[dict[str, Any]], *, header: bool) -> bytes:
        if self._rows_path.suffix == ".jsonl":
            return "".join(json.dumps(row) + "\n" for row in rows).encode()
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, fieldnames=self.columns, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the whole rows of a results file; a last line that was cut short is left out.

    Raises
    ------
    InputError
        If the file cannot be read or holds something else.
    """
    source = Path(path)
    if source.suffix == ".parquet":
        return _read_parquet(source)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(path), "no readable file", f"must be a results file: {error}") from None
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        if source.suffix == ".jsonl":
            return [json.loads(line) for line in lines]
        return [_typed(row) for row in csv.DictReader(lines)]
    except (ValueError, csv.Error) as error:
        raise InputError(str(path), "a damaged file", f"must be a results file: {error}") from None


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: _parsed(value) for name, value in row.items()}


def _parsed(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("output", ".parquet", "needs pyarrow: pip install 'tilesim[parquet]'") from None
    return pyarrow


def _write_parquet(path: Path, rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> None:
    pyarrow = _pyarrow()
    table = pyarrow.Table.from_pylist(list(rows))
    with atomic_write(path) as file:
        pyarrow.parquet.write_table(table.select(list(columns)), file)


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    pyarrow = _pyarrow()
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(str(path), "a damaged file", f"must be a results file: {error}") from None
    return rows
