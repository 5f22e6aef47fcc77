"""Plans of autopar in JAX, exactly as planned: see scripts/jax/README.md.

    plan = autopar.load("plan.json")    # what ap-rewrite wrote
    step = plan.jit(train_step)         # the same arguments and results
    state = plan.shard(state)           # every array where the plan has it
    state = plan.unshard(state)         # and back, for checkpoints
"""

from .arrays import Placed
from .errors import PlanError
from .plan import Plan, load

__all__ = ["Placed", "Plan", "PlanError", "load"]
