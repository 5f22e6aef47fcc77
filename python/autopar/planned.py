# SPDX-License-Identifier: Apache-2.0
"""What a search found: its report, its page, and the plan that a framework runs."""

import html
import json
import tempfile
import warnings
from pathlib import Path

from . import tools

OURS = ("cluster", "html", "o", "out", "help", "version", "completion")  # options that are not the user's


class Plan:
    """What autopar.plan and autopar.load return, and autopar.torch's."""


class Planned(Plan):
    """A plan that ap-plan found for an exported step; what else it has is the loader's.

    document: what ap-cost wrote, as bytes.  page: HTML.  commands: the filters that ran, as one types
    them.
    """

    target = ()  # options of ap-rewrite for what the framework loads
    loaders = ()  # classes of plans that load() returns
    members = ()  # what these have beside their methods

    def __init__(self, document, report, page, commands):
        self.document, self.page, self.commands = document, page, commands
        self._report, self._loaded = report, None

    def report(self):
        """The report of ap-plan, as text."""
        return self._report

    def rewritten(self):
        """The document that the framework's load() reads, as bytes."""
        return tools.run("ap-rewrite", "--quiet", *self.target, stdin=self.document)[0]

    def save(self, path):
        """Writes the document that load() reads."""
        Path(path).write_bytes(self.rewritten())

    def loaded(self):
        """The loader's plan."""
        if self._loaded is None:
            self._loaded = self.load(json.loads(self.rewritten()))
        return self._loaded

    def __getattr__(self, name):
        if name not in self.members and (name.startswith("_") or not any(hasattr(of, name) for of in self.loaders)):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.loaded(), name)

    def __getstate__(self):
        return {**self.__dict__, "_loaded": None}

    def __repr__(self):
        return self._report.split("\n", maxsplit=1)[0]

    def _repr_html_(self):
        """The page, in a frame of a notebook."""
        return f'<iframe srcdoc="{html.escape(self.page)}" width="100%" height="720" style="border: 0"></iframe>'


def words_of(options):
    """Options of ap-plan: memory="60GiB" is --memory 60GiB, free=True is --free, for_ is --for."""
    words = []
    for name, value in options.items():
        name = name.rstrip("_").replace("_", "-")
        if name in OURS:
            raise TypeError(f"'{name}' is no option of plan()")
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def search(kind, exported, cluster, options):
    """The Planned of this kind that ap-plan finds for an exported step; ToolError with its message.

    Warnings of the tools are Python's.
    """
    with tempfile.TemporaryDirectory() as name:
        plan, page = Path(name) / "plan.json", Path(name) / "plan.html"
        report, said = tools.run(
            "ap-plan", exported, "--cluster", cluster, *words_of(options), "-o", plan, "--html", page
        )
        lines = said.splitlines()
        for line in filter(tools.is_warning, lines):
            warnings.warn(line, stacklevel=3)
        commands = "\n".join(line for line in lines if not tools.is_warning(line))
        for path in (exported, plan, page):
            commands = commands.replace(str(path), path.name)
        return kind(plan.read_bytes(), report.decode(), page.read_text(), commands)
