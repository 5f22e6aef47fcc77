"""What the loader refuses: the message names the file, the place and what is wrong."""


class PlanError(ValueError):
    """A document, a step or an array that does not fit the plan."""
