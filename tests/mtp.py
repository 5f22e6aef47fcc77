#!/usr/bin/env python3
"""Values for a Llama of ap-model with --mtp (--vocab 32) whose layers pass their input on, and the loss that it must have.

    mtp.py GRAPH FOLDER

Attention and feed-forward parts add zeros, and the map of both halves keeps the second, the embedding. So head k
sees the normed embedding of the token k places further alone: its loss is computed here from the tokens, the
table and the head.
"""
import json
import math
import random
import re
import struct
import sys

EPS, WEIGHT, VOCAB = 1e-5, 0.3, 32


def save(path, shape, kind, values):
    head = f"{{'descr': '<{kind}4', 'fortran_order': False, 'shape': ({', '.join(map(str, shape))},), }}"
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode())
        file.write(struct.pack(f"<{len(values)}{kind}", *values))


def norm(x):
    size = math.sqrt(sum(v * v for v in x) / len(x) + EPS)
    return [v / size for v in x]


def loss_of(x, head, label):
    logits = [sum(a * b for a, b in zip(x, column)) for column in head]
    return math.log(sum(map(math.exp, logits))) - logits[label]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        nodes = json.load(file)["graph"]["nodes"]
    draw, found = random.Random(1), {}
    for k, node in enumerate(n for n in nodes if n["op"] == "parameter" and n["role"] != "state"):
        name, shape = node["name"], [int(d) for d in re.search(r"\[(.*)\]", node["shape"])[1].split(",")]
        n, kind = math.prod(shape), "f"
        if node["role"] == "input":
            kind, values = "i", [draw.randrange(VOCAB) for _ in range(n)]
        elif name.endswith("scale"):
            values = [1] * n
        elif name.endswith("eh_proj/w"):
            values = [float(i - shape[1] == j) for i in range(shape[0]) for j in range(shape[1])]
        elif name.endswith(("/wte", "/head/w")):
            values = [draw.gauss(0, 1) for _ in range(n)]
        else:
            values = [0] * n
        save(f"{sys.argv[2]}/{k}.npy", shape, kind, values)
        rows = [values[i:i + shape[-1]] for i in range(0, n, shape[-1])]
        found[name.rsplit("/", 1)[-1] if node["role"] == "input" or name.endswith("wte") else name] = rows
    table, head = found["wte"], list(zip(*found["llama/head/w"]))
    depth = sum("eh_proj" in name for name in found)
    total = 0
    for k in range(depth + 1):
        losses = []
        for tokens, labels in zip(found["tokens"], found["labels"]):
            read = labels[k - 1:] if k else tokens
            losses += [loss_of(norm(norm(table[t]) if k else table[t]), head, label)
                       for t, label in zip(read, labels[k:])]
        total += (WEIGHT / depth if k else 1) * sum(losses) / len(losses)
    print(total)


if __name__ == "__main__":
    main()
