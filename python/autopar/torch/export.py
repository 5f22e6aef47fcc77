# SPDX-License-Identifier: Apache-2.0
"""Exports a torch.nn.Module, as PyTorch differentiates it, for ap-import.

  python -m autopar.torch.export --module FILE.py:NET --input FILE.py:EXAMPLE -o DIR [OPTIONS]
  python -m autopar.torch.export FILE.py:FUNCTION -o DIR [OPTIONS]
      [--steps N] [--optimizer sgd|momentum|adam|adamw|FILE.py:FUNCTION] [--lr X] [--no-check]
      [--shapes-only]
  python -m autopar.torch.export --config CONFIG.JSON -o FILE [--batch N] [--seq N]

NET is a torch.nn.Module, or what makes one when called without arguments (its class, say);
EXAMPLE() returns a tuple or a dictionary (name to tensor) of what its forward pass takes.
FUNCTION() returns both. For training the forward pass returns a scalar loss. Written:

  DIR/model.hlo      HLO text: the loss, gradients by PyTorch's autograd, next values of buffers;
                     model.onnx is another name of it, for pipes that expect ONNX
  DIR/inputs/K.npy   parameter K: the inputs, weights, buffers (for ap-exec --data)
  DIR/losses.npy     losses of --steps steps (1) of PyTorch's own --optimizer (sgd)
  DIR/out/K.npy      weights, buffers and the optimizer's states after them (for --compare)
  DIR/meta.json      names, shapes, and how the losses were made

ap-grad adds an optimizer. --optimizer FILE.py:FUNCTION takes the user's own instead:
FUNCTION(module) returns a torch.optim object, whose step() becomes part of the text, with its
states as arguments. Then the export is checked: gradients, losses and updated weights that ap-exec
computes on one rank are compared with PyTorch's; exit 1 names the tensors that differ.

--config CONFIG.JSON, in place of FILE.py:FUNCTION, takes the model of Hugging Face's file, of any model_type
that transformers has (config.py; --batch N, 8, and --seq N), without weights: as --shapes-only.

--shapes-only writes nothing but DIR, a file that is no folder then, compressed if its name ends
in .gz: HLO text, enough for planning. Module and inputs are made without memory for their values.
"""
import argparse
import contextlib
import gzip
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Mapping

import numpy as np
import torch

from .. import tools
from ..errors import NotSupported, StepError, ToolError
from . import hlo, proof, update
from .capture import capture, fail, loss_in, without_memory  # loss_in: parallel.py takes it from here
from .rules import to_numpy

FILES = {}
SEED = np.array([0, 1], np.uint32)  # the key of the first step's random numbers
LR = 0.01  # ap-grad's own learning rate, without --lr


def load(spec):
    """What FILE.py:NAME names."""
    path, _, name = spec.rpartition(":")
    if not path.endswith(".py") or not name:
        fail(f"'{spec}': expected FILE.py:NAME")
    if path not in FILES:
        if not os.path.isfile(path):
            fail(f"'{spec}': there is no file {path}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        found = importlib.util.spec_from_file_location("model", path)
        FILES[path] = importlib.util.module_from_spec(found)
        found.loader.exec_module(FILES[path])
    if not hasattr(FILES[path], name):
        fail(f"{path} has no '{name}'")
    return getattr(FILES[path], name)


def named_inputs(model, inputs):
    """The example inputs by name."""
    if not isinstance(inputs, Mapping):
        if not isinstance(inputs, (tuple, list)):
            fail(f"the example inputs are a {type(inputs).__name__}: expected a tuple or a "
                 "dictionary of tensors")
        inputs = dict(zip(inspect.signature(model.forward).parameters, inputs))
    for name, x in inputs.items():
        if not isinstance(x, torch.Tensor):
            fail(f"example input '{name}' is a {type(x).__name__}: expected a tensor")
    return {name: x.detach().to("cpu") for name, x in inputs.items()}


def load_all(args):
    """The module in training mode, and its inputs by name."""
    if args.model:
        made = load(args.model)()
        if not isinstance(made, tuple) or len(made) != 2:
            fail(f"'{args.model}' returns a {type(made).__name__}: expected the module and its "
                 "example inputs")
        model, inputs = made
    else:
        model, inputs = load(args.module), load(args.input)()
    if not isinstance(model, torch.nn.Module):
        model = model()
    if not isinstance(model, torch.nn.Module):
        fail(f"expected a torch.nn.Module, got a {type(model).__name__}")
    if any(t.device.type != "cpu" for t in [*model.parameters(), *model.buffers()]):
        model = model.cpu()
    return model.train(), named_inputs(model, inputs)


# ---- files ----


def save(path, tensor):
    array = to_numpy(tensor)
    raw = array.dtype == hlo.jnp.bfloat16  # numpy has no such type
    np.save(path, array.view("V2") if raw else array)


def make_folder(folder):
    """A folder without arrays of an earlier export, which ap-exec would read."""
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        if name.removesuffix(".npy").isdigit():
            os.unlink(f"{folder}/{name}")


def write_arguments(step, folder):
    """The parameters of the text, as ap-exec --data reads them."""
    make_folder(folder)
    for k, t in enumerate(step.arguments):
        save(f"{folder}/{k}.npy", t.value)
    if hlo.draws(step):
        np.save(f"{folder}/{len(step.arguments)}.npy", SEED)


def write_run(step, run, folder, steps):
    """What --compare reads."""
    n = len(step.arguments)
    make_folder(f"{folder}/out")
    np.save(f"{folder}/losses.npy", np.array(run.losses, np.float32))
    for k, t in step.changed():
        save(f"{folder}/out/{k}.npy", run.after[t.name])
    if hlo.draws(step):
        np.save(f"{folder}/out/{n}.npy", proof.key_after(SEED, steps))
        n += 1
    for k, value in enumerate(run.moments):
        save(f"{folder}/out/{n + k}.npy", value)


def write_step(step, folder):
    text = hlo.text_of(step)
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/model.hlo", "w", encoding="utf-8") as file:
        file.write(text)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/model.onnx")
    os.symlink("model.hlo", f"{folder}/model.onnx")
    write_arguments(step, f"{folder}/inputs")


def write_meta(step, run, args):
    def shapes(*roles):
        return {t.name: list(t.value.shape) for t in step.arguments if t.role in roles}

    meta = {"torch": torch.__version__, "inputs": shapes("input"), "weights": shapes("weight"),
            "states": shapes("state"), "losses": run.losses}
    if args.optimizer in proof.OPTIMIZERS:
        meta |= {"optimizer": args.optimizer, "lr": args.lr}
    elif isinstance(args.optimizer, str):
        meta["optimizer"] = args.optimizer
    with open(f"{args.out}/meta.json", "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=1)
        file.write("\n")


def write_shapes(args):
    """The text of a module that is made without memory."""
    with without_memory():
        step, _ = captured(*load_all(args), args)
    data = hlo.text_of(step).encode()
    with open(args.out, "wb") as file:
        file.write(gzip.compress(data, mtime=0) if args.out.endswith(".gz") else data)


# ---- the command ----


def captured(model, inputs, args):
    """The step, with the user's optimizer, and what makes that (or its name in ap-grad)."""
    step = capture(model, inputs)
    if args.optimizer in proof.OPTIMIZERS:
        return step, args.optimizer
    make, name = args.optimizer, getattr(args.optimizer, "__name__", "the optimizer's function")
    if isinstance(make, str):
        make, name = load(args.optimizer), args.optimizer
    try:
        made = make(model)
    except Exception as error:  # whatever the user's function raises
        raise StepError(f"{name}: {type(error).__name__}: {error}") from error
    step.update = update.trace(made, model, step)
    step.arguments += [*step.update.states, *step.update.rates]
    return step, make


def export(model, inputs, args):
    """Writes the folder; args: out, optimizer, lr, steps, check.

    optimizer: a name of ap-grad's, FILE.py:FUNCTION, or a function of the module that makes it; lr:
    of the former alone.
    """
    step, kind = captured(model, inputs, args)
    write_step(step, args.out)
    how = SEED if hlo.draws(step) else None, kind, args.lr, args.steps
    run = proof.train(model, inputs, step, *how)
    write_run(step, run, args.out, args.steps)
    write_meta(step, run, args)
    if not args.check:
        return step
    if not tools.find("ap-exec"):
        print("export.py: not checked: ap-exec is not on the PATH", file=sys.stderr)
        return step
    said = proof.prove(args.out, model, inputs, step, run, how)
    print(f"export.py: {said}", file=sys.stderr)
    return step


def refuse_beside_config(parser, args):
    """Options of a module that is trained; a config.json's has no weights."""
    given = {"--steps": args.steps, "--optimizer": args.optimizer, "--lr": args.lr, "--no-check": None if args.check else True,
             "--shapes-only": args.shapes_only or None}
    said = [name for name, value in given.items() if value is not None]
    if args.config and said:
        parser.error(f"{', '.join(said)}: not of --config, whose text has no weights and is not checked")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="FILE.py:FUNCTION", nargs="?")
    parser.add_argument("--module", metavar="FILE.py:NET")
    parser.add_argument("--input", metavar="FILE.py:EXAMPLE")
    parser.add_argument("--config", metavar="CONFIG.JSON")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seq", type=int)
    parser.add_argument("-o", "--out", metavar="DIR", required=True)
    parser.add_argument("--shapes-only", action="store_true")
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--optimizer", metavar="NAME|FILE.py:FUNCTION")
    parser.add_argument("--lr", type=float)
    args = parser.parse_args()
    if sum(map(bool, (args.model, args.module, args.config))) != 1 or bool(args.module) != bool(args.input):
        parser.error("expected FILE.py:FUNCTION, --module and --input, or --config")
    if not args.config and (args.batch is not None or args.seq is not None):
        parser.error("--batch, --seq: of --config; the example inputs have their own sizes")
    refuse_beside_config(parser, args)
    if any(size is not None and size < 1 for size in (args.batch, args.seq)):
        parser.error("--batch, --seq: expected 1 or more")
    args.batch = 8 if args.batch is None else args.batch
    args.steps = 1 if args.steps is None else args.steps
    args.optimizer = "sgd" if args.optimizer is None else args.optimizer
    if args.optimizer not in proof.OPTIMIZERS and ".py:" not in args.optimizer:
        parser.error(f"--optimizer: expected {', '.join(proof.OPTIMIZERS)} or FILE.py:FUNCTION, not "
                     f"'{args.optimizer}'")
    if args.optimizer not in proof.OPTIMIZERS and args.lr is not None:
        parser.error("--lr: FILE.py:FUNCTION makes an optimizer with its own learning rate")
    args.lr = LR if args.lr is None else args.lr
    if args.steps < 1:
        parser.error("--steps: expected 1 or more")
    try:
        if args.config:
            from . import config
            config.written(args.config, args.out, args.batch, args.seq)
        elif args.shapes_only:
            write_shapes(args)
        else:
            export(*load_all(args), args)
    except NotSupported as e:
        print(f"export.py: {e}", file=sys.stderr)
        sys.exit(2)
    except (StepError, ToolError) as e:
        sys.exit(f"export.py: {e}")


if __name__ == "__main__":
    main()
