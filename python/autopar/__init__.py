# SPDX-License-Identifier: Apache-2.0
"""Plans of autopar in JAX, and in autopar.torch for PyTorch: see scripts/jax/README.md.

    plan = autopar.plan(train_step, args, cluster="h100x8")     # export, search and check
    print(plan.report())
    plan = autopar.load("plan.json")    # what plan.save or ap-rewrite wrote
    step = plan.jit(train_step)         # the same arguments and results
    state = plan.shard(state)           # every array where the plan has it
    state = plan.unshard(state)         # and back, for checkpoints
"""

import importlib

# The module that each name is from. It is loaded when the name is used first: autopar.torch does
# without JAX where it only loads plans.
HOMES = {
    "Placed": ".arrays", "Plan": ".planned", "load": ".loader", "plan": ".planning",
    "PlanError": ".errors", "StepError": ".errors", "NotSupported": ".errors", "Differs": ".errors",
    "ToolError": ".errors",
}  # fmt: skip

__all__ = list(HOMES)


def __getattr__(name):
    if name == "torch":
        return importlib.import_module(".torch", __name__)
    if name not in HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(HOMES[name], __name__), name)


def __dir__():
    return ["torch", *HOMES]
