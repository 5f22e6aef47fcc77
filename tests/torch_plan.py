"""autopar.torch.plan on four processes, for tests/plan_call.bats: the first plans, all run the plan."""
import copy
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import autopar.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.head = nn.Linear(16, 64), nn.Linear(64, 10)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.head(nn.functional.gelu(self.up(x))), y)


def example():
    torch.manual_seed(0)
    return {"x": torch.randn(32, 16), "y": torch.arange(32) % 10}


def refused(kind, words, *args, **options):
    try:
        autopar.torch.plan(*args, **options)
    except kind as error:
        assert words in str(error), error
    else:
        sys.exit(f"taken, to be refused with '{words}'")


def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    torch.manual_seed(0)
    net, batch = Net(), example()
    alone = copy.deepcopy(net)
    refused(autopar.ToolError, "nowhere: no such file", net, batch, cluster="nowhere", check=False)
    plan = autopar.torch.plan(net, batch, cluster="cpu-4", stages=1)
    assert all(p.grad is None for p in net.parameters()) and "\nstep " in plan.report()
    assert plan.page.startswith("<!DOCTYPE html>") and "--stages 1" in plan.commands
    assert isinstance(plan, autopar.torch.Plan) and not hasattr(plan, "nosuch") and plan.differences is not None
    net = plan.parallelize(net, batch)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (net, alone)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss, want = plan.step(net, batch), alone(**batch)
        want.backward()
        assert abs(loss - want.item()) < 1e-5, (loss, want)
        for optimizer in optimizers:
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    wide = autopar.torch.plan(Net, example, cluster="h100x8", optimizer="sgd")  # without memory
    assert "of h100x8" in wide.report() and "--optimizer sgd" in wide.commands
    refused(autopar.StepError, "expected sgd, momentum, adam, adamw", Net(), example(), cluster="cpu-4",
            optimizer="adagrad")
    refused(autopar.StepError, "not a SGD", Net(), example(), cluster="cpu-4",
            optimizer=torch.optim.SGD(Net().parameters()))
    own = lambda net: torch.optim.Adagrad(net.parameters(), lr=0.01)
    for given in (Net(), example()), (Net, example):
        plan = autopar.torch.plan(*given, cluster="cpu-4", stages=1, optimizer=own)
        assert "--optimizer" not in plan.commands and "\nstep " in plan.report(), plan.commands
    import jax

    assert not jax.config.jax_enable_x64
    refused(autopar.StepError, "expected a tensor", Net(), {"x": 3}, cluster="cpu-4")
    refused(autopar.StepError, "no floating-point scalar", nn.Linear(16, 4), (torch.ones(2, 16),), cluster="cpu-4")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (os.path.join(folder, "store"),), nprocs=4, start_method="spawn")
    print("ok")


if __name__ == "__main__":
    main()
