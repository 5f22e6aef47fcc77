"""One train step of yours, as HLO text: what export.py does with --step.

    export.py --step FILE.py:STEP --args FILE.py:ARGS -o STEP.hlo.gz
              [--donate 0,1] [--loss NAME] [--data DIR]

STEP is a train step, jitted or not; ARGS() returns a tuple of its arguments: pytrees of
arrays, numbers, typed random keys and None (or of jax.ShapeDtypeStruct, where --data is not
given).  Instead of FILE.py a name of a module that Python finds will do.

--donate names the arguments that STEP replaces, weights and optimizer states: each becomes an
alias of the first part of the result of the same structure and shapes that is not taken.  A
step that is jitted keeps the donations that it has.

--loss names the scalar that is minimized where STEP returns several: by its path as JAX
prints it, "[1]['loss']", or by the last name in that.  Without --loss a result that is called
loss is taken for it, which is printed; where no name says so, ap-import looks for the scalar
that the gradients come from.

With --data DIR gets K.npy for argument K (of the leaves, in JAX's order), for ap-exec --data.
"""

import argparse
import gzip
import importlib
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from autopar import step as steps


def is_own(argv):
    return any(arg == "--step" or arg.startswith("--step=") for arg in argv)


def load(spec):
    """The object that FILE.py:NAME or MODULE:NAME says."""
    where, _, name = spec.rpartition(":")
    if not where:
        sys.exit(f"export.py: '{spec}': expected FILE.py:NAME or MODULE:NAME")
    if where not in loaded:
        folder = os.path.dirname(os.path.abspath(where)) if where.endswith(".py") else "."
        sys.path.insert(0, folder)
        if where.endswith(".py"):
            if not os.path.exists(where):
                sys.exit(f"export.py: {where}: there is no such file")
            found = importlib.util.spec_from_file_location(Path(where).stem, where)
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        loaded[where] = module
    if not hasattr(loaded[where], name):
        sys.exit(f"export.py: {where}: there is no '{name}'")
    return getattr(loaded[where], name)


loaded = {}


def add_options(group):
    """The options of a step of one's own, which `export.py --help` lists, too."""
    group.add_argument("--step", metavar="FILE.py:STEP", help="a step of yours")
    group.add_argument("--args", metavar="FILE.py:ARGS", help="returns its arguments")
    group.add_argument(
        "--donate", default="", metavar="N,N", help="arguments that it replaces, from 0"
    )
    group.add_argument("--loss", metavar="NAME", help="which of its results is the loss")
    group.add_argument(
        "--data", type=Path, metavar="DIR", help="write argument K as DIR/K.npy"
    )


def parse_options(argv):
    parser = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_options(parser)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="PATH",
        help="HLO text; packed if the name ends in .gz",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if not options.args:
        parser.error("--step needs --args")
    try:
        options.donate = tuple(int(n) for n in options.donate.split(",") if n)
    except ValueError:
        parser.error(f"--donate: expected numbers, got '{options.donate}'")
    return options


def lower(step, args, donate):
    if donate and hasattr(step, "lower"):
        sys.exit("export.py: --donate: the step is jitted, with donations of its own")
    for i in donate:
        if not 0 <= i < len(args):
            sys.exit(f"export.py: --donate: there is no argument {i}")
    lowered = steps.lower(step, *args, donate=donate)
    _, left = steps.alias_pairs(lowered)
    if left:
        paths = [row["path"] for row in steps.describe(lowered)["arguments"]]
        text = f"no result has the form of {', '.join(paths[i] for i in left[:3])}"
        if donate:
            sys.exit(f"export.py: --donate: {text}")
        print(f"export.py: donated, but {text}", file=sys.stderr)
    return lowered


def arrays_of(lowered, args):
    """The arrays of the arguments' leaves, of the types that the step has them in."""
    leaves, infos = jax.tree.leaves(args), jax.tree.leaves(lowered.args_info)
    if len(leaves) != len(infos):
        sys.exit(
            f"export.py: --data: ARGS has {len(leaves)} arrays, the step {len(infos)} "
            "arguments: leave out those that are static"
        )
    arrays = []
    for leaf, info in zip(leaves, infos):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            sys.exit("export.py: --data: ARGS returns shapes, not arrays")
        if steps.is_key(info):
            leaf = jax.random.key_data(leaf)
        arrays.append(np.asarray(leaf, dtype=steps.data_of(info)[1], order="C"))
    return arrays


def write_data(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npy"):
        old.unlink()
    for index, array in enumerate(arrays):
        np.save(folder / f"{index}.npy", array)


def say_loss(section):
    loss = section.get("loss")
    if not loss:
        scalars = [r["path"] for r in section["results"] if steps.is_scalar_float(r)]
        if not scalars:
            return "no result is a float scalar: there is no loss to train"
        return f"which of {', '.join(scalars[:6])} is the loss is left to ap-import"
    path = section["results"][loss["result"]]["path"] or "the result"
    return f"the loss is {path}" + (", by its name (--loss)" if loss["guessed"] else "")


def export(step, args, output, donate=(), loss=None, data=None):
    """Writes the HLO text of a step, and its arguments' values; returns the section `step`."""
    lowered = lower(step, args, donate)
    text, (pairs, _) = steps.module_text(lowered), steps.alias_pairs(lowered)
    section = steps.describe(lowered, text, loss, pairs)
    bytes_ = steps.with_header(text, section, pairs).encode()
    if output.suffix == ".gz":
        bytes_ = gzip.compress(bytes_, 9, mtime=0)
    output.write_bytes(bytes_)
    if data:
        write_data(data, arrays_of(lowered, args))
    return section, len(pairs)


def main(argv):
    options = parse_options(argv)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_traceback_in_locations_limit", 0)
    step, args = load(options.step), load(options.args)()
    if not isinstance(args, (tuple, list)):
        sys.exit("export.py: --args: ARGS must return a tuple of the step's arguments")
    try:
        section, n_replaced = export(
            step, args, options.output, options.donate, options.loss, options.data
        )
    except steps.StepError as error:
        sys.exit(f"export.py: {error}")
    n = len(section["arguments"])
    print(f"{options.output}: {n} arguments, {n_replaced} of them replaced; {say_loss(section)}")
