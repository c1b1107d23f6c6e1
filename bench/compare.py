"""Has the kernel become slower? Runs base and head in turn, and flags what is beyond the noise it measured.

    python bench/compare.py BASE HEAD [--configs MINE.json]

BASE and HEAD are checkouts (directories) or commits of the repository here; "." is what you are working on.
Each configuration runs in a process a side, one sample of each in every round, the order swapped from round
to round. The first call, which compiles or loads, is reported apart. A configuration that seems slower, or is
not clear, runs as many rounds again in new processes before it is judged.

    python bench/compare.py base.json head.json

compares files that pytest wrote with --benchmark-json; those in one file only are listed.

Exit status: 0 no regression, 1 a regression, 2 bad usage or input, or an error in place of a verdict.
"""

import collections
import contextlib
import dataclasses
import json
import math
import os
import signal
import statistics
import sys

import verdict as v
from configurations import OWN_FILE, load_entries
from saved_results import load_pair
from sides import SideError, TimedSide, checkout
from usage import BAD_USAGE, Arguments, BadInputError, number

ROUNDS = 15
SAMPLE_S = 0.005
"""A sample is as many calls in a row as take about that long, so that the clock's own steps do not matter."""
MOST_CALLS = 1000
INTERRUPTED = 130


def measure(folders, configuration, rounds):
    """Return (first_call_s, samples_s) of base and of head, one sample of each in every round."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(TimedSide(folder, configuration)) for folder in folders]
        for name, side in zip(("base", "head"), sides, strict=True):
            _blame(name, side.start)
        call_s = min(side.second_call_s for side in sides)
        calls = min(MOST_CALLS, math.ceil(SAMPLE_S / max(call_s, SAMPLE_S / MOST_CALLS)))
        for number in range(rounds):
            turns = [("base", sides[0]), ("head", sides[1])]
            for name, side in turns if number % 2 == 0 else reversed(turns):
                _blame(name, side.take_sample, calls)
        return [(side.first_call_s, side.samples_s) for side in sides]


def _blame(name, function, *arguments):
    try:
        function(*arguments)
    except SideError as error:
        raise SideError(f"{name}: {error}") from None


def compare_checkouts(folders, entries, rounds, rules):
    """Yield name, verdict and both sides of every configuration."""
    for name, entry in entries.items():
        base, head = (None, []), (None, [])
        try:
            base, head = measure(folders, entry["configuration"], rounds)
            got = v.judge(base[1], head[1], **rules)
            if got.outcome in (v.REGRESSION, v.INCONCLUSIVE):
                more = measure(folders, entry["configuration"], rounds)
                for side, again in zip((base, head), more, strict=True):
                    side[1].extend(again[1])
                got = v.judge(base[1], head[1], **rules)
        except SideError as error:
            got = v.Verdict(outcome=v.ERROR, reason=str(error))
        yield name, got, base, head


def compare_saved(benches, rules):
    """Yield name, verdict and both sides of every benchmark of two files."""
    for name in dict.fromkeys([*benches[0], *benches[1]]):
        base, head = (v.split_first_call(bench.get(name, [])) for bench in benches)
        if name not in benches[1]:
            got = v.Verdict(outcome=v.MISSING, reason="only in base")
        elif name not in benches[0]:
            got = v.Verdict(outcome=v.NEW, reason="only in head")
        else:
            got = v.judge(base[1], head[1], **rules)
        yield name, got, base, head


def row(width, name, got, base, head):
    """Return one comparison as a line of a table whose first column has a width."""
    medians = [_milliseconds(samples) for _, samples in (base, head)]
    ratio = "" if got.median_ratio is None else f"{got.median_ratio:.3f}"
    line = f"{name:<{width}} {got.outcome:<13} {medians[0]:>10} {medians[1]:>10} {ratio:>7}  {got.reason}"
    firsts = [
        f"{side} {first:.3g} s" for side, (first, _) in (("base", base), ("head", head)) if first is not None
    ]
    return line + (f"; first call of {', of '.join(firsts)}" if firsts else "")


def header(width):
    """Return the line above the table."""
    return f"{'':<{width}} {'verdict':<13} {'base ms':>10} {'head ms':>10} {'ratio':>7}  reason"


def _milliseconds(samples):
    try:
        return f"{statistics.median(samples) * 1e3:.4g}"
    except (statistics.StatisticsError, TypeError):
        return ""


def document(name, got, base, head):
    """Return one comparison as JSON types."""
    sides = {
        side: {"first_call_s": first, "samples_s": [_json_number(x) for x in samples]}
        for side, (first, samples) in (("base", base), ("head", head))
    }
    return {"name": name, **dataclasses.asdict(got), **sides}


def _json_number(value):
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parse():
    parser = Arguments(__doc__)
    parser.add_argument("base", help="directory, commit or .json file")
    parser.add_argument("head", help="the same")
    parser.add_argument("--configs", default=OWN_FILE, metavar="FILE.json", help="configurations to time")
    parser.add_argument("--rounds", type=number(v.LEAST_SAMPLES, int), default=ROUNDS, help="[%(default)s]")
    parser.add_argument(
        "--threshold", type=number(0), default=v.THRESHOLD, help="slowdown that counts [%(default)s]"
    )
    parser.add_argument(
        "--floor-us", type=number(0), default=v.FLOOR_S * 1e6, help="least us that count [%(default)g]"
    )
    parser.add_argument("--json", action="store_true", help="print all samples and verdicts as JSON")
    options = parser.parse_args()
    files = [os.path.isfile(name) or name.endswith(".json") for name in (options.base, options.head)]
    if any(files) and not all(files):
        parser.error(f"got {options.base!r} and {options.head!r}; both must be .json files or neither")
    return options, all(files)


def run(options, saved):
    """Print the comparison and return the exit status."""
    rules = {"threshold": options.threshold, "floor_s": options.floor_us * 1e-6}
    with contextlib.ExitStack() as stack:
        if saved:
            benches = load_pair(options.base, options.head)
            names = {*benches[0], *benches[1]}
            compared = compare_saved(benches, rules)
        else:
            entries = load_entries(options.configs)
            folders = [stack.enter_context(checkout(name)) for name in (options.base, options.head)]
            names = set(entries)
            compared = compare_checkouts(folders, entries, options.rounds, rules)
        width = max([28, *map(len, names)])
        if not options.json:
            print(header(width), flush=True)
        documents = []
        for comparison in compared:
            documents.append(document(*comparison))
            if not options.json:
                print(row(width, *comparison), flush=True)
    counts = collections.Counter(entry["outcome"] for entry in documents)
    if options.json:
        settings = {name: getattr(options, name) for name in ("base", "head", "threshold", "floor_us")}
        print(json.dumps({**settings, "entries": documents}))
    else:
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts[v.REGRESSION] else BAD_USAGE if counts[v.ERROR] else 0


def main():
    options, saved = parse()
    # Ends as Ctrl-C does, so that processes and exported commits are cleared away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options, saved)
    except BadInputError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        print("compare.py: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
