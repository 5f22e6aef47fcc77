#!/usr/bin/env python3
"""Makes the wheel: the tools, their data and the Python package `autopar`.

It is a build backend (PEP 517): `pip install .` calls build_wheel, which runs make. The tools are
linked as make links them, and the wheel is for this machine. `make wheel` calls it as a command,

    make_wheel.py --build BUILD --bundled 'NAME ...' --out DIR

with programs in BUILD/wheel/bin into which the libraries NAME are linked, and the wheel is for
every Linux of this processor whose glibc is as new as the newest symbol that a program takes from
it (manylinux_2_N of PEP 600). Programs that need a library beside glibc are refused, but for
OpenMPI's and, of the CUDA backend, NVIDIA's: these are found at run time.

In the wheel, programs go to bin/, ap-exec to lib/autopar/ behind a script of its name, and
clusters, schemas, man pages and completions to share/, as `make install` has them.
"""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
OF_GLIBC = r"lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux.*"
AT_RUN_TIME = {"ap-exec": r"libmpi\.so\.\d+", "ap_cuda.so": r"lib(cudart|cublasLt|nvrtc|nccl)\.so\.\d+"}


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make_wheel.py: {' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


# ---- what a program needs ----


def glibc_of(path):
    """The minor version N of glibc 2.N that a program needs; exits where it needs other libraries."""
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", path))
    allowed = f"{OF_GLIBC}|{AT_RUN_TIME.get(path.name, OF_GLIBC)}"
    for library in needed:
        if not re.fullmatch(allowed, library):
            sys.exit(f"make_wheel.py: {path.name} needs {library}, which is not linked into it")
    versions = re.findall(r"\bGLIBC_2\.(\d+)", output_of("readelf", "-V", path))
    return max(map(int, versions), default=0)


def platform_of(programs):
    """The wheel's platform tag where programs have their libraries linked into them."""
    machine = os.uname().machine
    return f"manylinux_2_{max(glibc_of(p) for p in programs)}_{machine}"


def licences_of(names):
    """{name in the wheel: file} of the libraries that are linked into the programs."""
    found = {}
    for name in names:
        archive = Path(output_of("gcc", f"-print-file-name=lib{name}.a").strip())
        if not archive.is_absolute():
            sys.exit(f"make_wheel.py: there is no lib{name}.a to link")
        package = output_of("dpkg", "-S", archive.resolve()).split(":")[0]
        found[f"{package}.txt"] = Path("/usr/share/doc") / package / "copyright"
    return found


# ---- files ----


class Wheel:
    """Files of a wheel, by their place in it; close() writes it."""

    def __init__(self, folder, project, version, platform):
        name = project["name"]
        self.name = f"{name}-{version}-py3-none-{platform}.whl"
        self.info, self.data = f"{name}-{version}.dist-info", f"{name}-{version}.data"
        self.path, self.platform, self.files = Path(folder) / self.name, platform, []

    def add(self, place, data, mode=0o644):
        self.files.append((place, data, mode))

    def add_file(self, place, path):
        self.add(place, path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)

    def add_folder(self, place, folder, pattern):
        for path in sorted(folder.rglob(pattern)):
            self.add_file(f"{place}/{path.relative_to(folder)}", path)

    def close(self):
        text = f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: false\nTag: py3-none-{self.platform}\n"
        self.add(f"{self.info}/WHEEL", text.encode())
        record = []
        for place, data, _ in self.files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{place},sha256={digest},{len(data)}")
        record.append(f"{self.info}/RECORD,,")
        self.add(f"{self.info}/RECORD", "\n".join([*record, ""]).encode())
        with zipfile.ZipFile(self.path, "w") as file:
            for place, data, mode in self.files:
                entry = zipfile.ZipInfo(place)  # of 1980: the same files make the same wheel
                entry.external_attr = (0o100000 | mode) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                file.writestr(entry, data)


def metadata_of(project, version):
    head = [
        "Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}",
        f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
    ]  # fmt: skip
    head += [f"License-File: {name}" for name in project["license-files"]]
    head += [f"Requires-Dist: {need}" for need in project["dependencies"]]
    for extra, needs in project["optional-dependencies"].items():
        head += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {n} ; extra == "{extra}"' for n in needs)]
    head.append("Description-Content-Type: text/markdown")
    return "\n".join(head) + "\n\n" + (TOP / project["readme"]).read_text()


def add_programs(wheel, programs):
    scripts, library = f"{wheel.data}/scripts", f"{wheel.data}/data/lib/autopar"
    wheel.add_file(f"{scripts}/ap-exec", TOP / "scripts/wheel/ap-exec")
    for path in programs:
        wheel.add_file(f"{library if path.name in AT_RUN_TIME else scripts}/{path.name}", path)


def add_completions(wheel, programs):
    """Completions that the programs write themselves; of ap-exec where it runs here."""
    share = f"{wheel.data}/data/share"
    for path in programs:
        if path.suffix != ".so":
            for shell, place in (("bash", "bash-completion/completions/"), ("zsh", "zsh/site-functions/_")):
                text = output_of(path, "--completion", shell)
                wheel.add(f"{share}/{place}{path.name}", text.encode())


def write(folder, programs, platform, licences):
    """Writes the wheel of these programs, and returns its name."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    text = (TOP / "libcommon/tool/tool.h").read_text()
    version = re.search(r'^#define AP_VERSION "(.*)"', text, re.M)[1]
    wheel = Wheel(folder, project, version, platform)
    share = f"{wheel.data}/data/share"
    wheel.add_folder("autopar", TOP / "python/autopar", "*.py")
    wheel.add_file("autopar/ops.def", TOP / "python/autopar/ops.def")
    add_programs(wheel, programs)
    add_completions(wheel, programs)
    wheel.add_folder(f"{share}/autopar/clusters", TOP / "clusters", "*.json")
    wheel.add_folder(f"{share}/autopar/schemas", TOP / "schemas", "*.json")
    for section in "157":
        wheel.add_folder(f"{share}/man/man{section}", TOP / "man", f"*.{section}")
    for name in project["license-files"]:
        wheel.add_file(f"{wheel.info}/licenses/{name}", TOP / name)
    for name, path in licences.items():
        wheel.add_file(f"{wheel.info}/licenses/libraries/{name}", path)
    wheel.add(f"{wheel.info}/METADATA", metadata_of(project, version).encode())
    wheel.close()
    return wheel.name


def programs_in(folder):
    return sorted([*folder.glob("ap-*"), *folder.glob("ap_cuda.so")])


# ---- what pip calls ----


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel of this machine's build, in wheel_directory; its name."""
    if not shutil.which("make"):
        sys.exit("autopar is built by make and gcc, which are not installed; scripts/deps names all that it needs")
    build = Path(os.environ.get("BUILD", TOP / "build")).absolute()
    jobs = len(os.sched_getaffinity(0))
    subprocess.run(["make", "-s", f"-j{jobs}", f"BUILD={build}", "all"], cwd=TOP, check=True)
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    return write(wheel_directory, programs_in(build / "bin"), platform, {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--bundled", default="")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    programs = programs_in(options.build / "wheel/bin")
    elf = [p for p in programs if p.read_bytes()[:4] == b"\x7fELF"]
    name = write(options.out, programs, platform_of(elf), licences_of(options.bundled.split()))
    print(options.out / name)


if __name__ == "__main__":
    main()
