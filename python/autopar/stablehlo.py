# SPDX-License-Identifier: Apache-2.0
"""StableHLO as HLO text: what export.py does with --stablehlo.

    export.py --stablehlo FILE -o STEP.hlo.gz [--loss NAME]

FILE is StableHLO as text or as bytecode (a portable artifact, as PyTorch's exporters write it into
functions/*.bytecode), or what jax.export.Exported.serialize makes.  Aliases of arguments and
results stay, arguments have the names that the file says, and --loss names the loss by the path
of a result, where the file says these ("result[1]['loss']").  Nothing is checked: the file has no
values.  Exit 1 where the file is no StableHLO, or is for several devices or for shapes that are
not fixed.
"""

import gzip
import hashlib
import re

import jax
from jax.extend.mlir import deserialize_portable_artifact
from jaxlib import _hlo, _jax
from jaxlib.mlir import ir

from . import step as steps
from .errors import StepError


def refuse(path, why):
    raise StepError(f"{path}: {why}")


def module_of(path):
    """The module of a file as MLIR's text."""
    try:
        data = path.read_bytes()
    except OSError as error:
        refuse(path, error.strerror)
    if data.startswith(b"ML\xefR"):
        try:
            with ir.Context():
                return deserialize_portable_artifact(data).operation.get_asm(enable_debug_info=True)
        except Exception as error:  # of jaxlib, of no common class
            refuse(path, f"no portable artifact of StableHLO: {first_line(error)}")
    if b"func.func" in data:
        return data.decode(errors="replace")
    try:
        return jax.export.deserialize(bytearray(data)).mlir_module()
    except ImportError:
        refuse(path, "reading jax.export's artifacts needs the package flatbuffers")
    except Exception as error:
        refuse(path, f"neither StableHLO nor an artifact of jax.export: {first_line(error)}")


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def computation_of(path, module):
    """HLO's text with metadata and whole constants, and its canonical hash."""
    many = re.search(r"(?:num_partitions|num_replicas) = ([2-9]|\d\d+)", module)
    if many:
        refuse(path, f"made for {many[1]} devices: export the step for one")
    if re.search(r"tensor<(?:\d+x)*\?", module):
        refuse(path, "a shape is not fixed: export it with numbers")
    try:
        hlo = _jax.mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=False
        ).as_hlo_module()
    except Exception as error:
        refuse(path, f"XLA does not take it: {first_line(error)}")
    printing = _hlo.HloPrintOptions()
    printing.print_percent = False
    printing.print_program_shape = False
    printing.print_large_constants = True
    canonical = _hlo.HloPrintOptions.canonical()
    canonical.print_large_constants = True
    canonical.print_metadata = False
    plain = hlo.to_string(canonical).split("\n", 1)[1]
    return hlo.to_string(printing), hashlib.sha256(plain.encode()).hexdigest()


def shapes_of(text):
    """Shapes of the entry computation's parameters and results."""
    entry = text[text.index("\nENTRY ") :]
    params = {
        int(m[2]): m[1] for m in re.finditer(r"= (\w+\[[\d,]*\])\S* parameter\((\d+)\)", entry)
    }
    root = re.search(r"ROOT \S+ = (\((?:[^()]|\([^()]*\))*\)|\S+)", entry)[1]
    return [params[i] for i in range(len(params))], re.findall(r"\w+\[[\d,]*\]", root)


def section_of(module, text, hash_, loss):
    """The section `step`: names as far as the file says them."""
    params, results = shapes_of(text)
    paths = steps.argument_paths(text)
    infos = [n.removeprefix("result") for n in re.findall(r'jax\.result_info = "([^"]*)"', module)]
    infos = infos if len(infos) == len(results) else [f"[{i}]" for i in range(len(results))]
    rows = [{"path": p, "shape": s} for p, s in zip(infos, results)]
    section = {
        "framework": "stablehlo", "version": jax.__version__, "hash": hash_,
        "arguments": [
            {"path": path or f"arg{i}", "shape": shape}
            for i, (path, shape) in enumerate(zip(paths, params))
        ],
        "results": rows,
    }  # fmt: skip
    found = steps.find_loss(rows, loss) if loss else None
    return {**section, "loss": found} if found else section


def export(path, output, loss=None):
    """Writes HLO text of a file; returns its section `step`, and {result: argument} of the aliases."""
    module = module_of(path)
    text, hash_ = computation_of(path, module)
    section = section_of(module, text, hash_, loss)
    head = re.search(r"input_output_alias=\{ (.*?) \}(?=,|$)", text.split("\n", 1)[0])
    pairs = re.findall(r"\{(\d*)\}: \((\d+), \{\}", head[1]) if head else []
    pairs = [(int(result or 0), int(param)) for result, param in pairs]
    bytes_ = steps.with_header(text, section, pairs).encode()
    output.write_bytes(gzip.compress(bytes_, 9, mtime=0) if output.suffix == ".gz" else bytes_)
    return section, dict(pairs)
