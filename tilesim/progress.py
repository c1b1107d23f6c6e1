"""A progress bar on standard error for simulations that take longer than a second."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from tilesim.simulate import Progress

DELAY_S = 1.0
"""Runs shorter than this show nothing."""


@contextlib.contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress | None]:
    """Give what `simulate` takes as `progress`; None where nobody would see a bar.

    Parameters
    ----------
    quiet : bool
        Show nothing. Nothing is shown either if standard error is no terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    start = time.monotonic()
    tasks: dict[str, object] = {}

    def report(stage: str, done: int, total: int) -> None:
        if time.monotonic() - start < DELAY_S:
            return
        if not tasks:
            bar.start()
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done)  # type: ignore[arg-type]

    try:
        yield report
    finally:
        if tasks:
            bar.stop()
