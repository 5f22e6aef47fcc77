# SPDX-License-Identifier: Apache-2.0
"""One train step of yours, as HLO text: python -m autopar.export, or scripts/jax/export.py.

    export.py --step FILE.py:STEP --args FILE.py:ARGS -o STEP.hlo.gz
              [--donate 0,1] [--frozen 2] [--loss NAME] [--pair ARG=RESULT]
              [--data DIR] [--steps N] [--no-check]
    export.py --stablehlo FILE -o STEP.hlo.gz [--loss NAME]     (see stablehlo.py)

STEP is a train step, jitted or not; ARGS() returns a tuple of its arguments: pytrees of
arrays, numbers, typed random keys and None (or of jax.ShapeDtypeStruct, where --data is not
given).  Instead of FILE.py a name of a module that Python finds will do.

--donate names the arguments that STEP replaces, weights and optimizer states: each becomes an
alias of the result that replaces it, found by its path, by its shape where one result alone can be
meant, or by data flow.  Where that leaves several, export.py says so: --pair "params=[1]" says
it.  A step that is jitted keeps the donations that it has.  Variables of flax.nnx that STEP
changes in place are replaced without a word.

--frozen names arguments that are weights, but that STEP does not change: the base of
adapters, a teacher.  Without it they are taken for inputs unless they are called params.

--loss names the scalar that is minimized where STEP returns several: by its path as JAX
prints it, "[1]['loss']", or by the last name in that.  Without --loss it is the scalar that STEP
differentiates by jax.grad or jax.value_and_grad; where none is found so, a result that is called
loss, which is printed; where no name says so, ap-import looks for the scalar that the gradients
come from.

With --data DIR gets K.npy for argument K (of the leaves, in JAX's order), for ap-exec --data, and
what JAX makes of them in --steps N steps (1), for ap-exec --compare: losses.npy, and out/K.npy for
every argument that is replaced.

The export is checked: ap-exec, found beside this script or on the PATH, runs as many steps on one
rank, and every result and every new weight must be JAX's (check.py); the one that differs most is
named, and the exit status is 1.  --no-check leaves this out; where ARGS returns shapes, there is
nothing to compare.
"""

import argparse
import gzip
import importlib
import importlib.util
import os
import sys
from pathlib import Path

import jax
import numpy as np

from . import check, flow
from . import step as steps
from .errors import StepError, ToolError

flow.watch()  # before the step's module keeps names of its own for jax.grad


def is_own(argv):
    return any(arg.split("=")[0] in ("--step", "--stablehlo") for arg in argv)


def load(spec):
    """The object that FILE.py:NAME or MODULE:NAME says."""
    where, _, name = spec.rpartition(":")
    if not where:
        raise StepError(f"'{spec}': expected FILE.py:NAME or MODULE:NAME")
    if where not in loaded:
        folder = os.path.dirname(os.path.abspath(where)) if where.endswith(".py") else "."
        sys.path.insert(0, folder)
        if where.endswith(".py"):
            if not os.path.exists(where):
                raise StepError(f"{where}: there is no such file")
            found = importlib.util.spec_from_file_location(Path(where).stem, where)
            module = importlib.util.module_from_spec(found)
            sys.modules[found.name] = module
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        loaded[where] = module
    if not hasattr(loaded[where], name):
        raise StepError(f"{where}: there is no '{name}'")
    return getattr(loaded[where], name)


loaded = {}

ABOUT = "A model of models.py, or a step of your own (below), as unoptimised HLO text."
FORMAT = argparse.RawDescriptionHelpFormatter


def add_options(group):
    group.add_argument("--step", metavar="FILE.py:STEP", help="a step of yours")
    group.add_argument(
        "--stablehlo", type=Path, metavar="FILE", help="StableHLO, or what jax.export serializes"
    )
    group.add_argument("--args", metavar="FILE.py:ARGS", help="returns its arguments")
    group.add_argument(
        "--donate", default="", metavar="N,N", help="arguments that it replaces, from 0"
    )
    group.add_argument(
        "--frozen", default="", metavar="N,N", help="weights that it does not change"
    )
    group.add_argument("--loss", metavar="NAME", help="which of its results is the loss")
    group.add_argument(
        "--pair", action="append", default=[], metavar="ARG=RESULT",
        help="which result replaces a donated argument",
    )  # fmt: skip
    group.add_argument(
        "--data", type=Path, metavar="DIR",
        help="write argument K as DIR/K.npy, and what JAX makes of it",
    )  # fmt: skip
    group.add_argument(
        "--steps", type=int, default=1, metavar="N", help="steps that are compared (1); 0: none"
    )
    group.add_argument("--no-check", action="store_true", help="do not run it by ap-exec")


def own_parser():
    parser = argparse.ArgumentParser(
        prog="export.py", description=__doc__, formatter_class=FORMAT
    )
    add_options(parser)
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="PATH",
        help="HLO text; packed if the name ends in .gz",
    )  # fmt: skip
    return parser


def help_text():
    """What `export.py --help` says of steps of one's own."""
    return "A step of your own: " + own_parser().format_help()


def parse_options(argv):
    parser = own_parser()
    options = parser.parse_args(argv)
    if bool(options.step) == bool(options.stablehlo):
        parser.error("give --step or --stablehlo")
    if options.step and not options.args:
        parser.error("--step needs --args")
    if options.stablehlo and (options.args or options.donate or options.frozen or options.data or options.pair):
        parser.error("--stablehlo takes --loss and -o alone")
    for name in ("donate", "frozen"):
        text = getattr(options, name)
        try:
            setattr(options, name, tuple(int(n) for n in text.split(",") if n))
        except ValueError:
            parser.error(f"--{name}: expected numbers, got '{text}'")
    return options


def lower(step, args, donate):
    if donate and hasattr(step, "lower"):
        raise StepError("--donate: the step is jitted, with donations of its own")
    for i in donate:
        if not 0 <= i < len(args):
            raise StepError(f"--donate: there is no argument {i}")
    lowered = steps.lower(step, *args, donate=donate)
    for place, name in flow.callbacks(lowered.jaxpr):
        raise StepError(
            f"{place}: a call back into Python ({name}) is no part of a plan: leave it out of the "
            "step (equinox: EQX_ON_ERROR=off leaves error_if out)"
        )
    for place in flow.places(lowered.jaxpr, "ragged_dot_general"):
        print(
            f"export.py: {place}: ragged_dot becomes a product of all groups that is masked: it is "
            "planned by group, and priced as if every row met every group",
            file=sys.stderr,
        )
    return lowered


def check_left(lowered, left, donate):
    """Donated arguments that nothing replaces: an error where --donate says so."""
    if left:
        paths = [row["path"] for row in steps.describe(lowered, None, None, [])["arguments"]]
        text = f"no result has the form of {', '.join(paths[i] for i in left[:3])}"
        if donate:
            raise StepError(f"--donate: {text}")
        print(f"export.py: donated, but {text}", file=sys.stderr)


def arrays_of(lowered):
    """The arrays of the arguments' leaves, of the types that the step has them in; None where they
    are shapes."""
    arrays = []
    for leaf, info in zip(lowered.arrays(), jax.tree.leaves(lowered.args_info)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return None
        if steps.is_key(info):
            leaf = jax.random.key_data(leaf)
        arrays.append(np.asarray(leaf, dtype=steps.data_of(info)[1], order="C"))
    return arrays


def say_loss(section, pairs):
    loss, rows = section.get("loss"), section["results"]
    if not loss:
        scalars = [
            r["path"] for i, r in enumerate(rows) if steps.is_scalar_float(r) and i not in pairs
        ]
        if not scalars:
            return "no result is a float scalar: planned as inference, not to train"
        return f"which of {', '.join(scalars[:6])} is the loss is left to ap-import"
    path = rows[loss["result"]]["path"] or "the result"
    return f"the loss is {path}" + (", by its name (--loss)" if loss["guessed"] else "")


def export(step, args, output, donate=(), frozen=(), loss=None, data=None, pair=(), n_steps=1,
           checked=False):  # fmt: skip
    """Writes the HLO text of a step, its arguments' values and what JAX makes of them; returns the
    section `step`, {result: argument that it replaces}, and what a check says ("" without one)."""
    lowered = lower(step, args, donate)
    for i in frozen:
        if not 0 <= i < len(lowered.args_info[0]):
            raise StepError(f"--frozen: there is no argument {i}")
    text = steps.module_text(lowered)
    pairs, left, found = steps.resolve(lowered, loss, pair)
    check_left(lowered, left, donate)
    section = steps.describe(lowered, text, loss, pairs, frozen, found)
    arrays = arrays_of(lowered) if data or checked else None
    if data and arrays is None:
        raise StepError("--data: ARGS returns shapes, not arrays")
    bytes_ = steps.with_header(text, section, pairs).encode()
    if output.suffix == ".gz":
        bytes_ = gzip.compress(bytes_, 9, mtime=0)
    output.write_bytes(bytes_)
    if arrays is None:
        return section, dict(pairs), ""
    try:
        document = check.imported(output)
        known = {**check.aliases(document), **dict(pairs)}
        said = check.run(
            check.Reference(lowered, section, known, arrays, n_steps), document, data, checked
        )
    except ToolError as error:
        places = ", ".join(flow.places(lowered.jaxpr, "while")) if "loop" in str(error) else ""
        text = f"{error}" + (f" (loops: {places})" if places else "")
        raise ToolError(text, error.tool, error.status) from None
    return section, dict(pairs), said


def convert(options):
    from . import stablehlo

    section, pairs = stablehlo.export(options.stablehlo, options.output, options.loss)
    print(f"{options.output}: {len(section['arguments'])} arguments, {len(pairs)} of them replaced; {say_loss(section, pairs)}")


def export_own(options):
    step, args = load(options.step), load(options.args)()
    if not isinstance(args, (tuple, list)):
        raise StepError("--args: ARGS must return a tuple of the step's arguments")
    section, pairs, said = export(
        step, args, options.output, options.donate, options.frozen, options.loss, options.data,
        options.pair, options.steps, not options.no_check,
    )  # fmt: skip
    n = len(section["arguments"])
    print(f"{options.output}: {n} arguments, {len(pairs)} of them replaced; {say_loss(section, pairs)}")
    if said:
        print(said)


def main(argv):
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")
    options = parse_options(argv)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        (convert if options.stablehlo else export_own)(options)
    except (StepError, ToolError) as error:
        sys.exit(f"export.py: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
