"""Two files of pytest-benchmark (``--benchmark-json``), their benchmarks matched by name."""

from configurations import load_json
from usage import BadInputError

MACHINE = ("node", "system", "machine", "processor")
CPU = ("brand_raw", "arch", "count")
"""Fields that name a machine; others, such as the clock of the moment, change from run to run."""


def load_pair(base_path, head_path):
    """Return name -> list of seconds, for both files.

    Seconds of different machines say nothing about the code: such a pair is refused.
    """
    documents = [_load(path) for path in (base_path, head_path)]
    machines = [_machine(document) for document in documents]
    for field, base in machines[0].items():
        head = machines[1][field]
        if base != head:
            where = f"{base_path}, {head_path}: machine_info {field}"
            raise BadInputError(f"{where}: got {base!r} and {head!r}; both must come from one machine")
    key = "name" if all(_are_distinct(document) for document in documents) else "fullname"
    return [
        {bench.get(key, bench["name"]): _seconds(bench) for bench in document["benchmarks"]}
        for document in documents
    ]


def _load(path):
    rule = "a file of pytest-benchmark, as --benchmark-json writes it"
    document = load_json(path, rule)
    benches = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benches, list) or not all(_is_named(bench) for bench in benches):
        raise BadInputError(f"{path}: got no list of named benchmarks; must be {rule}")
    return document


def _is_named(bench):
    return isinstance(bench, dict) and isinstance(bench.get("name"), str)


def _are_distinct(document):
    names = [bench["name"] for bench in document["benchmarks"]]
    return len(set(names)) == len(names)


def _seconds(bench):
    stats = bench.get("stats")
    data = stats.get("data") if isinstance(stats, dict) else None
    return data if isinstance(data, list) else []


def _machine(document):
    info = document.get("machine_info")
    info = info if isinstance(info, dict) else {}
    cpu = info.get("cpu")
    cpu = cpu if isinstance(cpu, dict) else {}
    return {name: info.get(name) for name in MACHINE} | {f"cpu {name}": cpu.get(name) for name in CPU}
