# SPDX-License-Identifier: Apache-2.0
"""autopar.plan: a train step of JAX is exported, planned, checked and ready to run."""

import contextlib
import tempfile
import warnings
from pathlib import Path

import jax

from . import export, loader, pipeline, planned, spmd


class Plan(planned.Planned):
    """A plan of a train step; plan(*args) runs the step, and loader.Plan says what else it does.

    step: the user's.  devices: as autopar.load has them.
    """

    loaders = pipeline.StagedPlan, spmd.ProgramPlan

    def __init__(self, step, devices, *found):
        super().__init__(*found)
        self.step, self.devices, self._run = step, devices, None

    def load(self, document):
        return loader.plan_of("the plan", document, self.devices)

    def __getstate__(self):
        return {**super().__getstate__(), "_run": None}

    def jit(self, step=None, donate=None):
        """The step as the plan runs it, as loader.Plan.jit; without `step`, the planned one."""
        return self.loaded().jit(self.step if step is None else step, donate)

    def __call__(self, *args, **kwargs):
        if self._run is None:
            self._run = self.jit()
        return self._run(*args, **kwargs)


@contextlib.contextmanager
def without_lines():
    """The step is lowered without lines of its source, as export.py lowers it."""
    names = ("jax_hlo_source_file_canonicalization_regex", "jax_traceback_in_locations_limit")
    old = {name: getattr(jax.config, name) for name in names}
    try:
        for name, value in zip(names, (".*/", 0)):
            jax.config.update(name, value)
        yield
    finally:
        for name, value in old.items():
            jax.config.update(name, value)


def plan(step, args, cluster, *, donate=(), frozen=(), loss=None, pair=(), check=True, devices=None,
         **options):  # fmt: skip
    """The fastest plan of a train step on a cluster, as a Plan.

    step: jitted or not.  args: a tuple of its arguments, or of their shapes (jax.ShapeDtypeStruct).
    cluster: a name of `ap-plan --cluster help`, such as "h100x8", or a file.  donate, frozen, loss and
    pair are those of export.py: a step that is not jitted says in `donate` which arguments it replaces.
    check: whether ap-exec runs the export beside JAX, where args are arrays.  devices: of JAX, to run
    on.  options: those of ap-plan, such as memory="60GiB".

    Raises StepError where the step cannot be exported, Differs where ap-exec computes other numbers
    than JAX, and ToolError with the message of the tool that refuses it or finds no plan.
    """
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args: expected a tuple of the step's arguments, not a {type(args).__name__}")
    donate = (donate,) if isinstance(donate, int) else donate  # as jax.jit takes it
    with tempfile.TemporaryDirectory() as name, without_lines():
        text = Path(name) / "step.hlo.gz"
        _, _, checked = export.export(step, tuple(args), text, donate, frozen, loss, None, pair, 1, check)
        if checked.startswith("not checked"):
            warnings.warn(checked, stacklevel=2)
        return planned.search(lambda *found: Plan(step, devices, *found), text, cluster, options)
