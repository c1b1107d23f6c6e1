"""Deterministic counters of configurations against a record: what a change does to them, without timing.

``python bench/counters.py --check`` compares, ``--update`` rewrites the record: a deliberate act, whose diff
belongs in the same commit as the change that explains it. ``--file MINE.json`` does either for configurations
of your own.

Exit status: 0 all as recorded (or rewritten), 1 a counter differs, 2 bad usage or input.
"""

import json
import sys
from pathlib import Path

from configurations import OWN_FILE, load_entries, parts
from usage import BAD_USAGE, Arguments, BadInputError

import tilesim as ts
from tilesim.files import atomic_write


def count(configuration):
    """Return the counters of one configuration, whole numbers all: they must not depend on the machine."""
    workload, tile, precision, platform = parts(configuration, ts)
    budget = ts.budget(workload, tile, precision, platform)
    counters = {
        "score_tiles": tile.score_tiles(workload),
        "useful_flops": workload.useful_flops,
        "ub_used_bytes": budget.used_bytes,
        "ub_peak_bytes": budget.peak_bytes,
        "ub_buffers": sum(buffer.count for buffer in budget.buffers),
    }
    chip = ts.platform(platform)
    if chip.has_timing:
        device = ts.estimate(workload, tile, precision, chip)
        counters |= {
            "executed_flops": device.executed_flops,
            "gm_bytes": device.gm_bytes,
            "ub_bytes": device.ub_bytes,
            "device_cycles": round(device.time_us * chip.timing["clock_mhz"]),
        }
    return counters


def differences(path=OWN_FILE):
    """Return one line for every counter that is not as recorded."""
    lines = []
    for name, entry in load_entries(path).items():
        recorded = entry.get("counters")
        if not isinstance(recorded, dict):
            raise BadInputError(f"{path}: {name}: got no counters; must be recorded with --update")
        seen = _count(path, name, entry)
        lines += [
            f"{Path(path).name}: {name}: {counter}: got {seen.get(counter)}; recorded {recorded.get(counter)}"
            for counter in seen | recorded
            if seen.get(counter) != recorded.get(counter)
        ]
    return lines


def update(path=OWN_FILE):
    """Rewrite the counters of a file, and nothing else in it; return of how many configurations."""
    entries = load_entries(path)
    for name, entry in entries.items():
        entry["counters"] = _count(path, name, entry)
    with atomic_write(path) as file:
        file.write((json.dumps(entries, indent=2) + "\n").encode())
    return len(entries)


def _count(path, name, entry):
    try:
        return count(entry["configuration"])
    except (ts.TilesimError, BadInputError) as error:
        raise BadInputError(f"{path}: {name}: {error}") from None


def main():
    parser = Arguments(__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="compare with the record")
    action.add_argument("--update", action="store_true", help="rewrite the record")
    parser.add_argument("--file", type=Path, default=OWN_FILE, help="configurations and their counters")
    options = parser.parse_args()
    counted = Path(ts.__file__).parent
    try:
        if options.update:
            recorded = update(options.file)
            print(f"{options.file}: recorded the counters of {recorded} configurations, by {counted}")
            return 0
        lines = differences(options.file)
    except (ts.TilesimError, BadInputError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return BAD_USAGE
    print("\n".join(lines) or f"{options.file}: all counters as recorded, by {counted}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
