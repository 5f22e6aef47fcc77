#!/usr/bin/python3
"""Writes a small ONNX model, for tests: no library of ONNX's is needed.

  tests/onnx_model.py 'JSON' >FILE

JSON: {"opset": 13, "inputs": {NAME: [TYPE, DIMS]}, "outputs": likewise,
"weights": {NAME: [TYPE, DIMS, VALUES | {"location": ..}]},
"nodes": [[OP, INPUTS, OUTPUTS, {ATTRIBUTE: VALUE}, DOMAIN]], "metadata": [[KEY, VALUE]]};
TYPE is the number of TensorProto.DataType, a dimension is a number, a name, or null; DIMS null
is no shape at all; a metadata VALUE that is not a string is written as JSON.
"""
import json
import struct
import sys


def varint(n):
    n &= (1 << 64) - 1
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def num(field, n):
    return varint(field << 3) + varint(n)


def blob(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name, kind, dims, values):
    head = b"".join(num(1, d) for d in dims) + num(2, kind) + blob(8, name)
    if isinstance(values, dict):
        entries = (blob(13, blob(1, k) + blob(2, str(v))) for k, v in values.items())
        return head + b"".join(entries) + num(14, 1)
    letter = {1: "f", 6: "i", 7: "q", 9: "?", 11: "d"}[kind]
    return head + blob(9, struct.pack(f"<{len(values)}{letter}", *values))


def attribute(name, v):
    if isinstance(v, int):
        return blob(1, name) + num(3, v) + num(20, 2)
    if isinstance(v, float):
        return blob(1, name) + varint(2 << 3 | 5) + struct.pack("<f", v) + num(20, 1)
    if isinstance(v, str):
        return blob(1, name) + blob(4, v) + num(20, 3)
    if v and isinstance(v[0], list):
        return blob(1, name) + blob(5, tensor("", *v[0])) + num(20, 4)
    return blob(1, name) + b"".join(num(8, i) for i in v) + num(20, 7)


def value(name, kind, dims):
    def dim(d):
        return b"" if d is None else num(1, d) if isinstance(d, int) else blob(2, d)

    shape = b"" if dims is None else blob(2, b"".join(blob(1, dim(d)) for d in dims))
    return blob(1, name) + blob(2, blob(1, num(1, kind) + shape))


def node(op, inputs, outputs, attrs=None, domain=""):
    out = b"".join(blob(1, i) for i in inputs) + b"".join(blob(2, o) for o in outputs)
    out += blob(3, f"the_{op}") + blob(4, op)
    out += b"".join(blob(5, attribute(k, v)) for k, v in (attrs or {}).items())
    return out + (blob(7, domain) if domain else b"")


def model(m):
    graph = b"".join(blob(1, node(*n)) for n in m.get("nodes", []))
    graph += blob(2, "test")
    graph += b"".join(blob(5, tensor(k, *v)) for k, v in m.get("weights", {}).items())
    graph += b"".join(blob(11, value(k, *v)) for k, v in m.get("inputs", {}).items())
    graph += b"".join(blob(12, value(k, *v)) for k, v in m.get("outputs", {}).items())
    said = b"".join(blob(14, blob(1, k) + blob(2, v if isinstance(v, str) else json.dumps(v)))
                    for k, v in m.get("metadata", []))
    return (num(1, 8) + blob(2, "tests") + blob(7, graph) + blob(8, num(2, m.get("opset", 13)))
            + said)


if __name__ == "__main__":
    sys.stdout.buffer.write(model(json.loads(sys.argv[1])))
