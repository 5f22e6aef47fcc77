#!/usr/bin/python3
"""Exports a torch.nn.Module to ONNX for ap-import, weights and example inputs included.

  scripts/torch/export.py --module FILE.py:NET --input FILE.py:EXAMPLE -o DIR
      [--batch NAME] [--shapes-only] [--steps N --optimizer sgd|momentum|adam|adamw --lr X]
  scripts/torch/export.py FILE.py:FUNCTION -o DIR ...

NET is a torch.nn.Module, or what makes one when called without arguments (its class, say);
EXAMPLE() returns a tuple or a dictionary (name to tensor) of what its forward pass takes.
FUNCTION() returns both. For training the forward pass returns a scalar loss. Written:

  DIR/model.onnx        the forward pass in training mode, weights inside
  DIR/inputs/K.npy      the inputs, in order (for ap-exec --data, beside --weights)
  DIR/losses.npy        with --steps: the losses of N steps of PyTorch's own optimizer
  DIR/meta.json         names, shapes, and how the losses were made

--shapes-only writes nothing but DIR, a file that is no folder then: the model without its
weights, compressed if the name ends in .gz, enough for planning.
--batch NAME makes the first dimension of all inputs symbolic (ap-import --dim NAME=N).
With current PyTorch (2.8 or newer, with onnx and onnxscript) torch.export's signature says
which tensors are parameters, buffers and constants (exported.py). Debian's python3-torch
(1.13) exports by tracing (traced.py): with the same roles, but buffers that the forward pass
changes and torch.no_grad() in it are refused.
"""
import argparse
import gzip
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Mapping

import numpy as np
import torch

import wire

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
}


FILES = {}


def fail(message):
    sys.exit(f"export.py: {message}")


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


def check_inputs(model, inputs):
    """The example inputs by name."""
    if not isinstance(inputs, Mapping):
        if not isinstance(inputs, (tuple, list)):
            fail(f"the example inputs are a {type(inputs).__name__}: expected a tuple or a "
                 "dictionary of tensors")
        names = inspect.signature(model.forward).parameters if by_signature() else [
            f"input_{k}" for k in range(len(inputs))]
        inputs = dict(zip(names, inputs))
    for name, x in inputs.items():
        if not isinstance(x, torch.Tensor):
            fail(f"example input '{name}' is a {type(x).__name__}: expected a tensor")
    for name, p in model.named_parameters():
        if p.is_meta or isinstance(p, torch.nn.parameter.UninitializedTensorMixin):
            fail(f"parameter '{name}' has no values yet (lazy, or on the device meta)")
    return {name: x.detach().cpu() for name, x in inputs.items()}


def load_all(args):
    """The module, and its inputs by name."""
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
    model = model.cpu()
    return model, check_inputs(model, inputs)


def by_signature():
    """Whether this PyTorch gives the tensors' roles (torch.export, torch.onnx.ops)."""
    return hasattr(torch, "export") and hasattr(torch.onnx, "ops")


def export(model, inputs, batch):
    """The ONNX model, serialised."""
    if by_signature():
        import exported
        import onnx_ir

        model = exported.export(model, inputs, batch)
        return onnx_ir.serde.serialize_model(model).SerializeToString()
    import traced

    return traced.export(model, inputs, batch, loss_in)


def write(data, path):
    with open(path, "wb") as f:
        f.write(data)


def write_shapes(model, inputs, path, batch):
    data = wire.without_weights(export(model, inputs, batch))
    write(gzip.compress(data, mtime=0) if path.endswith(".gz") else data, path)


def write_inputs(inputs, folder):
    """Example inputs, in order, as ap-exec --data reads them."""
    os.makedirs(folder, exist_ok=True)
    for k, x in enumerate(inputs.values()):
        raw = x.dtype == torch.bfloat16  # numpy has no such type
        np.save(f"{folder}/{k}.npy",
                x.contiguous().view(torch.int16).numpy().view("V2") if raw else x.numpy())


def leaves(result):
    if isinstance(result, (Mapping, tuple, list)):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from leaves(part)
    else:
        yield result


def loss_in(result):
    """The loss among what the forward pass returns, as exported.py chooses it."""
    if isinstance(result, Mapping) and isinstance(result.get("loss"), torch.Tensor):
        return result["loss"]
    for x in leaves(result):
        if isinstance(x, torch.Tensor) and x.dim() == 0 and x.is_floating_point():
            return x
    keys = f" (but {', '.join(result)})" if isinstance(result, Mapping) else ""
    fail(f"the forward pass returns no floating-point scalar that could be the loss{keys}: "
         "give it the labels, or wrap the module in one that returns the loss")


def train(model, inputs, name, lr, steps):
    optimizer = OPTIMIZERS[name](model.parameters(), lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_in(model(**inputs) if by_signature() else model(*inputs.values()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", metavar="FILE.py:FUNCTION", nargs="?")
    parser.add_argument("--module", metavar="FILE.py:NET")
    parser.add_argument("--input", metavar="FILE.py:EXAMPLE")
    parser.add_argument("-o", "--out", metavar="DIR", required=True)
    parser.add_argument("--batch", metavar="NAME")
    parser.add_argument("--shapes-only", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    if bool(args.model) == bool(args.module) or bool(args.module) != bool(args.input):
        parser.error("expected --module and --input, or FILE.py:FUNCTION")
    model, inputs = load_all(args)
    model.train()
    if args.shapes_only:
        return write_shapes(model, inputs, args.out, args.batch)
    data = export(model, inputs, args.batch)
    write_inputs(inputs, f"{args.out}/inputs")
    write(data, f"{args.out}/model.onnx")
    meta = {
        "torch": torch.__version__,
        "inputs": {name: list(x.shape) for name, x in inputs.items()},
        "weights": {name: list(p.shape) for name, p in model.named_parameters()},
    }
    if args.steps:
        losses = train(model, inputs, args.optimizer, args.lr, args.steps)
        np.save(f"{args.out}/losses.npy", np.array(losses, np.float32))
        meta |= {"optimizer": args.optimizer, "lr": args.lr, "losses": losses}
    with open(f"{args.out}/meta.json", "w", encoding="utf-8") as f:
        json.dump(meta, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
