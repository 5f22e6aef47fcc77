# SPDX-License-Identifier: Apache-2.0
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


# ---- memory ----

FORWARDS = {"bitcast", "tuple", "get-tuple-element", "opt-barrier"}
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")


class Value:
    """What an instruction makes: bytes, and when the first and the last one use it."""

    def __init__(self, line, dtype, size, at):
        self.line, self.dtype, self.bytes, self.first, self.last = line, dtype, size, at, at


def entry_values(text):
    """Values of the scheduled entry computation but parameters; those of loops' bodies are not
    looked into."""
    lines = text[text.index("\nENTRY ") :].splitlines()
    made, values = {}, []
    for at, line in enumerate(lines):
        match = INSTRUCTION.match(line)
        if not match:
            continue
        name, shape, op, rest = match.groups()
        read = re.findall(r"%([\w.\-]+)", rest[: rest.find(")")])
        found = [made.get(k, []) for k in read]
        for value in (v for row in found for v in flat(row)):
            value.last = at
        if op == "get-tuple-element":
            index = int(re.search(r"index=(\d+)", line)[1])
            row = found[0]
            made[name] = row[index] if index < len(row) and isinstance(row[index], list) else row
        elif op == "tuple":
            made[name] = found
        elif op in FORWARDS:
            made[name] = found[0]
        elif op not in ("parameter", "constant"):
            value = Value(line, shape.split("[")[0], bytes_of(shape)[1], at)
            values.append(value)
            made[name] = [value]
    return values


def flat(row):
    for x in row:
        if isinstance(x, list):
            yield from flat(x)
        else:
            yield x


def peak_values(text):
    """The values that are alive when they take most, largest first."""
    values = entry_values(text)
    moves = sorted(
        [(v.first, 1, v.bytes) for v in values] + [(v.last, 2, -v.bytes) for v in values]
    )
    held = most = when = 0
    for at, _, size in moves:
        held += size
        if held > most:
            most, when = held, at
    alive = [v for v in values if v.first <= when <= v.last]
    return sorted(alive, key=lambda v: -v.bytes)
