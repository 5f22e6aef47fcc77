# SPDX-License-Identifier: Apache-2.0
"""Plans of autopar in PyTorch: see scripts/torch/README.md.

    plan = autopar.torch.plan(module, inputs, cluster="h100x8")     # export, search and check
    print(plan.report())
    plan = autopar.torch.load("plan.json")          # what plan.save or ap-rewrite --to torch wrote
    model = plan.parallelize(model, batch)          # on every process, of torchrun say
"""

from ..planned import Plan
from .loader import load

__all__ = ["Plan", "load", "plan"]


def __getattr__(name):
    """plan, whose exporter needs JAX, which load does without."""
    if name != "plan":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from .planning import plan

    return plan
