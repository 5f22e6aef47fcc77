"""From a module to an ONNX model by tracing, for PyTorch without torch.export (1.13, say).

Roles are taken from the module: initialisers have the names of its parameters and buffers. A
trace lacks more than torch.export's program, and what it loses is refused: buffers that the
forward pass changes, torch.no_grad(), hooks. Batch norm's running statistics, on which no loss
in training mode depends, stay as they are, and a message says so.
"""
import contextlib
import copy
import io
import json
import sys
import warnings

import torch

import tracing
import wire
from tracing import fail

LATER = "PyTorch 2.8 or newer can"


def changed_buffers(model, inputs):
    """Names of the floating-point buffers that one forward pass changes."""
    model = copy.deepcopy(model)
    before = {name: b.clone() for name, b in model.named_buffers()}
    model(*inputs.values())
    return [name for name, b in model.named_buffers()
            if b.is_floating_point() and not torch.equal(b, before[name])]


def refuse_changes(model, inputs):
    kept = []
    for name in changed_buffers(model, inputs):
        owner = model.get_submodule(name.rpartition(".")[0])
        if not isinstance(owner, torch.nn.modules.batchnorm._BatchNorm):
            fail(f"the forward pass changes the buffer '{name}', which this PyTorch cannot "
                 f"export: {LATER}")
        kept.append(name)
    if kept:
        print(f"export.py: running statistics are not updated ({', '.join(kept)}): {LATER}",
              file=sys.stderr)


def refuse_dropout(model):
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p:
            fail(f"dropout with p={module.p} in {name}: random numbers are not supported: "
                 "set p to 0 before exporting")


@contextlib.contextmanager
def watched(model, loss_in):
    """The forward pass returns its loss alone; regions without gradients are refused."""
    forward, enter = model.forward, torch.no_grad.__enter__

    def refuse(_):
        fail(f"{tracing.source_of()}: torch.no_grad() in the forward pass cannot be exported by "
             f"this PyTorch: use detach(); {LATER}")

    def only_loss(*args):
        torch.no_grad.__enter__ = refuse
        try:
            return loss_in(forward(*args))
        finally:
            torch.no_grad.__enter__ = enter

    model.forward = only_loss
    try:
        yield
    finally:
        del model.forward


def stop_gradient(g, x):
    return g.op("autopar::StopGradient", x).setType(x.type())


def graph_names(data):
    """Names of the initialisers of a serialised ONNX model."""
    for key, _, value in wire.fields(memoryview(data)):
        if key != 7:
            continue
        for part, _, tensor in wire.fields(value):
            if part == 5:
                yield next(bytes(v).decode() for k, _, v in wire.fields(tensor) if k == 8)


def roles_of(model, names):
    """A tied weight has several names, of which the exporter keeps one."""
    weights = {f"{prefix}.{name}" if prefix else name
               for prefix, module in model.named_modules(remove_duplicate=False)
               for name, p in module._parameters.items() if p is not None and p.requires_grad}
    return {"weights": [n for n in names if n in weights],
            "constants": [n for n in names if n not in weights], "loss": "loss"}


def export(model, inputs, batch, loss_in):
    """The ONNX model, serialised; loss_in: the loss of what the forward pass returns."""
    tracing.refuse_hooks(model)
    refuse_dropout(model)
    refuse_changes(model, inputs)
    torch.onnx.register_custom_op_symbolic("aten::detach", stop_gradient, 17)
    state = copy.deepcopy(model.state_dict())
    out = io.BytesIO()
    with watched(model, loss_in), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, tuple(inputs.values()), out, input_names=list(inputs), output_names=["loss"],
            export_params=True, opset_version=17, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING,
            dynamic_axes={name: {0: batch} for name in inputs} if batch else None)
    model.load_state_dict(state)
    data = out.getvalue()
    entry = json.dumps(roles_of(model, list(graph_names(data))))
    return data + wire.field(14, 2, wire.field(1, 2, b"autopar.roles")
                             + wire.field(2, 2, entry.encode()))
