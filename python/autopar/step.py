# SPDX-License-Identifier: Apache-2.0
"""What a document says of the step that it was made of: its section `step`.

The exporter writes it into the header of the HLO text, ap-import takes it from there, every
tool passes it on, and the loader compares the user's step with it:

    {"framework": "jax", "version": JAX's, "hash": canonical_hash,
     "arguments": [{"path": "params['w']", "shape": "f32[4,2]", "donated": true},
                   {"path": "base['w']", "shape": "bf16[4,4]", "frozen": true}, ...],
     "results": [{"path": "[1]['w']", "shape": "f32[4,2]"}, ...],
     "loss": {"result": 0, "guessed": true}}

Arguments are the leaves of the step's arguments in JAX's order, and so parameter N of the HLO
text is argument N: steps are lowered with keep_unused.  Results are the leaves of what the
step returns.  Typed random keys are their u32 data, and say so with "key".  `loss` is there
where somebody named the loss, or the names of the results say which it may be.
"""

import functools
import hashlib
import inspect
import json
import re
import sys
import warnings

import jax
from jaxlib import _hlo

from . import flow
from .errors import StepError
from .leaves import Split, data_of, is_key, key_name, shape_text
from .pairs import pair

ATTRIBUTE = "autopar.step"

# ---- lowering ----


def is_filtered(step):
    """Whether equinox.filter_jit made it: what is no array is static then."""
    return type(step).__module__.startswith("equinox") and hasattr(step, "donate_first")


def raw(step):
    """The function that was jitted, and the options of jax.jit that decide its arguments.

    The step is lowered anew, since arguments that it does not use must stay parameters.  So are
    steps of flax.nnx.jit and equinox.filter_jit.  A function that is not jitted comes back as it
    is, and so does one that was jitted by something that keeps no record of its options: it is
    called then.
    """
    if is_filtered(step):
        function = step.__wrapped__
        first, rest = step.donate_first, step.donate_rest
        n = len(inspect.signature(function).parameters)
        donate = [i for i in range(n) if (rest if i else first)]
        return function, {"donate_argnums": tuple(donate)} if donate else {}
    if type(step).__module__.startswith("flax.nnx"):
        return step.__wrapped__, {}
    info = getattr(step, "_jit_info", None)
    if info is None or not hasattr(step, "__wrapped__"):
        return step, {}
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    return step.__wrapped__, {name: getattr(info, name) for name in names}


class Lowered:
    """A step that is traced and lowered for arguments like those given; all leaves that are
    arrays are parameters.

    args_info, out_info, compiler_ir: as JAX's.  function: the step as it is traced; jaxpr: its.
    changed: numbers of the arguments' leaves that the step changes in place: their new values are
    results behind those that it returns.  inputs, outputs: leaves.Split of arguments and results.
    """

    def __init__(self, step, args, kwargs, donate=()):
        self.function, self.options = raw(step)
        if donate:
            self.options = {**self.options, "donate_argnums": tuple(donate)}
        self.filtered = is_filtered(step)
        self.inputs = Split(args, self.filtered)
        self.kwargs, self.changed, self.outputs = kwargs, (), None
        self.args = args if not self.inputs.rest or self.is_static() else self.inputs.without_rest()
        refuse_shared(args)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            trace = self.trace()
            self.jaxpr = trace.jaxpr.jaxpr
            lowered = trace.lower(lowering_platforms=("cpu",))
        self.args_info, self.out_info = lowered.args_info, lowered.out_info
        self.compiler_ir = lowered.compiler_ir

    def is_static(self):
        return any(self.options.get(k) for k in ("static_argnums", "static_argnames"))

    def trace(self):
        jitted = jax.jit(self.watched(), keep_unused=True, **self.options)
        return jitted.trace(*self.args, **self.kwargs)

    def watched(self):
        """The function, which tells what it changes in place, and what it returns that is no
        array."""
        function, inputs = self.function, self.inputs

        @functools.wraps(function)
        def call(*args, **kwargs):
            if inputs.rest and not self.is_static():
                args = inputs.joined(jax.tree.leaves(args))
            before = Split(args, self.filtered)
            found = function(*args, **kwargs)
            after = Split(args, self.filtered)
            if after.structure != before.structure:
                raise StepError("the step changes the structure of its arguments")
            given = [i for i, a in enumerate(before.arrays) if isinstance(a, jax.core.Tracer)]
            changed = [i for i in given if before.arrays[i] is not after.arrays[i]]
            self.changed = tuple(given.index(i) for i in changed)
            self.outputs = Split(found, self.filtered)
            found = self.outputs.without_rest() if self.outputs.rest else found
            if not self.changed:
                return found
            refuse_in_place(args, [after.arrays[i] for i in changed])
            return found, [after.arrays[i] for i in changed]

        return call

    def arrays(self):
        """The arguments' leaves that are arrays for the step: the parameters, in order."""
        if not self.is_static():
            return self.inputs.arrays
        static = {i % len(self.args) for i in self.options.get("static_argnums") or ()}
        return jax.tree.leaves([arg for i, arg in enumerate(self.args) if i not in static])

    def written(self):
        """[(result, argument)] of what is changed in place."""
        n = len(jax.tree.leaves(self.out_info)) - len(self.changed)
        return [(n + k, i) for k, i in enumerate(self.changed)]

    @functools.cached_property
    def followed(self):
        """[(distance, result)]: results made of the loss that is differentiated, nearest first
        (flow.marks)."""
        return flow.marks(lambda: self.trace().jaxpr.jaxpr)


def nnx_module():
    return sys.modules.get("flax.nnx")


def variables(tree):
    """flax.nnx's variables in a tree, in order."""
    nnx = nnx_module()
    if nnx is None:
        return []
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nnx.Variable))
    return [x for x in found if isinstance(x, nnx.Variable)]


def refuse_shared(args):
    """A variable that is in two places has one value for nnx, and two for JAX."""
    found = variables(args)
    if len({id(x) for x in found}) < len(found):
        raise StepError(
            "a variable of flax.nnx is in two places of the arguments, which would become two: "
            "take nnx.split(...) of what shares it as argument, and nnx.merge it in the step"
        )


def refuse_in_place(args, values):
    """Only flax.nnx's variables are known to be replaced in place; values: what is."""
    known = {id(x) for v in variables(args) for x in jax.tree.leaves(v)}
    rows = jax.tree_util.tree_leaves_with_path(args)
    for path, leaf in rows:
        if any(leaf is v for v in values) and id(leaf) not in known:
            raise StepError(
                f"the step changes its argument {jax.tree_util.keystr(path)} in place, which "
                "jax.jit does not see: return the new value"
            )


def lower(step, *args, donate=(), **kwargs):
    """The step lowered for arguments like these (class Lowered).

    Always for the CPU, so that the hash of a step does not depend on where it is taken.
    donate: numbers of arguments that the step replaces, for a step that is not jitted.
    """
    return Lowered(step, args, kwargs, donate)


def module_text(lowered):
    """Unoptimised HLO text with metadata and whole constants."""
    printing = _hlo.HloPrintOptions()
    printing.print_percent = False
    printing.print_program_shape = False
    printing.print_large_constants = True
    return lowered.compiler_ir("hlo").as_hlo_module().to_string(printing)


def canonical_hash(lowered):
    """A hash that is equal for equal computations, whatever their names and source lines.

    sha256 of the HLO text in XLA's canonical form, constants whole, without the first line
    (donation, name of the module) and without metadata.
    """
    printing = _hlo.HloPrintOptions.canonical()
    printing.print_large_constants = True
    printing.print_metadata = False
    text = lowered.compiler_ir("hlo").as_hlo_module().to_string(printing)
    return hashlib.sha256(text.split("\n", 1)[1].encode()).hexdigest()


# ---- arguments and results ----


def argument_paths(text):
    """Per parameter of the entry computation: the path that JAX gave it, or None."""
    entry = text[text.index("\nENTRY ") :]
    paths = {}
    for line in entry.splitlines():
        match = re.search(r"= \S+ parameter\((\d+)\)(.*)", line)
        if match:
            name = re.search(r'op_name="((?:[^"\\]|\\.)*)"', match[2])
            paths[int(match[1])] = re.sub(r"\\(.)", r"\1", name[1]) if name else None
    return [paths[i] for i in range(len(paths))]


def leaf_row(path, leaf):
    row = {"path": path, "shape": shape_text(leaf)}
    return {**row, "key": key_name(leaf)} if is_key(leaf) else row


def arguments(lowered, text, frozen=()):
    """Rows of the arguments; those numbered in frozen are weights that no result replaces."""
    leaves = jax.tree_util.tree_leaves_with_path(lowered.args_info)
    paths = argument_paths(text)
    if len(paths) != len(leaves):
        raise StepError(
            f"the step has {len(paths)} parameters for {len(leaves)} arguments: "
            "functions that are jitted by other means than jax.jit must keep_unused"
        )
    rows = []
    for path, (place, info) in zip(paths, leaves):
        name = re.match(r"[^.\[]*", path or "")[0]
        row = leaf_row(name + jax.tree_util.keystr(place[2 if name else 1 :]), info)
        if info.donated or len(rows) in lowered.changed:
            row["donated"] = True
        elif place[0].idx == 0 and place[1].idx in frozen:
            row["frozen"] = True
        rows.append(row)
    return rows


def results(lowered):
    return [
        leaf_row(jax.tree_util.keystr(path), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(lowered.out_info)
    ]


# ---- the loss ----


def last_name(path):
    """The last name in "[1]['loss']", ".loss" or "[0]"; "" where it is a number."""
    names = re.findall(r"\['([^']*)'\]|\.(\w+)|\[\d+\]", path)
    return "".join(names[-1]) if names else ""


def is_scalar_float(row):
    return re.fullmatch(r"(b?f\d+\w*)\[\]", row["shape"]) is not None


def find_loss(rows, wanted=None, replaced=(), followed=()):
    """Which result is the loss: {"result": N, "guessed": BOOL}, or None where all is silent.

    wanted: its path ("[1]['loss']") or the last name in it ("loss").  Without that: the only
    float scalar that replaces no argument; of those in `followed`, which are made of what is
    differentiated, the nearest, or, where several are as near, the first with a name that is or has
    "loss"; where none is followed, the first of all with such a name.
    """
    if wanted is not None:
        found = [i for i, r in enumerate(rows) if r["path"] == wanted] or [
            i for i, r in enumerate(rows) if last_name(r["path"]) == wanted
        ]
        scalars = [r["path"] or "the result" for r in rows if is_scalar_float(r)]
        if len(found) != 1 or not is_scalar_float(rows[found[0]]):
            reason = (
                "no result" if not found
                else "more than one result" if len(found) > 1
                else "no float scalar"
            )  # fmt: skip
            raise StepError(
                f"loss '{wanted}': {reason} of this name; float scalars are: "
                + (", ".join(scalars) or "none")
            )
        return {"result": found[0], "guessed": False}
    scalars = [i for i, r in enumerate(rows) if is_scalar_float(r) and i not in replaced]
    if len(scalars) == 1:
        return {"result": scalars[0], "guessed": False}
    near = [(n, i) for n, i in followed if i in scalars]
    nearest = [i for n, i in near if n == near[0][0]]
    for fits in (lambda n: n == "loss", lambda n: "loss" in n.lower()):
        named = [i for i in nearest or scalars if fits(last_name(rows[i]["path"]))]
        if named:
            return {"result": named[0], "guessed": len(nearest) != 1}
    return {"result": nearest[0], "guessed": len(nearest) > 1} if nearest else None


def resolve(lowered, loss=None, wanted=()):
    """(pairs of results and the arguments that they replace, donated arguments that none
    replaces, the loss as find_loss gives it).

    loss: its name; wanted: texts of --pair (pairs.py).  Several scalars, or a scalar argument
    that is donated: which one is differentiated decides.
    """
    rows = results(lowered)
    donated = any(i.donated and not i.shape for i in jax.tree.leaves(lowered.args_info))
    several = sum(map(is_scalar_float, rows)) > 1 or donated
    followed = lowered.followed if several and loss is None else ()
    first = find_loss(rows, loss, (), followed) if loss is not None or followed else None
    pairs, left = pair(lowered, first and first["result"], wanted)
    return pairs, left, find_loss(rows, loss, {result for result, _ in pairs}, followed)


def alias_pairs(lowered):
    """(number of a result, number of the argument that it replaces) for donated arguments, and
    the donated arguments that none replaces."""
    return resolve(lowered)[:2]


# ---- the text ----


def describe(lowered, text=None, loss=None, pairs=None, frozen=(), found=None):
    """The section `step` of a lowered step, see above; loss: its name, or `found`, what resolve
    has found with the pairs."""
    text = text or module_text(lowered)
    if pairs is None:
        pairs, _, found = resolve(lowered, loss)
    section = {
        "framework": "jax",
        "version": jax.__version__,
        "hash": canonical_hash(lowered),
        "arguments": arguments(lowered, text, frozen),
        "results": results(lowered),
    }
    if found is None:
        found = find_loss(section["results"], loss, {result for result, _ in pairs})
    return {**section, "loss": found} if found else section


def with_header(text, section, pairs):
    """The module with the section, and the aliases instead of XLA's own, in its first line."""
    head, rest = text.split("\n", 1)
    head = re.sub(r", input_output_alias=\{ .*? \}(?=,|$)", "", head)
    head = re.sub(r", buffer_donor=\{ .*? \}(?=,|$)", "", head)
    name, _, others = head.partition(", ")
    quoted = json.dumps(section).replace("\\", "\\\\").replace('"', '\\"')
    entry = f'{ATTRIBUTE}="{quoted}"'
    if "frontend_attributes={" in others:
        others = others.replace("frontend_attributes={", f"frontend_attributes={{{entry},", 1)
    else:
        others = ", ".join(filter(None, [others, f"frontend_attributes={{{entry}}}"]))
    alias = ", ".join(f"{{{result}}}: ({param}, {{}}, may-alias)" for result, param in pairs)
    first = [name] + ([f"input_output_alias={{ {alias} }}"] if alias else [])
    return ", ".join([*first, others]) + "\n" + rest


def hlo_text(step, args, kwargs=None, donate=(), loss=None):
    """HLO text of a step with its section and its aliases in the header."""
    return text_of(lower(step, *args, donate=donate, **(kwargs or {})), loss)


def text_of(lowered, loss=None):
    """The same for a step that is lowered."""
    text, (pairs, _, found) = module_text(lowered), resolve(lowered, loss)
    return with_header(text, describe(lowered, text, loss, pairs, (), found), pairs)
