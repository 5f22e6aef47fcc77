# SPDX-License-Identifier: Apache-2.0
"""The partitioned graph, evaluated node for node by one device of the mesh.

Everything here runs inside shard_map, while JAX traces: a value is this device's part.  The
order of the nodes is the plan's.  XLA may reorder what does not depend on each other, and
merges what is computed twice.  Therefore contractions wait for one another, collectives wait
for the contraction before them, so that a weight is not gathered long before it is used, and
nodes that the plan repeats on purpose (a recomputation, a weight that is gathered again) read
their operands through an optimization barrier: they are not merged with the first time.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from .collectives import MOVING, carried_start, collect, over_time
from .errors import PlanError
from .layouts import parse_shape, shape_text
from .operators import ELEMENTWISE, TABLE

CONTRACTIONS = {"dot", "convolution"}
COPIED = {"broadcast", "reshape", "transpose", "slice", "compare", "convert", "concatenate", "pad"}
WRITTEN = {"scatter", "dynamic-update-slice"}  # their first operand is a buffer to write into
NAMING = {"name", "scope", "phase", "group", "in", "recomputed"}  # what equal nodes may differ in


class Graph:
    """A graph of the document on local shapes, and what evaluating it needs to know."""

    def __init__(self, section, mesh, platform, each=None):
        self.nodes = section["nodes"]
        self.results = section["results"]
        self.reducers = section.get("reducers", [])
        self.computations = section.get("computations", [])
        self.mesh = mesh
        # where collectives run beside contractions, one contraction need not wait for them
        self.n_ahead = 0 if platform == "cpu" else 1
        self.each = tuple(each) if each else None  # groups of the microbatches, half open
        self.params = {n["param"]: i for i, n in enumerate(self.nodes) if n["op"] == "parameter"}
        self.n_groups = 1 + max((n.get("group", 0) for n in self.nodes), default=0)
        self.check()
        self.pinned = self.find_pinned()
        self.free = self.find_free()
        self.readers = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for k in node.get("in", []):
                self.readers[k].append(i)
        self.last = [max(ids, default=i) for i, ids in enumerate(self.readers)]
        for result in self.results:
            self.last[result["node"]] = len(self.nodes)
        self.releases = self.find_releases()

    def check(self):
        """Refuses what cannot be evaluated, by name."""
        inner = [n for c in (*self.computations, *self.reducers) for n in c.get("nodes", [])]
        for node in (*self.nodes, *inner):
            if node["op"] != "parameter" and node["op"] not in TABLE:
                raise PlanError(
                    f"node {node.get('name')}: operator '{node['op']}' is not known"
                )
            if node["op"] == "custom-call":
                TABLE["custom-call"](None, node, ())

    def find_pinned(self):
        """Nodes that are computed a second time on purpose: those that say so, and those that
        XLA would merge with an earlier equal one, collectives or work of another phase."""
        seen, alike, varies, pinned = {}, [], [], set()
        for i, node in enumerate(self.nodes):
            operands = node.get("in", [])
            said = {k: v for k, v in node.items() if k not in NAMING}
            key = i if node["op"] == "parameter" else repr(
                (said, [alike[k] for k in operands], self.is_each(i))
            )  # fmt: skip
            first = seen.setdefault(key, i)
            alike.append(first)
            varies.append(node["op"] == "parameter" or any(varies[k] for k in operands))
            other = node.get("phase") != self.nodes[first].get("phase")
            equal = first != i and varies[i] and (other or node["op"] in MOVING)
            if node.get("recomputed") or equal:
                pinned.add(i)
        return pinned

    def is_each(self, i):
        group = self.nodes[i].get("group", 0)
        return self.each is not None and self.each[0] <= group < self.each[1]

    def carried(self, i):
        """Collected over microbatches."""
        node = self.nodes[i]
        return node["op"] in ("all-reduce", "all-gather") and over_time(self, node)

    def span(self, lo, hi):
        """Nodes of groups lo to hi - 1 but parameters, in order."""
        return [
            i for i, n in enumerate(self.nodes)
            if n["op"] != "parameter" and lo <= n.get("group", 0) < hi
        ]  # fmt: skip

    def with_free(self, ids):
        """These nodes, and those that they need and that are made of constants alone: it costs
        less to make these again than to keep them."""
        found, pending = set(ids), list(ids)
        while pending:
            for k in self.nodes[pending.pop()].get("in", []):
                if self.free[k] and k not in found:
                    found.add(k)
                    pending.append(k)
        return sorted(found)

    def find_free(self):
        free = []
        for node in self.nodes:
            operands = node.get("in", [])
            leaf = node["op"] in ("constant", "iota")
            cheap = node["op"] in ELEMENTWISE or node["op"] in COPIED
            free.append(leaf or (cheap and all(free[k] for k in operands)))
        return free

    def find_releases(self):
        """Nodes after which less is in memory than before: their operands that nothing else
        reads are larger than what they make."""
        found, size = set(), [self.held_bytes(i) for i in range(len(self.nodes))]
        for i, node in enumerate(self.nodes):
            gone = {k for k in node.get("in", []) if self.last[k] == i}
            if size[i] and sum(size[k] or 0 for k in gone) > size[i]:
                found.add(i)
        return found

    def living(self, ids, now):
        """What is left of values before node `now`, ascending: those that are still read, and
        of the others what was made of them, so that XLA may fuse the steps in between."""
        found, seen, pending = set(), set(ids), list(ids)
        while pending:
            i = pending.pop()
            readers = self.readers[i]
            repeated = any(not self.held_bytes(k) for k in readers)
            if self.last[i] >= now or repeated or not readers:
                found.add(i)
            else:
                pending += [k for k in readers if k not in seen]
                seen.update(readers)
        return sorted(found)

    def held_bytes(self, i):
        """Bytes of a value that XLA keeps in a buffer for the nodes that read it: not of
        parameters, which are the caller's, nor of what it repeats in every reader; None: of a
        tuple."""
        node = self.nodes[i]
        if node["shape"].startswith("("):
            return None
        if node["op"] in ("parameter", "broadcast") or self.free[i]:
            return 0
        dtype, dims = self.shapes(i)
        return math.prod(dims) * dtype.itemsize

    def reads(self, ids):
        """Values that these nodes read and do not make, ascending."""
        made = set(ids)
        return sorted({k for i in ids for k in self.nodes[i].get("in", [])} - made)

    def shapes(self, i):
        """(dtype, dims) of a node's value; a list of those for a tuple."""
        return parse_shape(self.nodes[i]["shape"])


class Run:
    """One evaluation: the device's coordinates, and the values so far."""

    def __init__(self, graph, microbatch=0):
        mesh = graph.mesh
        self.graph, self.mesh = graph, mesh
        self.reducers, self.computations = graph.reducers, graph.computations
        self.coords = [
            microbatch if mesh.is_time(a) else lax.axis_index(mesh.names[a])
            for a in range(len(mesh.sizes))
        ]
        self.loop = None  # the microbatch's number inside a loop over them
        self.last = None  # an element of the last contraction
        self.last_at = -1  # its node
        self.released = [[]]  # nodes that release memory, by contractions that they came after
        self.pins = {}  # operand: itself behind a barrier

    def computation(self, section, values):
        """Results of a loop's or a reducer's computation."""
        found = []
        for node in section["nodes"]:
            if node["op"] == "parameter":
                found.append(values[node["param"]])
            else:
                operands = [found[k] for k in node.get("in", [])]
                found.append(TABLE[node["op"]](self, node, operands))
        return [found[k] for k in section["results"]]

    def pin(self, k, values):
        """Value k as it is read by a node that is computed again: behind a barrier, so that
        the node is not merged with an equal one.  What is broadcast is so behind it, since XLA
        would make a buffer of it."""
        graph = self.graph
        if k in graph.pinned or graph.free[k]:
            return values[k]  # the part that is repeated starts further up, or costs nothing
        if k not in self.pins:
            node = graph.nodes[k]
            if node["op"] == "broadcast":
                self.pins[k] = TABLE["broadcast"](self, node, [self.pin(node["in"][0], values)])
            else:
                tie = [v for v in (self.loop, self.last) if v is not None]
                self.pins[k] = lax.optimization_barrier((values[k], *tie))[0]
        return self.pins[k]

    def follow(self, i, operands, values):
        """Operands of node i, a contraction or a collective, which wait for the contraction
        before and for what has released memory by then."""
        done = []
        for ids in self.released[: max(len(self.released) - self.graph.n_ahead, 0)]:
            done += ids
            ids.clear()
        done = self.graph.living(done, i)
        tie = [v for v in (self.loop, self.last) if v is not None]
        made = [values[k] for k in done]
        found = lax.optimization_barrier((*operands, *made, *tie))
        values.update(zip(done, found[len(operands) :]))
        return found[: len(operands)]

    def operands(self, i, values):
        node = self.graph.nodes[i]
        found = [values[k] for k in node.get("in", [])]
        if node["op"] in MOVING:
            return self.follow(i, found, values)
        if i in self.graph.pinned:
            found = [self.pin(k, values) for k in node["in"]]
        if node["op"] in CONTRACTIONS:
            old = [j for j, k in enumerate(node["in"]) if j == 0 or self.is_old(k)]
            for j, value in zip(old, self.follow(i, [found[j] for j in old], values)):
                found[j] = value
        if node["op"] in WRITTEN and self.last is not None:
            found[0] = self.filled(node["in"][0], found[0], values)
        return found

    def is_old(self, k):
        """Whether value k is in memory since before the last contraction.  What XLA makes of it
        for a contraction (another order of its dimensions, on CPUs f32 of bf16) is then made
        for this contraction alone, not once for all and kept."""
        graph = self.graph
        kept = graph.nodes[k]["op"] == "parameter" or graph.held_bytes(k)
        return k <= self.last_at and bool(kept)

    def filled(self, k, value, values):
        """A buffer of one constant, not made before the last contraction: XLA would make it at
        the start of the step, since it waits for nothing."""
        node = self.graph.nodes[k]
        if node["op"] != "broadcast" or not self.graph.free[k]:
            return value
        (start,) = (values[j] for j in node["in"])
        start = lax.optimization_barrier((start, self.last))[0]
        return TABLE["broadcast"](self, node, [start])

    def nodes(self, ids, values):
        """Evaluates nodes in order; values: node id to value, which grows."""
        for i in ids:
            node = self.graph.nodes[i]
            with jax.named_scope(node.get("name") or node["op"]):  # for profiles
                operands = self.operands(i, values)
                if self.graph.carried(i):
                    value = collect(self, node, operands[0], values[i])
                else:
                    value = TABLE[node["op"]](self, node, operands)
            self.check(node, value)
            values[i] = value
            if node["op"] in CONTRACTIONS:
                # one element, since the plan may need the memory of the others
                self.last = lax.slice(value, [0] * value.ndim, [min(n, 1) for n in value.shape])
                self.last_at = i
                self.released.append([])
            elif i in self.graph.releases:
                self.released[-1].append(i)

    @staticmethod
    def check(node, value):
        """A value has the shape that the document says."""
        if isinstance(value, (tuple, list)):
            return
        dtype, dims = parse_shape(node["shape"])
        if tuple(value.shape) != dims or value.dtype != dtype:
            raise PlanError(
                f"node {node.get('name')} ({node['op']}): the document says "
                f"{node['shape']}, its operands make {shape_text(value.dtype, value.shape)}"
            )


def start_carried(run, ids, values):
    for i in ids:
        if run.graph.carried(i):
            values[i] = carried_start(run, run.graph.nodes[i])


def evaluate(graph, params):
    """The local results of a whole program; params: by number."""
    run = Run(graph)
    values = {graph.params[number]: value for number, value in params.items()}
    if graph.each is None:
        run.nodes(graph.span(0, graph.n_groups), values)
    else:
        lo, hi = graph.each
        run.nodes(graph.span(0, lo), values)
        loop(run, graph.span(lo, hi), values)
        run.nodes(graph.span(hi, graph.n_groups), values)
    return [jnp.asarray(values[r["node"]]) for r in graph.results]


def loop(run, ids, values):
    """The nodes once per microbatch; what is read behind the loop is carried through it."""
    graph = run.graph
    behind = graph.reads(graph.span(graph.each[1], graph.n_groups))
    behind = set(behind) | {r["node"] for r in graph.results}
    kept = [i for i in ids if graph.carried(i) or i in behind]
    start_carried(run, kept, values)
    state = tuple(
        values[i] if graph.carried(i) else lax.full(dims, 0, dtype)
        for i, (dtype, dims) in ((i, graph.shapes(i)) for i in kept)
    )
    before = dict(values)

    def body(j, state):
        inner = Run(graph, j)
        inner.loop = j
        found = {**before, **dict(zip(kept, state))}
        inner.nodes(ids, found)
        return tuple(found[i] for i in kept)

    state = lax.fori_loop(0, graph.mesh.microbatches, body, state)
    values.update(zip(kept, state))
