# SPDX-License-Identifier: Apache-2.0
"""What the package refuses: the message says what is wrong, and where."""


class PlanError(ValueError):
    """A document, a step or an array that does not fit the plan."""


class StepError(ValueError):
    """A train step or a module that cannot be exported; the message says what to do."""


class NotSupported(StepError):
    """A step of a kind that is not built; exporters exit with status 2."""


class Differs(StepError):
    """ap-exec computes other numbers than the framework."""


class ToolError(RuntimeError):
    """A tool refused its input, found no plan, or is not installed; the message is the tool's.

    tool: its name.  status: its exit status (1: bad input, 2: bad usage or not built, 3: no plan),
    None where it is not installed.
    """

    def __init__(self, message, tool, status):
        super().__init__(message)
        self.tool, self.status = tool, status

    def __reduce__(self):
        return type(self), (str(self), self.tool, self.status)
