# SPDX-License-Identifier: Apache-2.0
"""Which result of a step replaces which donated argument.

By path first: `params` is replaced by the result that has `params` as its last name, the parts of
a state by the parts of the same names.  Where names are silent, by shape if one result alone can
be meant; where several can, by data flow (flow.py): the results that are nearest to the arguments
that they replace, all together, if no other choice is as near.  Otherwise the user is asked.  The
loss replaces nothing unless its path says so.
"""

import inspect

import jax
import numpy as np

from . import flow
from .errors import StepError
from .leaves import shape_text

FAR, NEVER = 1e4, 1e9  # a result that depends on the argument in some way; one that does not


class Node:
    """A subtree of arguments or of results: its leaves are first, ..., first + n - 1."""

    def __init__(self, first, tree, names, path):
        self.first, self.tree, self.names, self.path = first, tree, names, path
        leaves, structure = jax.tree.flatten(tree)
        self.n, self.leaves = len(leaves), leaves
        self.form = (structure, tuple(shape_text(leaf) for leaf in leaves))

    def numbers(self):
        return range(self.first, self.first + self.n)

    def children(self):
        if jax.tree_util.all_leaves([self.tree]) or self.tree is None:
            return []
        rows, at = [], self.first
        own = lambda x: x is not self.tree
        for keys, child in jax.tree_util.tree_leaves_with_path(self.tree, is_leaf=own):
            path = self.path + jax.tree_util.keystr(keys)
            rows.append(Node(at, child, self.names + tuple(map(name_of, keys)), path))
            at += rows[-1].n
        return rows

    def every(self):
        """This node and all below that have leaves, depth first."""
        found = [self] if self.n else []
        for child in self.children():
            found += child.every()
        return found


def name_of(key):
    """A name or a number of a tree's path."""
    for member in ("name", "key", "idx"):
        if hasattr(key, member):
            return getattr(key, member)
    return str(key)


def argument_names(function, n):
    try:
        found = [
            p.name for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]  # fmt: skip
    except (TypeError, ValueError):
        found = []
    return [*found, *(f"args[{i}]" for i in range(len(found), n))][:n]


def arguments_of(lowered):
    """A node for each argument."""
    args, kwargs = lowered.args_info
    names = argument_names(lowered.function, len(args))
    rows, at = [], 0
    for name, tree in [*zip(names, args), *kwargs.items()]:
        rows.append(Node(at, tree, (name,), name))
        at += rows[-1].n
    return rows


def results_of(lowered):
    """A node for each subtree of the results; the place in a tuple of results is no name."""
    root = Node(0, lowered.out_info, (), "")
    found = root.every()
    for node in found:
        if node.names and isinstance(node.names[0], int):
            node.names = node.names[1:]
    return found


def alike(a, b):
    """How many names at the end of two paths are equal; numbers alone say nothing."""
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n if any(isinstance(name, str) for name in a[len(a) - n :]) else 0


class Pairing:
    def __init__(self, lowered, loss):
        self.lowered, self.loss = lowered, loss
        self.results = results_of(lowered)
        self.pairs, self.taken, self.left = [], set(), []

    def take(self, node, result):
        self.pairs += zip(result.numbers(), node.numbers())
        self.taken.update(result.numbers())

    def candidates(self, node):
        found = [
            r for r in self.results if r.form == node.form and not self.taken & set(r.numbers())
        ]
        return [r for r in found if list(r.numbers()) != [self.loss] or alike(node.names, r.names)]

    def run(self, nodes):
        """Pairs these nodes and, where no result has a node's form, its children."""
        while nodes:
            rows = [row for node in nodes for row in self.rows(node)]
            named = self.by_path(rows)
            for node, result in named:
                self.take(node, result)
            nodes = [node for node, _ in rows if all(node is not n for n, _ in named)]
            if not named:
                for group in components(rows):
                    self.settle(group)
                return

    def rows(self, node):
        """[(node, candidates)]: of the node, or of its children where it has none."""
        found = self.candidates(node)
        if found:
            return [(node, found)]
        children = [c for c in node.children() if c.n]
        if not children:
            self.left += node.numbers()
        return [row for child in children for row in self.rows(child)]

    def by_path(self, rows):
        """[(node, result)] that names say: of a node the one result that its path is most like,
        unless that is as much like another's."""
        best, named, taken = [], [], set()
        for node, found in rows:
            scores = [alike(node.names, r.names) for r in found]
            top = [r for r, s in zip(found, scores) if s == max(scores)]
            best.append((max(scores), top[0] if len(top) == 1 else None))
        for i, (score, result) in enumerate(best):
            rivals = [s for k, (s, r) in enumerate(best) if k != i and r is result]
            if score and result and all(s < score for s in rivals):
                if not taken & set(result.numbers()):
                    taken.update(result.numbers())
                    named.append((rows[i][0], result))
        return named

    def settle(self, group):
        """Nodes that may be replaced by the same results: one, or the nearest."""
        if len(group) == 1 and len(group[0][1]) == 1:
            self.take(group[0][0], group[0][1][0])
            return
        found = self.nearest(group)
        if found is None:
            raise StepError(question(group))
        for node, result in found:
            self.take(node, result)

    def nearest(self, group):
        """[(node, result)] with the least operators between them, if no other choice has as few."""
        from scipy.optimize import linear_sum_assignment

        nodes = [node for node, _ in group]
        results = list({id(r): r for _, found in group for r in found}.values())
        watched = [i for node in nodes for i in node.numbers()]
        values = flow.Walk(self.lowered.jaxpr, watched).results

        def distance(node, result):
            total = 0
            for i, r in zip(node.numbers(), result.numbers()):
                value = values[r]
                total += value.near.get(i, FAR if value.all >> i & 1 else NEVER)
            return total

        cost = np.array([
            [distance(node, r) if r in found else NEVER * 1e3 for r in results]
            for node, found in group
        ])  # fmt: skip
        rows, columns = linear_sum_assignment(cost)
        best = cost[rows, columns].sum()
        if len(rows) < len(nodes) or best >= NEVER:
            return None
        for row, column in zip(rows, columns):
            if cost[row, column] >= FAR and min(cost[row].min(), cost[:, column].min()) < FAR:
                return None  # it is nearer to another
            other = cost.copy()
            other[row, column] = NEVER * 1e3
            a, b = linear_sum_assignment(other)
            if other[a, b].sum() <= best:
                return None
        chosen = [(nodes[row], results[column]) for row, column in zip(rows, columns)]
        overlap = [i for _, r in chosen for i in r.numbers()]
        return chosen if len(set(overlap)) == len(overlap) else None


def components(rows):
    """Rows that have results in common, together."""
    groups = []
    for row in rows:
        mine = {i for r in row[1] for i in r.numbers()}
        joined = [g for g in groups if g[1] & mine]
        groups = [g for g in groups if not g[1] & mine]
        groups.append((
            [r for g in joined for r in g[0]] + [row], mine.union(*(g[1] for g in joined))
        ))  # fmt: skip
    return [group for group, _ in groups]


def question(group):
    rows = [
        f"{node.path} by {' or '.join(r.path or 'the result' for r in found[:4])}"
        for node, found in group[:4]
    ]
    node, found = group[0]
    return (
        f"several results may replace donated arguments: {'; '.join(rows)}: "
        f"say which, --pair \"{node.path}={found[0].path}\""
    )


def wanted_pair(text, arguments, results):
    """The nodes that --pair ARGUMENT=RESULT names."""
    for at in (i for i, c in enumerate(text) if c == "="):
        ours = [n for n in arguments if n.path == text[:at]]
        theirs = [n for n in results if n.path == text[at + 1 :]]
        if ours and theirs:
            if ours[0].form != theirs[0].form:
                raise StepError(f"--pair {text}: they have not the same arrays")
            return ours[0], theirs[0]
    raise StepError(f"--pair {text}: expected ARGUMENT=RESULT, paths as in "
                    f"{arguments[0].path}={results[-1].path}")  # fmt: skip


def donated_nodes(node, done):
    """Subtrees whose leaves are all donated and not done, the largest."""
    open_ = [leaf.donated and i not in done for leaf, i in zip(node.leaves, node.numbers())]
    if all(open_) and open_:
        return [node]
    return [n for c in node.children() if any(open_) for n in donated_nodes(c, done)]


def pair(lowered, loss=None, wanted=()):
    """([(number of a result, number of the argument that it replaces)], arguments' leaves that
    are donated and that no result replaces).  loss: the number of the result that is the loss;
    wanted: texts of --pair.  StepError: several results may be meant."""
    arguments, state, done = arguments_of(lowered), Pairing(lowered, loss), set()
    for text in wanted:
        node, result = wanted_pair(text, [n for a in arguments for n in a.every()], state.results)
        state.take(node, result)
        done.update(node.numbers())
    for result, argument in lowered.written():
        state.pairs.append((result, argument))
        state.taken.add(result)
        done.add(argument)
    state.run([n for a in arguments for n in donated_nodes(a, done)])
    return sorted(state.pairs), sorted(state.left)
