"""Prints what the benchmarks put into ``extra_info`` as one table under pytest-benchmark's own."""

MOST_COLUMNS = 4


def pytest_terminal_summary(terminalreporter, config):
    session = getattr(config, "_benchmarksession", None)
    rows = [bench for bench in getattr(session, "benchmarks", ()) if bench.extra_info]
    if not rows:
        return
    names = sorted({name for bench in rows for name in bench.extra_info})
    width = max(len(bench.name) for bench in rows)
    terminalreporter.section("rates (medians)")
    if len(names) > MOST_COLUMNS:
        for bench in rows:
            terminalreporter.write_line(bench.name)
            for name, value in bench.extra_info.items():
                terminalreporter.write_line(f"    {name:<50}{value:>12,}")
        return
    terminalreporter.write_line("".ljust(width) + "".join(f"{name:>20}" for name in names))
    for bench in rows:
        cells = "".join(_cell(bench.extra_info.get(name)) for name in names)
        terminalreporter.write_line(bench.name.ljust(width) + cells)


def _cell(value):
    return "".rjust(20) if value is None else f"{value:>20,}"
