#!/usr/bin/python3
"""Joins arrays of layers as an exported step has them: stacked.py GRAPH.json FROM TO.

FROM/K.npy is parameter K of the document's graph, TO/N.npy becomes argument N. No numpy.
"""
import json
import pathlib
import struct
import sys


def read(path):
    """numpy's header as a dictionary, and the elements as bytes each."""
    data = path.read_bytes()
    (n,) = struct.unpack("<H", data[8:10])
    head = eval(data[10 : 10 + n], {"__builtins__": {}})  # a literal of our own files
    size, body = int(head["descr"][2:]), data[10 + n :]
    return head, [body[i : i + size] for i in range(0, len(body), size)]


def write(path, descr, shape, elements):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    head += " " * (117 - len(head)) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.encode() + b"".join(elements))


def main(graph, source, target):
    target.mkdir()
    wholes = {}
    for node in json.loads(graph.read_text())["graph"]["nodes"]:
        path = source / f"{node.get('param')}.npy"
        if node["op"] != "parameter" or not path.exists():
            continue
        part, (head, elements) = node["argument"], read(path)
        wholes.setdefault(part["index"], []).append((part, head, elements))
    for index, parts in wholes.items():
        _, head, elements = parts[0]
        shape = list(head["shape"])
        if "parts" in parts[0][0]:
            dim = parts[0][0]["dim"]
            inner = 1
            for size in shape[dim:]:
                inner *= size
            elements = [
                e for i in range(0, len(elements), inner) for _, _, p in parts for e in p[i : i + inner]
            ]
            shape.insert(dim, len(parts))
        write(target / f"{index}.npy", head["descr"], shape, elements)


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
