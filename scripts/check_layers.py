#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the include lines of src/ against the layers of Kuafu.

    scripts/check_layers.py [ROOT]      ROOT is the source tree (default: the one this file is in)
    scripts/check_layers.py --table     prints the layers as src/kuafu/README.md shows them

Prints one line a violation, `file:line: what, and what is allowed`, and exits with 1 if there is any.
"""

import fnmatch
import re
import sys
from pathlib import Path

# Folder of src/kuafu -> the other folders it may include. Lowest first; a folder may only name what
# stands before it. Siblings do not include each other, with the exceptions that say why.
BELOW_TORCH = ("base", "memory", "kernels", "comm", "device", "record", "tokenizer", "mesh", "checkpoint", "parallel/pipeline", "plan")
GLUE = BELOW_TORCH + ("tensor", "meter")
SCHEMES = ("parallel/tensor", "parallel/sequence", "parallel/expert", "dataset")
REPLICAS = ("states", "optim", "parallel/reduce", "parallel/stale")
ALLOWED = {
    "base": (),
    # Uses and moves are data: what lies where is chosen and checked before anything moves.
    "memory": ("base",),
    # Loops over plain memory: they know nothing, not even the errors.
    "kernels": (),
    "device": ("base",),
    "comm": ("base", "device"),
    "record": ("base",),
    "tokenizer": ("base", "record"),
    "mesh": ("base", "comm", "device", "record"),
    "checkpoint": ("base", "comm", "device", "record", "mesh"),
    # Schedules and policies are data: a plan that names one is checked before anything runs.
    "parallel/pipeline": ("base",),
    "plan": ("base", "memory", "comm", "device", "record", "mesh", "parallel/pipeline"),
    "dataset": BELOW_TORCH,
    "hf": BELOW_TORCH,
    "experiment": BELOW_TORCH + ("dataset",),
    "meter": BELOW_TORCH,
    "tensor": BELOW_TORCH + ("meter",),
    # Who sums gradients stands above what a rank holds, and fills an interface of it.
    "states": GLUE,
    "parallel/tensor": GLUE,
    "parallel/sequence": GLUE,
    "parallel/expert": GLUE,
    "optim": GLUE + ("states",),
    "parallel/reduce": GLUE + ("states",),
    # Servers that update by themselves have optimizers of their own.
    "parallel/stale": GLUE + ("states", "optim", "parallel/reduce"),
    "model": GLUE + SCHEMES,
    # A second opinion on everything above: it may see what a plan says and nothing of what runs it.
    "oracle": ("base", "plan", "dataset"),
    "engine": GLUE + SCHEMES + REPLICAS + ("model", "oracle"),
    "simulate": GLUE + SCHEMES + REPLICAS + ("model", "oracle", "engine"),
    "generation": GLUE + SCHEMES + REPLICAS + ("model", "oracle", "engine", "simulate"),
    "conformance": GLUE + SCHEMES + REPLICAS + ("model", "oracle", "engine", "simulate"),
}
# Folders that are free of LibTorch.
NO_TORCH = BELOW_TORCH + ("dataset", "hf", "experiment")

# External headers: name, pattern of the include, the files of src/ that may include it.
EXTERNAL = (
    ("MPI", r"mpi\.h", ("kuafu/comm/mpi*.cpp",)),
    ("NCCL", r"nccl\.h", ("kuafu/comm/nccl*.cpp",)),
    ("CUDA", r"(cuda|cublas|cudnn|curand|cusolver|cusparse|cupti|nvtx|nvml|cooperative_groups)[^/]*(\.h|/.*)",
     ("kuafu/device/*", "kuafu/kernels/card*")),
    ("io_uring", r"(liburing|linux/io_uring)(\.h|/.*)", ("kuafu/device/uring.cpp",)),
    ("HDF5", r"(hdf5\.h|hdf5/.*|H5[A-Za-z]*\.h)", ("kuafu/record/*", "kuafu/dataset/*")),
    ("CBC", r"coin/.*", ("kuafu/memory/cbc.cpp",)),
    ("utf8proc", r"utf8proc\.h", ("kuafu/tokenizer/characters.cpp",)),
    ("PCRE2", r"pcre2\.h", ("kuafu/tokenizer/regex.cpp",)),
    ("toml++", r"toml\+\+/.*", ("kuafu/base/*.cpp", "app/*.cpp")),
    ("CLI11", r"CLI/.*", ("app/*",)),
    ("GoogleTest", r"(gtest|gmock)/.*", ()),
    ("Google Benchmark", r"benchmark/.*", ()),
)
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
TORCH_IN_HEADERS = "ATen/core/Tensor.h"
# Private headers that only the sources beside them include, which have LibTorch precompiled.
PRIVATE_HEADERS = ("kuafu/tensor/ops/card.h", "kuafu/tensor/ops/library.h")
# The oracle is a second opinion: none of our own ops, which the dispatcher knows by name.
# And of what it shares, errors and names of kinds apart: the generator, the plan and the samples.
ORACLE_INCLUDES = ("base/errors.h", "base/registry.h", "base/philox.h", "plan/plan.h", "plan/kind_names.h", "plan/models.def",
                   "plan/optimizers.def", "dataset/dataset.h")
ORACLE_WORDS = re.compile(r'kuafu::(?!oracle\b)\w+\(?"|"kuafu::|[Dd]ispatcher|torch/library\.h|torch::jit')
# Of the function that makes a rule: some 20 of arithmetic, and those that bind keys to it.
MOST_RULE_LINES = 30
# A file that makes an update rule has arithmetic on pieces alone: what it may include of ours, and words it may not have.
RULE = re.compile(r"^Rule make_\w+\(const OptimizerPlan& ?\w*\) \{", re.MULTILINE)
RULE_HEADERS = ("kuafu/base/errors.h", "kuafu/optim/formulas.h", "kuafu/optim/rule.h")
RULE_WORDS = re.compile(r"\b(Mesh|mesh|Communicator|comm|ranks?|all_reduce|[Tt]ier|Store|Residency|is_cuda|device)\b")
# A class that begins a line, as the formatter writes those that stand in a namespace alone.
CLASS = re.compile(r"(?:struct|class|union|enum class|enum) (\w+)(?: final)?(?: : .*)?(?: \{.*)?$")
NAMESPACE = re.compile(r"(?:inline )?namespace( [\w:]+)? \{$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def folder_of(path):
    """'parallel/tensor' for 'kuafu/parallel/tensor/layers.h'; None where the table lacks the folder."""
    parts = Path(path).parts[1:-1]
    for length in range(len(parts), 0, -1):
        name = "/".join(parts[:length])
        if name in ALLOWED:
            return name
    return None


def check_own(file, folder, target):
    """What is wrong with `file` of `folder` including "kuafu/..."; None if nothing."""
    to = folder_of(target)
    if to is None:
        return f"{target} is in no folder that scripts/check_layers.py knows"
    if target in PRIVATE_HEADERS and not (to == folder and file.endswith(".cpp")):
        return f"{target} is private to the .cpp files of its folder"
    if folder == "app" or to == folder or to in ALLOWED[folder]:
        return None
    allowed = ", ".join(ALLOWED[folder]) or "nothing else"
    return f"{folder} includes {target}; it may include {allowed}"


def check_external(file, folder, target):
    """What is wrong with `file` including <target>; None if nothing."""
    for name, pattern, files in EXTERNAL:
        if re.fullmatch(pattern, target) and not any(fnmatch.fnmatch(file, f) for f in files):
            return f"{name} header <{target}>; only {', '.join(files) or 'tests and benchmarks'} may have it"
    if not TORCH.match(target) or folder == "app":
        return None
    if folder in NO_TORCH:
        return f"LibTorch header <{target}>; {folder} is free of LibTorch"
    if file.endswith(".cu"):
        return f"LibTorch header <{target}> in a .cu file; pass pointers and a stream"
    if file.endswith(".h") and target != TORCH_IN_HEADERS and file not in PRIVATE_HEADERS:
        return f"LibTorch header <{target}> in a header; only <{TORCH_IN_HEADERS}> may stand there"
    return None


def check_line(file, folder, line):
    """What is wrong with one line of `file`; None if nothing."""
    match = INCLUDE.match(line)
    if not match:
        return None
    quote, target = match.groups()
    if target.startswith("kuafu/"):
        return check_own(file, folder, target) if quote == '"' else f'<{target}> is ours; write "{target}"'
    if target.startswith("app/"):
        return None if folder == "app" else f"{folder} includes {target}; nothing includes the app"
    if quote == '"':
        return f'"{target}" is not a path from src/; write "kuafu/<folder>/<file>.h"'
    return check_external(file, folder, target)


def check_rule(line):
    """What is wrong with one line of a file that makes an update rule; None if nothing."""
    code = line.split("//")[0]
    match = INCLUDE.match(code)
    if match:
        target = match[2]
        fine = not target.startswith("kuafu/") or target in RULE_HEADERS
        return None if fine else f"a rule includes {target}; it may include {', '.join(RULE_HEADERS)}"
    word = RULE_WORDS.search(code)
    return f"a rule says {word[0]}; what knows of ranks and memories is optim/apply.cpp" if word else None


def long_rules(text):
    """Functions that make a rule and are longer than one."""
    for match in RULE.finditer(text):
        lines = text[match.start():].split("\n}\n")[0].count("\n")
        if lines > MOST_RULE_LINES:
            yield f"{match[0].split('(')[0]} has {lines} lines; {MOST_RULE_LINES} at most"


def check_oracle(line):
    """What is wrong with one line of the oracle; None if nothing."""
    included = re.match(r'\s*#include "kuafu/(?!oracle/)([^"]+)"', line)
    if included and included[1] not in ORACLE_INCLUDES:
        return f"the oracle includes {included[1]}; of the library it shares {', '.join(ORACLE_INCLUDES)}"
    word = ORACLE_WORDS.search(line.split("//")[0])
    return f"the oracle says {word[0]}; it is plain ATen, without any op of ours" if word else None


def classes(text):
    """Qualified names of the classes that a file defines, with their lines; those that it alone sees are left out."""
    spaces = []
    for number, line in enumerate(text.splitlines(), start=1):
        opened = NAMESPACE.match(line)
        if opened:
            spaces.append((opened[1] or "").strip())
        elif line.startswith("}  // namespace"):
            spaces and spaces.pop()
        elif all(spaces) and (match := CLASS.match(line)) and not re.fullmatch(r"[^{]*;", line):
            yield "::".join([*spaces, match[1]]), number


def defined_twice(root):
    """Classes of one name in two files, which the linker takes for one (the one-definition rule)."""
    first, found = {}, []
    for folder in ("src", "tests", "experiments"):
        for path in sorted(p for p in (Path(root) / folder).rglob("*") if p.suffix in SUFFIXES):
            file = path.relative_to(root).as_posix()
            for name, number in classes(path.read_text(encoding="utf-8")):
                there = first.setdefault(name, file)
                if there != file:
                    found.append(f"{file}:{number}: {name} is a class of {there} too; give one of them another name")
    return found


def table(root):
    """The folders that are there, highest first, each with those that it may include and none of these may."""
    there = [f for f in ALLOWED if (Path(root) / "src/kuafu" / f).is_dir()]
    lines = ["| folder | LibTorch | stands on |", "|---|---|---|"]
    for folder in reversed(there):
        own = [f for f in ALLOWED[folder] if f in there]
        direct = [f for f in own if not any(f in ALLOWED[other] for other in own)]
        lines.append(f"| `{folder}` | {'no' if folder in NO_TORCH else 'yes'} | "
                     f"{', '.join(f'`{f}`' for f in direct) or '-'} |")
    return "\n".join(lines)


def check_readme(root):
    """The line to print where src/kuafu/README.md shows other layers; nothing in a tree without it."""
    readme = Path(root) / "src/kuafu/README.md"
    if readme.exists() and table(root) not in readme.read_text(encoding="utf-8"):
        return ["src/kuafu/README.md:1: its table is not what scripts/check_layers.py --table prints"]
    return []


def violations(root):
    """All violations of the tree, as lines to print, and the number of files read."""
    source = Path(root) / "src"
    found = check_readme(root) + defined_twice(root)
    files = sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES)
    for path in files:
        file = path.relative_to(source).as_posix()
        folder = "app" if file.startswith("app/") else folder_of(file)
        if folder is None:
            found.append(f"src/{file}:1: its folder is not in the table of scripts/check_layers.py")
            continue
        text = path.read_text(encoding="utf-8")
        makes_rule = folder == "optim" and RULE.search(text)
        for number, line in enumerate(text.splitlines(), start=1):
            problem = (check_line(file, folder, line) or (makes_rule and check_rule(line))
                       or (folder == "oracle" and check_oracle(line)))
            if problem:
                found.append(f"src/{file}:{number}: {problem}")
        if makes_rule:
            found += [f"src/{file}: {problem}" for problem in long_rules(text)]
    return found, len(files)


def main():
    home = Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--table"]:
        print(table(home))
        return 0
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else home
    found, files = violations(root)
    print("\n".join(found), end="\n" if found else "")
    print(f"layers: {files} files, {len(found)} violations")
    if files == 0:
        print(f"layers: no sources under {root}/src", file=sys.stderr)
    return 1 if found or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
