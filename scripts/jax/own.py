"""One train step of yours, as HLO text: what export.py does with --step.

    export.py --step FILE.py:STEP --args FILE.py:ARGS -o STEP.hlo.gz [--donate 0,1] [--data DIR]

STEP is a function that returns a tuple; ARGS() returns a tuple of its arguments, pytrees of
arrays (or of jax.ShapeDtypeStruct, where --data is not given).  --donate names the arguments
that STEP replaces, weights and optimizer states: each becomes an alias of the first result of
the same structure and shapes that is not taken.  A step that is jitted keeps the donations
that it has; JAX pairs those by shape alone, so let it return what it replaces in the order of
its arguments, and the loss last.  DIR gets K.npy for parameter K, for ap-exec --data.  Instead
of FILE.py a name of a module that Python finds will do.
"""

import argparse
import gzip
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from jaxlib import _hlo


def is_own(argv):
    return any(arg == "--step" or arg.startswith("--step=") for arg in argv)


def load(spec):
    """The object that FILE.py:NAME or MODULE:NAME says."""
    where, _, name = spec.rpartition(":")
    if not where:
        sys.exit(f"export.py: '{spec}': expected FILE.py:NAME or MODULE:NAME")
    if where in loaded:
        return getattr(loaded[where], name)
    sys.path.insert(0, os.path.dirname(os.path.abspath(where)) or ".")
    if where.endswith(".py"):
        found = importlib.util.spec_from_file_location(Path(where).stem, where)
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    loaded[where] = module
    return getattr(module, name)


loaded = {}


def parse_options(argv):
    parser = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--step", required=True, metavar="FILE.py:STEP")
    parser.add_argument("--args", required=True, metavar="FILE.py:ARGS")
    parser.add_argument("--donate", default="", metavar="N,N", help="arguments, from 0")
    parser.add_argument("--data", type=Path, metavar="DIR", help="write K.npy here")
    parser.add_argument("-o", dest="output", type=Path, required=True, metavar="PATH")
    options = parser.parse_args(argv)
    options.donate = tuple(int(n) for n in options.donate.split(",") if n)
    return options


def text_of(lowered):
    """Unoptimised HLO text with metadata and whole constants."""
    printing = _hlo.HloPrintOptions()
    printing.print_percent = False
    printing.print_program_shape = False
    printing.print_large_constants = True
    return lowered.compiler_ir("hlo").as_hlo_module().to_string(printing)


def leaf_ranges(trees):
    """Per tree: the numbers of its leaves among those of all."""
    ends = np.cumsum([len(jax.tree.leaves(tree)) for tree in trees])
    return [range(end - len(jax.tree.leaves(tree)), end) for tree, end in zip(trees, ends)]


def form_of(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]


def aliases_of(step, args, donated):
    """(number of a result's leaf, number of the parameter that it replaces) pairs."""
    results = jax.eval_shape(step, *args)
    args = jax.eval_shape(lambda *a: a, *args)
    if not isinstance(results, tuple):
        sys.exit("export.py: --donate: the step does not return a tuple")
    ours, theirs, taken, pairs = leaf_ranges(args), leaf_ranges(results), set(), []
    for i in donated:
        if not 0 <= i < len(args):
            sys.exit(f"export.py: --donate: there is no argument {i}")
        forms = (k for k, r in enumerate(results) if form_of(r) == form_of(args[i]))
        k = next((k for k in forms if k not in taken), None)
        if k is None:
            sys.exit(f"export.py: --donate: no result has the form of argument {i}")
        taken.add(k)
        pairs += zip(theirs[k], ours[i])
    return pairs


def with_aliases(text, pairs):
    """The module with an input_output_alias in its first line."""
    if not pairs:
        return text
    alias = ", ".join(f"{{{result}}}: ({param}, {{}}, may-alias)" for result, param in pairs)
    head, rest = text.split("\n", 1)
    name, _, others = head.partition(", ")
    attrs = [f"input_output_alias={{ {alias} }}"] + ([others] if others else [])
    return ", ".join([name, *attrs]) + "\n" + rest


def write_data(folder, leaves, n_params):
    if n_params != len(leaves):
        sys.exit(
            f"export.py: --data: the step has {n_params} parameters but ARGS has "
            f"{len(leaves)} arrays: jit it with keep_unused=True, or do not jit it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for index, leaf in enumerate(leaves):
        np.save(folder / f"{index}.npy", np.asarray(leaf, order="C"))


def main(argv):
    options = parse_options(argv)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_traceback_in_locations_limit", 0)
    step, args = load(options.step), load(options.args)()
    if hasattr(step, "lower"):
        if options.donate:
            sys.exit("export.py: --donate: the step is jitted, with donations of its own")
        text = text_of(step.lower(*args))
    else:
        lowered = jax.jit(step, keep_unused=True).lower(*args)
        text = with_aliases(text_of(lowered), aliases_of(step, args, options.donate))
    entry = text[text.index("\nENTRY ") :]
    n_params = len(re.findall(r" parameter\(\d+\)", entry))
    data = text.encode()
    zipped = options.output.suffix == ".gz"
    options.output.write_bytes(gzip.compress(data, 9, mtime=0) if zipped else data)
    if options.data:
        write_data(options.data, jax.tree.leaves(args), n_params)
    aliases = len(re.findall(r"(?:may|must)-alias", text[: text.index("\n")]))
    print(f"{options.output}: {n_params} parameters, {aliases} of them replaced")
