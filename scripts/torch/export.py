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
and other PyTorch from 1.13 on export by tracing, without these roles: all floats are weights
then, and a warning says so.
"""
import argparse
import gzip
import importlib.util
import inspect
import io
import json
import os
import sys

import numpy as np
import torch

OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr=lr),
}


FILES = {}


def load(spec):
    """What FILE.py:NAME names."""
    path, _, name = spec.rpartition(":")
    if path not in FILES:
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        found = importlib.util.spec_from_file_location("model", path)
        if found is None:
            sys.exit(f"export.py: '{spec}': expected FILE.py:NAME")
        FILES[path] = importlib.util.module_from_spec(found)
        found.loader.exec_module(FILES[path])
    return getattr(FILES[path], name)


def load_all(args):
    """The module, and its inputs by name."""
    if args.model:
        model, inputs = load(args.model)()
    else:
        model, inputs = load(args.module), load(args.input)()
    if not isinstance(model, torch.nn.Module):
        model = model()
    if not isinstance(inputs, dict):
        names = inspect.signature(model.forward).parameters if by_signature() else [
            f"input_{k}" for k in range(len(inputs))]
        inputs = dict(zip(names, inputs))
    return model, inputs


def by_signature():
    """Whether this PyTorch gives the tensors' roles (torch.export, torch.onnx.ops)."""
    return hasattr(torch, "export") and hasattr(torch.onnx, "ops")


def export(model, inputs, path, batch):
    """The model goes to a file of this name, or to a BytesIO."""
    if by_signature():
        import exported
        import onnx_ir

        data = onnx_ir.serde.serialize_model(
            exported.export(model, inputs, batch)).SerializeToString()
        if isinstance(path, io.BytesIO):
            path.write(data)
        else:
            with open(path, "wb") as f:
                f.write(data)
        return
    print("export.py: this PyTorch does not say which tensors are buffers or constants: "
          "ap-import takes every float for a weight", file=sys.stderr)
    torch.onnx.export(
        model, tuple(inputs.values()), path,
        input_names=list(inputs), export_params=True, opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        dynamic_axes={name: {0: batch} for name in inputs} if batch else None)


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def fields(data):
    """Fields of a protobuf message: number, wire type, the value's bytes."""

    def number(at):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return n, at

    at = 0
    while at < len(data):
        key, at = number(at)
        if key & 7 == 2:
            size, start = number(at)
            at = start + size
        else:
            start, at = at, {0: number(at)[1], 1: at + 8, 5: at + 4}[key & 7]
        yield key >> 3, key & 7, data[start:at]


def field(key, kind, value):
    return varint(key << 3 | kind) + (varint(len(value)) if kind == 2 else b"") + value


def without_weights(model):
    """An ONNX model whose initialisers over 1 KiB say that they are in a file "weights"."""

    def tensor(data):
        out = b""
        for key, kind, value in fields(data):
            if key == 9 and len(value) > 1024:  # raw_data: external_data, data_location
                entry = field(1, 2, b"location") + field(2, 2, b"weights")
                out += field(13, 2, entry) + field(14, 0, varint(1))
            else:
                out += field(key, kind, bytes(value))
        return out

    def graph(data):
        return b"".join(field(key, kind, tensor(value) if key == 5 else bytes(value))
                        for key, kind, value in fields(data))

    return b"".join(field(key, kind, graph(value) if key == 7 else bytes(value))
                    for key, kind, value in fields(memoryview(model)))


def write_shapes(model, inputs, path, batch):
    whole = io.BytesIO()
    export(model, inputs, whole, batch)
    data = without_weights(whole.getvalue())
    with open(path, "wb") as f:
        f.write(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)


def write_inputs(inputs, folder):
    """Example inputs, in order, as ap-exec --data reads them."""
    os.makedirs(folder, exist_ok=True)
    for k, x in enumerate(inputs.values()):
        np.save(f"{folder}/{k}.npy", x.numpy())


def loss_in(result):
    """The loss among what the forward pass returns, as exported.py chooses it."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict):
        return result["loss"]
    return result[0]


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
    write_inputs(inputs, f"{args.out}/inputs")
    export(model, inputs, f"{args.out}/model.onnx", args.batch)
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
