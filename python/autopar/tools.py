# SPDX-License-Identifier: Apache-2.0
"""The tools of autopar (ap-import, ap-plan, ap-exec, ...), run from Python."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from .errors import ToolError

HERE = Path(__file__).resolve().parent
# Where tools are that the PATH lacks: beside this Python or in the user's own folder (pip), as
# `pip --target` and `make install` put them, and in the build folder of a checkout.
BESIDE = (
    Path(sysconfig.get_path("scripts")),
    Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))),
    HERE.parent / "bin",
    *(above / "bin" for above in list(HERE.parents)[2:4]),  # a package may lie near the root
    *(above / "build" / "bin" for above in list(HERE.parents)[1:2]),
)


def find(name):
    """The path of a tool, of the PATH or else of BESIDE; None: there is none."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, BESIDE)))


def run(name, *words, stdin=None):
    """(standard output, standard error as text) of a tool; ToolError with its message.

    stdin: bytes, or None for nothing.
    """
    path = find(name)
    if path is None:
        raise ToolError(f"{name} is not installed, or not on the PATH", name, None)
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for variable in ("XLA_FLAGS", "JAX_PLATFORMS"):
        env.pop(variable, None)
    done = subprocess.run(
        [path, *map(str, words)], input=stdin if stdin is not None else b"", capture_output=True,
        env=env, check=False,
    )  # fmt: skip
    said = done.stderr.decode(errors="replace")
    if done.returncode:
        raise ToolError(message_of(name, said, done.returncode), name, done.returncode)
    return done.stdout, said


def message_of(name, said, status):
    """The error among the lines of a tool that failed: its own, or that of one that it called."""
    lines = [line for line in said.strip().splitlines() if line and not is_warning(line)]
    own = [line for line in lines if re.match(r"ap-[a-z]+: ", line)]
    return "\n".join(own or lines[-1:]) or f"{name}: exit status {status}"


def is_warning(line):
    return line.startswith("ap-") and ": warning" in line
