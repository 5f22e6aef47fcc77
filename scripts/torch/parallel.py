#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a module as plans say, on as many processes (gloo, CPUs), and on one.

  scripts/torch/parallel.py FILE.py:FUNCTION PLAN.json... [--steps N] [--lr X] [--no-fsdp]

FUNCTION() returns the module and its example inputs, as for export.py; PLANs are of
ap-rewrite --to torch. A line of JSON for each plan: the losses of N steps of Adam beside one
process's, the largest relative difference of losses and of the first step's gradients,
parameters that lie otherwise than planned, what departed from the plan, and collectives of the
first step beside the plan's.
"""
import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import autopar.torch
from autopar.torch.export import load, loss_in


class Collectives(TorchDispatchMode):
    """Counts collectives, by name. CommDebugMode's hooks on modules allow no sums in place."""

    def __init__(self):
        super().__init__()
        self.count = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        if "c10d" in func.namespace and "wait" not in func.name():
            name = func.name().partition("::")[2].partition(".")[0]
            self.count[name] = self.count.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


class Failed(Exception):
    """What the first process that failed said."""


def train(model, step, args):
    """Losses of the steps, and the gradients of the first, whole, by all names."""
    optimizer = args.optimizer(model)
    losses, gradients = [], {}
    torch.manual_seed(0)  # of random numbers that the module draws
    for k in range(args.steps):
        optimizer.zero_grad()
        losses.append(step(k))
        if k == 0:
            for stage in model if isinstance(model, torch.nn.ModuleList) else [model]:
                whole = {p: getattr(p.grad, "full_tensor", p.grad.clone)().to_dense()
                         for p in stage.parameters() if p.grad is not None}
                gradients |= {name: whole[p] for name, p
                              in stage.named_parameters(remove_duplicate=False) if p in whole}
        optimizer.step()
    return losses, gradients


def alone(args):
    model, inputs = args.make()
    model.train()

    def step(_):
        with sdpa_kernel(SDPBackend.MATH):  # as under a plan on CPUs
            loss = loss_in(model(**inputs))
            loss.backward()  # which may run parts of the forward pass again
        return loss.item()
    return train(model, step, args)


def planned(path, args):
    """One plan's run: what this process found, and gradients of its parameters."""
    plan = autopar.torch.load(path)
    model, inputs = args.make()
    model = plan.parallelize(model.train(), inputs, fsdp=not args.no_fsdp)
    misplaced = plan.check(model)
    found = {}

    def step(k):
        with Collectives() as collectives:
            loss = plan.step(model, inputs)
        if k == 0:
            found.update(collectives.count)
        return loss
    losses, gradients = train(model, step, args)
    return {"losses": losses, "misplaced": misplaced, "departures": plan.departures,
            "collectives": found}, gradients, plan


def joined(found):
    """What all processes found: lists of sentences without those that are there twice."""
    return list(dict.fromkeys(text for part in found for text in part))


def compare(path, args, losses, gradients):
    """The line of a plan, beside the losses and gradients of one process."""
    found, made, plan = planned(path, args)
    largest = max(g.abs().max().item() for g in gradients.values())
    found["gradient_error"] = max(((made[name] - gradients[name]).abs().max().item()
                                   for name in made), default=0) / largest
    processes = [None] * dist.get_world_size()
    dist.all_gather_object(processes, (found, list(made)))
    everywhere, names = zip(*processes)
    reached = {id(gradients[name]) for name in joined(names)}
    stages = plan.document.get("stages", [plan.document])
    return {"plan": os.path.basename(path), "losses": found["losses"], "alone": losses,
            "loss_error": max(abs(a - b) / abs(b) for f in everywhere
                              for a, b in zip(f["losses"], losses)),
            "gradient_error": max(f["gradient_error"] for f in everywhere),
            "without_gradient": [name for name, g in gradients.items() if id(g) not in reached],
            "misplaced": joined(f["misplaced"] for f in everywhere),
            "differences": plan.differences,
            "departures": joined(f["departures"] for f in everywhere),
            "collectives": found["collectives"],
            "planned": [c for stage in stages for c in stage["collectives"]]}


def work(rank, args, processes, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=processes)
    torch.set_num_threads(1)
    losses, gradients = alone(args)
    for path in args.plans:
        line = compare(path, args, losses, gradients)
        if rank == 0:
            with open(args.out, "a", encoding="utf-8") if args.out else contextlib.nullcontext(sys.stdout) as file:
                print(json.dumps(line), file=file, flush=True)
    dist.destroy_process_group()


def start(args, processes):
    """Runs the plans on processes. args: make, optimizer (functions), plans, steps, no_fsdp, out."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mp.start_processes(work, (args, processes, f"{folder}/store"), nprocs=processes, start_method="fork")
        except mp.ProcessRaisedException as e:
            lines = str(e).strip().splitlines()
            raise Failed(([x for x in lines if re.match(r"[\w.]+(Error|Exception)\b", x)] or lines)[-1]) from None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("model", metavar="FILE.py:FUNCTION")
    parser.add_argument("plans", metavar="PLAN.json", nargs="+")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--no-fsdp", action="store_true")
    args = parser.parse_args()
    args.out, args.make = None, load(args.model)
    args.optimizer = lambda model: torch.optim.Adam(model.parameters(), lr=args.lr)
    sizes = {autopar.torch.load(path).n_processes for path in args.plans}
    if len(sizes) != 1:
        sys.exit(f"parallel.py: the plans are for {sorted(sizes)} devices, not for as many each")
    torch.set_num_threads(1)
    args.make()  # what it imports, once for all processes
    try:
        start(args, sizes.pop())
    except Failed as e:
        sys.exit(f"parallel.py: {e}")


if __name__ == "__main__":
    main()
