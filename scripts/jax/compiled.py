"""Collectives in the HLO text that XLA compiled: kind, place, count and bytes.

Bytes are of the full tensor on the step's axes, per group of devices, as in a program: what an
all-gather gives, what the others take, of an all-to-all what a group takes.  A collective on
several tensors counts once for each; one in a loop, as often as the loop runs.
"""

import collections
import re

import numpy as np

KINDS = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "collective-permute",
]
SIZES = {"pred": 1, "bf16": 2, "c64": 8, "c128": 16}
COLLECTIVE = re.compile(rf" = (\(.*?\)|\S+) ({'|'.join(KINDS)})(?:-start)?\(")


def element_bytes(dtype):
    """Bytes of an element of HLO's type."""
    return SIZES.get(dtype) or int(re.sub(r"\D*(\d+).*", r"\1", dtype)) // 8


def bytes_of(shapes):
    """Number of arrays in the text of a shape, and their bytes."""
    arrays = re.findall(r"([a-z]\w*)\[([\d,]*)\]", shapes)
    total = 0
    for dtype, dims in arrays:
        sizes = [int(d) for d in dims.split(",") if d]
        total += element_bytes(dtype) * int(np.prod(sizes, dtype=np.int64))
    return len(arrays), total


def group_size(line, n_devices):
    """Devices in a group of a collective."""
    found = re.search(r"replica_groups=\[\d+,(\d+)\]", line)
    if found:
        return int(found[1])
    found = re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line)
    if found:
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        axes = re.findall(r"'(\w+)'", found[2])
        return int(np.prod([int(sizes[axis]) for axis in axes]))
    found = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    return len(found[1].split(",")) if found else n_devices


def path_of(line):
    """The path in an instruction's metadata, or None."""
    found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', line)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else None


def trips(text):
    """Computation of a loop's body or condition: how often it runs for each run of the step."""
    callers, name, inside = {}, None, {}
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head and not line.startswith(" "):
            name = head[1]
        loop = re.search(r" while\(.*body=%?([\w.\-]+)", line)
        if loop:
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            callers[loop[1]] = (name, int(known[1]) if known else 1)

    def times(name):
        if name not in callers:
            return 1
        if name not in inside:
            up, n = callers[name]
            inside[name] = n * times(up)
        return inside[name]

    return times


def collectives(text, n_devices, place_of):
    """(kind, place) -> [count, bytes] in the text of a compiled module.

    place_of: of an instruction's line, any key.
    """
    found = collections.defaultdict(lambda: [0, 0])
    times, name = trips(text), None
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head and not line.startswith(" "):
            name = head[1]
        match = COLLECTIVE.search(line)
        if not match:
            continue
        shapes, kind = match.groups()
        n, total = bytes_of(shapes)
        if kind in ("reduce-scatter", "all-to-all") and not shapes.startswith("("):
            total *= group_size(line, n_devices)
        elif kind == "all-to-all":  # a tuple: one array for each device of the group
            n, total = 1, total * group_size(line, n_devices)
        row = found[kind, place_of(line)]
        row[0] += n * times(name)
        row[1] += total * times(name)
    return found


def totals(found, kind):
    """Count and bytes of one kind."""
    rows = [v for (k, _), v in found.items() if k == kind]
    return sum(r[0] for r in rows), sum(r[1] for r in rows)
