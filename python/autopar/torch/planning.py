# SPDX-License-Identifier: Apache-2.0
"""autopar.torch.plan: a module is exported, planned, checked and ready to be parallelized."""
import argparse
import contextlib
import copy
import tempfile
from pathlib import Path

import jax
import torch
from torch import distributed as dist

from .. import planned
from ..errors import StepError
from . import loader, stages


class Plan(planned.Planned):
    """A plan of a module: parallelize, shard, step and context are loader.Plan's."""

    target = ("--to", "torch")
    loaders = loader.Plan, stages.StagedPlan
    members = "mesh", "microbatches", "differences", "departures"

    def load(self, document):
        return loader.plan_of(document)


@contextlib.contextmanager
def wide_jax():
    """JAX with 64-bit types, which the exporter turns on, and as it was afterwards."""
    old = {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_traceback_in_locations_limit")}
    try:
        from . import export
        jax.config.update("jax_enable_x64", True)
        jax.config.update("jax_traceback_in_locations_limit", 0)
        yield export
    finally:
        for name, value in old.items():
            jax.config.update(name, value)


def exported(export, module, inputs, folder, optimizer, check):
    """The file of the module's step, in the folder."""
    known = export.proof.OPTIMIZERS
    if not callable(optimizer) and optimizer not in known and ".py:" not in str(optimizer):
        given = f"'{optimizer}'" if isinstance(optimizer, str) else f"a {type(optimizer).__name__}"
        raise StepError(f"optimizer: expected {', '.join(known)}, FILE.py:FUNCTION, or a function that makes "
                        f"the torch.optim object for the module it is given, not {given}")
    how = argparse.Namespace(out=str(folder), optimizer=optimizer, lr=export.LR, steps=1, check=check)
    if not isinstance(module, torch.nn.Module):
        if not callable(inputs):
            raise StepError("a module that a function makes needs a function that makes its inputs")
        with export.without_memory():
            made = module().train()
            step, _ = export.captured(made, export.named_inputs(made, inputs()), how)
        path = Path(folder) / "model.hlo"
        path.write_text(export.hlo.text_of(step))
        return path
    module = copy.deepcopy(module).cpu().train()
    export.export(module, export.named_inputs(module, inputs), how)
    return Path(folder) / "model.hlo"


def plan_here(module, inputs, cluster, optimizer, check, options):
    with tempfile.TemporaryDirectory() as folder:
        with wide_jax() as export:
            text = exported(export, module, inputs, folder, optimizer, check)
            if optimizer in export.proof.OPTIMIZERS:  # else the text has its step
                options = {"optimizer": optimizer, **options}
        return planned.search(Plan, text, cluster, options)


def plan(module, inputs, cluster, *, optimizer="adam", check=True, **options):
    """The fastest plan of a module's training step on a cluster, as a Plan.

    module: a torch.nn.Module whose forward returns the loss; it stays as it is.  inputs: example
    inputs of the whole batch, a tuple or a dictionary of tensors.  Where both are functions that make
    them (a class, say), they are made without memory for values.  cluster: a name of `ap-plan --cluster
    help`, such as "h100x8", or a file.  optimizer: sgd, momentum, adam or adamw, or a
    function that makes the torch.optim object for the module that it is given, or FILE.py:FUNCTION.
    check: whether ap-exec runs the export beside PyTorch, where there are values.  options: those of
    ap-plan, such as memory="60GiB".  In a job of several processes the first one plans, and all get
    its plan.

    Raises StepError where the module cannot be exported, Differs where ap-exec computes other
    numbers than PyTorch, and ToolError with the message of the tool that refuses it.
    """
    words = module, inputs, cluster, optimizer, check, options
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return plan_here(*words)
    found = [None]
    if dist.get_rank() == 0:
        try:
            found = [plan_here(*words)]
        except Exception as error:  # every process raises it
            found = [error]
    dist.broadcast_object_list(found)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
