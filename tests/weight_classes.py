"""Compares two documents with families by the classes of weights that they make: weights
are in one class if they stand for each other in some family, at any level, transitively.
Prints "same", "finer" (each class of the first lies in one of the second's), "coarser", or
"other", and on standard error what differs. Nodes are compared by position."""

import json
import sys


def classes(path):
    with open(path, encoding="utf-8") as f:
        doc = json.load(f)
    up = list(range(len(doc["graph"]["nodes"])))

    def find(v):
        while up[v] != v:
            up[v] = up[up[v]]
            v = up[v]
        return v

    for family in doc["families"]["families"]:
        first = family["nodes"][0]
        for row in family["nodes"][1:]:
            for a, b in zip(first, row, strict=True):
                up[find(b)] = find(a)
    found = {}
    for v, node in enumerate(doc["graph"]["nodes"]):
        if node.get("role") == "weight":
            found.setdefault(find(v), set()).add(v)
    return {frozenset(c) for c in found.values()}


def refines(fine, coarse):
    return all(any(c <= d for d in coarse) for c in fine)


a, b = classes(sys.argv[1]), classes(sys.argv[2])
if a != b:
    for c in sorted(map(sorted, a ^ b)):
        print("first" if frozenset(c) in a else "second", c[:12], file=sys.stderr)
print(
    "same" if a == b
    else "finer" if refines(a, b)
    else "coarser" if refines(b, a)
    else "other"
)
