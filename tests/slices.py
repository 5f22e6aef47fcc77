#!/usr/bin/python3
"""A step in M microbatches that each take their own statistics is the average of M steps of
one device on slices of the batch. No numpy.

slices.py data GRAPH.json SEED M DIR   random integers for the parameters of a document's
    graph: DIR/whole/K.npy, and in DIR/in0 .. the slices of parameter 0 with the rest whole
slices.py check M DIR TOLERANCE        what `ap-exec --out` wrote to DIR/out (of the step) against
    DIR/out0 .. (of the slices): rows one behind the other, all else averaged
"""
import json
import pathlib
import random
import struct
import sys

from stacked import read, write


def make(graph, seed, m, out):
    rng = random.Random(seed)
    for name in ["whole"] + [f"in{i}" for i in range(m)]:
        (out / name).mkdir()
    for node in json.loads(graph.read_text())["graph"]["nodes"]:
        if node["op"] != "parameter":
            continue
        kind, _, dims = node["shape"].partition("[")
        assert kind == "f32"
        shape = [int(d) for d in dims.rstrip("]").split(",") if d]
        n = 1
        for d in shape:
            n *= d
        values = [struct.pack("<f", rng.randint(-2, 2)) for _ in range(n)]
        k = node["param"]
        write(out / "whole" / f"{k}.npy", "<f4", shape, values)
        for i in range(m):
            if k:
                write(out / f"in{i}" / f"{k}.npy", "<f4", shape, values)
            else:
                write(out / f"in{i}" / "0.npy", "<f4", [shape[0] // m] + shape[1:],
                      values[i * n // m:(i + 1) * n // m])


def floats(path):
    head, elements = read(path)
    return head["shape"], [struct.unpack("<f", e)[0] for e in elements]


def check(m, out, tolerance):
    n = 0
    for path in sorted((out / "out").iterdir()):
        shape, have = floats(path)
        slices = [floats(out / f"out{i}" / path.name) for i in range(m)]
        if slices[0][0] == shape:
            want = [sum(s[1][i] for s in slices) / m for i in range(len(have))]
        else:
            want = [v for s in slices for v in s[1]]
        size = max([abs(v) for v in want] + [1e-30])
        worst = max([abs(a - b) for a, b in zip(have, want)] + [0.0])
        assert len(have) == len(want) and worst <= tolerance * size, f"{path}: {worst} of {size}"
        n += 1
    assert n > 1, "nothing to compare"


what, args = sys.argv[1], sys.argv[2:]
if what == "data":
    make(pathlib.Path(args[0]), int(args[1]), int(args[2]), pathlib.Path(args[3]))
else:
    check(int(args[0]), pathlib.Path(args[1]), float(args[2]))
