"""Named configurations in a JSON file: what `counters.py` counts and `compare.py` times.

``{"my kernel": {"configuration": {"heads": 16, "seq_q": 2048, "kv_tile": 256}}}``: fields of `Workload` and
`Tile`, ``precision`` and ``platform``; those left out take their defaults. `counters.py` adds "counters".
"""

import json
from pathlib import Path

from usage import BadInputError

OWN_FILE = Path(__file__).with_name("counters.json")
DEFAULTS = {"precision": "half-data-float-state", "platform": "ascend910b4"}
TILE_FIELDS = ("softmax_rows", "kv_tile", "query_rows", "slots", "kv_splits")


def load_json(path, rule):
    """Return the JSON document of a file; `rule` says what it must be."""
    try:
        return json.loads(Path(path).read_text("utf-8"), object_pairs_hook=_distinct)
    except OSError as error:
        raise BadInputError(f"{path}: got no readable file ({error.strerror}); must be {rule}") from None
    except ValueError as error:
        raise BadInputError(f"{path}: got no valid JSON ({error}); must be {rule}") from None


def _distinct(pairs):
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} occurs twice")
    return document


def load_entries(path=OWN_FILE):
    """Return name -> entry, each with its "configuration"."""
    rule = 'an object of name -> {"configuration": {...}}'
    entries = load_json(path, rule)
    if not isinstance(entries, dict) or not entries:
        raise BadInputError(f"{path}: got {type(entries).__name__} of no entries; must be {rule}")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("configuration"), dict):
            raise BadInputError(f'{path}: {name}: got {entry!r}; must be {{"configuration": {{...}}}}')
    return entries


def parts(configuration, ts):
    """Return workload, tile, precision and platform of a configuration, as types of the tilesim `ts`.

    Compared checkouts have a tilesim each, so it is handed in.
    """
    fields = DEFAULTS | configuration
    precision, platform = fields.pop("precision"), fields.pop("platform")
    tile = {name: fields.pop(name) for name in TILE_FIELDS if name in fields}
    window = fields.get("window")
    if isinstance(window, list):
        fields["window"] = tuple(window)
    unknown = sorted(fields.keys() - ts.Workload().to_dict().keys())
    if unknown:
        known = ", ".join([*ts.Workload().to_dict(), *TILE_FIELDS, *DEFAULTS])
        raise BadInputError(f"configuration: got {unknown[0]!r}; must be one of {known}")
    return ts.Workload(**fields), ts.Tile(**tile), precision, platform
