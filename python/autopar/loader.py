# SPDX-License-Identifier: Apache-2.0
"""A plan as the user holds it: load, jit, shard, unshard."""

import functools
import inspect
import json
import os

import jax
import numpy as np
from jax.sharding import Mesh as DeviceMesh

from . import planned
from . import step as steps
from .arrays import Form, Piece, Placed, Placement, is_key, is_placed, to_host
from .errors import PlanError
from .layouts import Layout, Mesh, parse_shape, shape_text
from .leaves import Split


def load(path, devices=None):
    """The plan in a document that ap-rewrite wrote.

    devices: those of the plan in the order of its mesh, last axis fastest; by default the
    first of jax.devices().
    """
    with open(path) as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise PlanError(f"{path}: no JSON: {error}") from None
    return plan_of(path, document, devices)


def plan_of(path, document, devices=None):
    """The plan in a document; path: what errors call it."""
    if "autopar" not in document:
        raise PlanError(f"{path}: no document of autopar")
    try:
        if "pipeline" in document:
            from .pipeline import StagedPlan as kind
        elif "program" in document:
            from .spmd import ProgramPlan as kind
        else:
            raise PlanError(
                "there is no section 'program' or 'pipeline': run the plan through ap-rewrite"
            )
        return kind(path, document, devices)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from None


def part_of(member, index):
    """(index, [(dim, part), ...]) of the array of the step that a parameter or result is."""
    if member is None:
        return index, []
    index, splits = member["index"], []
    while member is not None and "dim" in member:
        splits.append((member["dim"], member["part"]))
        member = member.get("then")
    return index, splits


def suffix_of(path):
    """A path without the name of the argument that it starts in."""
    at = min((i for i in (path.find("["), path.find(".")) if i >= 0), default=len(path))
    return path[at:]


def root_of(path):
    return path[: len(path) - len(suffix_of(path))]


class Plan(planned.Plan):
    """What plans of one program and of stages share: the step's arguments and their forms.

    A subclass says where a parameter lies (`placements`) and how a step is run (`runner`).
    """

    def __init__(self, path, document, devices):
        self.path, self.document = path, document
        self.graph = document["graph"]
        self.devices = list(devices) if devices is not None else None
        self.step = document.get("step")
        if self.step is None:
            raise PlanError(
                "there is no section 'step': export the step with scripts/jax/export.py of "
                "this version, so that it can be compared with yours"
            )
        if self.step.get("framework") != "jax":
            raise PlanError(f"the step is {self.step.get('framework')}'s, not JAX's")

    def take_devices(self, n):
        """The plan's devices, of the process's or the job's."""
        found = self.devices if self.devices is not None else jax.devices()
        if len(found) < n:
            raise PlanError(f"the plan is for {n} devices, and there are {len(found)}")
        if self.devices is None and jax.process_count() > 1 and len(found) != n:
            raise PlanError(
                f"the plan is for {n} devices, and the job has {len(found)}: give load() the "
                "devices to use"
            )
        return np.array(found[:n])

    # ---- what the subclass fills ----

    def set_up(self, placements):
        """Forms of the arguments; placements(number, dtype, dims): of a graph's parameter."""
        nodes = self.graph["nodes"]
        self.parameters = {n["param"]: n for n in nodes if n["op"] == "parameter"}
        rows = self.step["arguments"]
        pieces = [[] for _ in rows]
        self.numbers = [[] for _ in rows]  # parameters of the graph of each argument, in order
        for number in sorted(self.parameters):
            node = self.parameters[number]
            index, part = part_of(node.get("argument"), number)
            dims = parse_shape(rows[index]["shape"])[1]
            placed = placements(number, *parse_shape(node["shape"]))
            if placed:
                pieces[index].append(Piece(part, dims, placed))
                self.numbers[index].append(number)
        self.forms = [
            Form(row, *parse_shape(row["shape"]), found) for row, found in zip(rows, pieces)
        ]
        self.argument_of = {
            number: index for index, found in enumerate(self.numbers) for number in found
        }

    def result_rows(self):
        """Per result of the step: [(number of the graph's result, part)]."""
        found = [[] for _ in self.step["results"]]
        for number, result in enumerate(self.graph["results"]):
            index, part = part_of(result.get("result"), number)
            found[index].append((number, part))
        return found

    def alias_of(self, number):
        """The parameter that a result of the graph becomes, or None."""
        node = self.graph["results"][number].get("alias")
        return None if node is None else self.graph["nodes"][node]["param"]

    def form_of(self, index, row):
        """How a result of the step is held: as the argument that it becomes, if it is one."""
        aliases = [self.alias_of(number) for number, _ in row]
        for argument, numbers in enumerate(self.numbers):
            if numbers and numbers == aliases:
                return self.forms[argument]
        said = self.step["results"][index]
        dtype, dims = parse_shape(said["shape"])
        pieces = [Piece(part, dims, [self.result_placement(n)]) for n, part in row]
        return Form(said, dtype, dims, pieces)

    # ---- the user's side ----

    def jit(self, step, donate=None):
        """The step as the plan runs it: the same arguments and results.

        step: the user's, jitted or not.  Arguments that it donates are donated; a step that is
        not jitted donates what the planned one did, or `donate`, numbers of arguments.
        """
        return Step(self, step, donate)

    def shard(self, tree, argument=None):
        """The tree with every array where the plan has it.

        tree: all arguments of the step as a tuple, or one of them, found by its structure and
        shapes; argument: its name or number, where several have the same.
        """
        split, numbers = self.match(tree, argument)
        found = []
        for leaf, index in zip(split.arrays, numbers):
            form = self.forms[index]
            held = form.holds(leaf) or not hasattr(leaf, "dtype")  # numbers have weak types
            found.append(leaf if held else form.leaf(form.arrays(leaf)))
        return split.joined(found)

    def unshard(self, tree):
        """The tree with arrays in the user's shapes and order: JAX's own, sharded, where the
        plan holds them so, else numpy's."""
        return jax.tree.map(
            lambda leaf: leaf.whole() if is_placed(leaf) else leaf, tree, is_leaf=is_placed
        )

    # ---- finding arguments ----

    def roots(self):
        """Arguments of the step in order: name to numbers of its leaves."""
        found = {}
        for i, row in enumerate(self.step["arguments"]):
            found.setdefault(root_of(row["path"]), []).append(i)
        return found

    def match(self, tree, argument):
        """(the tree, split into arrays and the rest; numbers of the arguments that its arrays are).

        Python's numbers are arrays, unless the step is one of equinox.filter_jit, to which they
        belong to the rest.
        """
        try:
            split = Split(tree)
            return split, self.match_rows(tree, split, argument)
        except PlanError:
            split = Split(tree, filtered=True)
            if not any(isinstance(x, (bool, int, float, complex)) for x in split.rest.values()):
                raise
            return split, self.match_rows(tree, split, argument)

    def match_rows(self, tree, split, argument):
        rows = rows_of(split)
        if not rows:  # the state of plain gradient descent
            return []
        roots = self.roots()
        if argument is not None:
            names = list(roots)
            name = names[argument] if argument in range(len(names)) else argument
            if name not in roots:
                raise PlanError(f"there is no argument '{name}': {', '.join(names)}")
            self.compare(rows, roots[name], name)
            return roots[name]
        everything = list(range(len(self.forms)))
        if isinstance(tree, (tuple, list)) and self.differs(rows, everything, 1) is None:
            return everything
        fits = [name for name, found in roots.items() if self.differs(rows, found) is None]
        if not fits:
            nearest = min(roots, key=lambda n: abs(len(roots[n]) - len(rows)))
            self.compare(rows, roots[nearest], nearest)
        layouts = [[self.forms[i].layouts() for i in roots[name]] for name in fits]
        if any(found != layouts[0] for found in layouts):
            raise PlanError(f"the tree may be {' or '.join(fits)}: say argument=NAME")
        return roots[fits[0]]

    def differs(self, rows, numbers, n_skip=0):
        """The first difference of a tree from arguments of the plan, or None.

        n_skip: entries of the path in front that stand for the name of an argument.
        """
        for (path, leaf), number in zip(rows, numbers):
            form = self.forms[number]
            if jax.tree_util.keystr(path[n_skip:]) != suffix_of(form.path):
                return f"{form.path} of the plan is {jax.tree_util.keystr(path)} here"
            text = leaf_text(leaf, form)
            if text != form.text():
                return f"{form.path} is {text}, in the plan {form.text()}"
        if len(rows) != len(numbers):
            where = (
                f"{self.forms[numbers[len(rows)]].path} is missing"
                if len(rows) < len(numbers)
                else f"{jax.tree_util.keystr(rows[len(numbers)][0])} is too many"
            )  # fmt: skip
            return f"{len(rows)} arrays, in the plan {len(numbers)}: {where}"
        return None

    def compare(self, rows, numbers, what, n_skip=0):
        difference = self.differs(rows, numbers, n_skip)
        if difference:
            raise PlanError(f"{what}: {difference}")


def rows_of(split):
    """[(path, leaf)] of the arrays of a tree."""
    tree = split.without_rest()
    return jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_placed)


def distinct(leaves):
    """Leaves of which no two are one array of JAX's, as averages and weights are at the start: its
    buffer would be donated twice."""
    seen, found = set(), []
    for leaf in leaves:
        again = isinstance(leaf, jax.Array) and not is_key(leaf) and id(leaf) in seen
        found.append(to_host(leaf).copy() if again else leaf)
        seen.add(id(leaf))
    return found


def leaf_text(leaf, form):
    """The shape of a leaf as the plan spells it; plain numbers are of the plan's type."""
    if is_placed(leaf):
        return leaf.form.text()
    if isinstance(leaf, (bool, int, float, complex)):
        return shape_text(form.dtype, ())
    if is_key(leaf):
        return steps.shape_text(leaf)
    return shape_text(jax.dtypes.canonicalize_dtype(leaf.dtype), leaf.shape)


def abstract(leaf):
    """What the user's step is traced with."""
    if not hasattr(leaf, "dtype"):
        return leaf
    if is_placed(leaf):
        dims, key = leaf.form.dims, leaf.form.key
        if key is not None:
            impl = jax.random.key_impl(jax.random.key(0, impl=key))
            dtype = jax.random.key(0, impl=impl).dtype
            return jax.ShapeDtypeStruct(dims[:-1], dtype)
        return jax.ShapeDtypeStruct(dims, leaf.dtype)
    if is_key(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct(
        leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype),
        weak_type=getattr(leaf, "weak_type", False),
    )  # fmt: skip


class Step:
    """The user's step under a plan.  The first call compares it with the planned one."""

    def __init__(self, plan, function, donate):
        self.plan, self.function, self.donate = plan, function, donate
        self.made = {}  # arguments but for their arrays: (runner, steps.Lowered)
        raw, self.options = steps.raw(function)
        self.filtered = steps.is_filtered(function)
        try:
            self.signature = inspect.signature(raw)
        except (TypeError, ValueError):
            self.signature = None
        if any(self.options.get(k) for k in ("static_argnums", "static_argnames")):
            raise PlanError("the step has static arguments: bind them by functools.partial")
        functools.update_wrapper(self, raw)

    def bound(self, args, kwargs):
        """Positional arguments, as the exporter was given them."""
        if not kwargs:
            return args
        if self.signature is None:
            raise PlanError("give the step its arguments by position")
        try:
            found = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise PlanError(f"the step's arguments: {error}") from None
        if found.kwargs:
            raise PlanError(f"argument '{next(iter(found.kwargs))}' has no position")
        return found.args

    def prepare(self, args, split):
        """Compares the step with the plan's, first difference first; the runner."""
        plan = self.plan
        everything = list(range(len(plan.forms)))
        plan.compare(rows_of(split), everything, f"{plan.path}: the step's arguments", 1)
        shapes = jax.tree.map(abstract, args, is_leaf=is_placed)
        lowered = steps.lower(self.function, *shapes, donate=self.donate or ())
        self.compare_results(steps.results(lowered))
        found, planned = steps.canonical_hash(lowered), plan.step["hash"]
        if found != planned:
            version = plan.step.get("version")
            raise PlanError(
                f"{plan.path}: the step computes something else than the planned one, of the "
                f"same arguments and results: its HLO has the hash {found[:12]}, the plan's "
                f"{planned[:12]}"
                + ("" if version == jax.__version__ else
                   f"; this is JAX {jax.__version__}, the plan was made with {version}")
            )  # fmt: skip
        donated = [leaf.donated for leaf in jax.tree.leaves(lowered.args_info)]
        if not self.options and self.donate is None:
            donated = [row.get("donated", False) for row in plan.step["arguments"]]
        return plan.runner(donated), lowered

    def compare_results(self, rows):
        planned = self.plan.step["results"]
        for row, other in zip(rows, planned):
            if (row["path"], row["shape"]) != (other["path"], other["shape"]):
                raise PlanError(
                    f"{self.plan.path}: the step's results: {row['path']} is {row['shape']}, "
                    f"in the plan {other['path']} is {other['shape']}"
                )
        if len(rows) != len(planned):
            raise PlanError(
                f"{self.plan.path}: the step has {len(rows)} results, in the plan {len(planned)}"
            )

    def ready(self, args):
        """(arguments, split into arrays and the rest; runner; steps.Lowered)"""
        split = Split(args, self.filtered)
        key = split.key()
        if key not in self.made:
            self.made[key] = self.prepare(args, split)
        return split, *self.made[key]

    def runner(self, *args, **kwargs):
        """What runs the step with arguments like these."""
        return self.ready(self.bound(args, kwargs))[1]

    def compiled(self, *args, **kwargs):
        """What JAX compiled, for memory_analysis() and as_text(): one executable, or for a
        staged plan, once it has run, one for each stage and range of instructions."""
        return self.runner(*args, **kwargs).compiled()

    def __call__(self, *args, **kwargs):
        args = self.bound(args, kwargs)
        split, runner, lowered = self.ready(args)
        leaves = distinct(split.arrays)
        held = [form.arrays(leaf) for form, leaf in zip(self.plan.forms, leaves)]
        found = runner(held, split.arrays)
        if lowered.changed:
            put_back(args, split, dict(zip(lowered.changed, found[-len(lowered.changed) :])))
        return lowered.outputs.joined(found)


def put_back(args, split, values):
    """New values of the variables of flax.nnx that the step changes in place, by argument."""
    new = split.joined(values.get(i, leaf) for i, leaf in enumerate(split.arrays))
    for variable, other in zip(steps.variables(args), steps.variables(new)):
        variable.copy_from(other)


def device_mesh(mesh, devices):
    """JAX's mesh of the plan's axes but time."""
    shape = [mesh.sizes[a] for a in mesh.device_axes] or [1]
    names = [mesh.names[a] for a in mesh.device_axes] or ["one"]
    return DeviceMesh(np.array(devices).reshape(shape), names)


def placement_of(node, mesh, on):
    """The placement of a parameter of a partitioned graph."""
    dtype, dims = parse_shape(node.get("global", node["shape"]))
    return Placement(on, Layout(mesh, dims, node.get("layout", [])), dtype)


__all__ = ["Placed", "Plan", "PlanError", "Mesh", "load"]
