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

import hashlib
import json
import re
import warnings

import jax
from jaxlib import _hlo

ATTRIBUTE = "autopar.step"

ELEMENT_TYPES = {
    "bool": "pred", "bfloat16": "bf16",
    "int4": "s4", "int8": "s8", "int16": "s16", "int32": "s32", "int64": "s64",
    "uint4": "u4", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "f16", "float32": "f32", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


class StepError(Exception):
    """A step that cannot be described; the message says what to do."""


# ---- lowering ----


def raw(step):
    """The function that was jitted, and the options of jax.jit that decide its arguments.

    The step is lowered anew, since arguments that it does not use must stay parameters.  A
    function that is not jitted comes back as it is, and so does one that was jitted by
    something that keeps no record of its options: it is called then.
    """
    info = getattr(step, "_jit_info", None)
    if info is None or not hasattr(step, "__wrapped__"):
        return step, {}
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    return step.__wrapped__, {name: getattr(info, name) for name in names}


def traced(step, args):
    """The arguments that are arrays for the step: without those that it takes as static."""
    _, options = raw(step)
    static = {i % len(args) for i in options.get("static_argnums") or ()}
    return tuple(arg for i, arg in enumerate(args) if i not in static)


def lower(step, *args, donate=(), **kwargs):
    """The step lowered for arguments like these; all leaves are parameters.

    Always for the CPU, so that the hash of a step does not depend on where it is taken.
    donate: numbers of arguments that the step replaces, for a step that is not jitted.
    """
    function, options = raw(step)
    if donate:
        options = {**options, "donate_argnums": tuple(donate)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        step = jax.jit(function, keep_unused=True, **options).trace(*args, **kwargs)
        return step.lower(lowering_platforms=("cpu",))


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


# ---- leaves ----


def is_key(leaf):
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_name(leaf):
    """The name of the generator that a typed random key is for: "threefry2x32"."""
    impl = getattr(leaf.dtype, "_impl", None)
    return getattr(impl, "name", None) or str(leaf.dtype)


def data_of(leaf):
    """Shape and dtype of the array that a leaf is for XLA."""
    if is_key(leaf):
        leaf = jax.eval_shape(
            jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        )
    return leaf.shape, leaf.dtype


def shape_text(leaf):
    """ "f32[8,4]", as HLO spells it."""
    shape, dtype = data_of(leaf)
    name = str(dtype)
    if name.startswith("float8_") or name.startswith("float4_"):
        name = name.replace("float", "f", 1).replace("_", "", 1)
    return f"{ELEMENT_TYPES.get(name, name)}[{','.join(map(str, shape))}]"


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
        row = leaf_row(path or jax.tree_util.keystr(place[1:]), info)
        if info.donated:
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


def find_loss(rows, wanted=None, replaced=()):
    """Which result is the loss: {"result": N, "guessed": BOOL}, or None where names are silent.

    wanted: its path ("[1]['loss']") or the last name in it ("loss").  Without that: the only
    float scalar that replaces no argument, or the first of those with a name that is, or
    has, "loss".
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
    for fits in (lambda n: n == "loss", lambda n: "loss" in n.lower()):
        named = [i for i in scalars if fits(last_name(rows[i]["path"]))]
        if named:
            return {"result": named[0], "guessed": True}
    return None


# ---- aliases ----


def subtrees(tree):
    """All subtrees, the whole first, then depth first, each with the number of its first leaf."""
    pending = [(0, tree)]
    while pending:
        first, node = pending.pop()
        yield first, node
        if jax.tree_util.all_leaves([node]) or node is None:
            continue
        children, at = [], first
        for child in jax.tree.leaves(node, is_leaf=lambda x, n=node: x is not n):
            children.append((at, child))
            at += len(jax.tree.leaves(child))
        pending += reversed(children)


def form_of(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(shape_text(leaf) for leaf in leaves)


def alias_pairs(lowered):
    """(number of a result, number of the argument that it replaces) for donated arguments.

    An argument that is donated as a whole takes the first subtree of the results of its
    structure and shapes that is not taken; where there is none, its parts are looked for.
    Returns the pairs, and the arguments' leaves that no result replaces.
    """
    info = lowered.args_info
    ours = [(first, tree) for first, tree in subtrees(info) if jax.tree.leaves(tree)]
    theirs = [
        (first, form_of(tree), len(jax.tree.leaves(tree)))
        for first, tree in subtrees(lowered.out_info)
        if jax.tree.leaves(tree)
    ]
    pairs, taken, done = [], set(), set()
    for first, tree in ours:
        leaves = jax.tree.leaves(tree)
        mine = range(first, first + len(leaves))
        if done & set(mine) or not all(leaf.donated for leaf in leaves):
            continue
        form = form_of(tree)
        for start, other, n in theirs:
            if other == form and not taken & set(range(start, start + n)):
                taken.update(range(start, start + n))
                done.update(mine)
                pairs += zip(range(start, start + n), mine)
                break
    donated = {i for i, leaf in enumerate(jax.tree.leaves(info)) if leaf.donated}
    return pairs, sorted(donated - done)


# ---- the text ----


def describe(lowered, text=None, loss=None, pairs=None, frozen=()):
    """The section `step` of a lowered step, see above."""
    text = text or module_text(lowered)
    pairs = alias_pairs(lowered)[0] if pairs is None else pairs
    section = {
        "framework": "jax",
        "version": jax.__version__,
        "hash": canonical_hash(lowered),
        "arguments": arguments(lowered, text, frozen),
        "results": results(lowered),
    }
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
    text, (pairs, _) = module_text(lowered), alias_pairs(lowered)
    return with_header(text, describe(lowered, text, loss, pairs), pairs)
