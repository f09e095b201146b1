#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds a scheme, an optimizer, a model, a pipeline schedule and a memory policy to a copy of the tree, each in the places that
its row of CONTRIBUTING.md names, at most four besides its files, and in no other, builds it, and holds each of them to its conformance on two ranks and to a
certificate. Tests that go over all of them and need no LibTorch pass there as they are (TESTS).

    tests/recipes/add_one_of_each.py [--keep] [--only-add]    KUAFU_SOURCE_DIR, KUAFU_BINARY_DIR: the tree and its build

--keep leaves the copy and names it; --only-add builds nothing.

The code is that of the templates of `kuafu new`, without what makes it a plug-in."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(os.environ.get("KUAFU_SOURCE_DIR", Path(__file__).resolve().parents[2])).resolve()
BINARY = Path(os.environ.get("KUAFU_BINARY_DIR", SOURCE / "build" / "release")).resolve()
TEMPLATES = "src/app/kuafu/templates"

MOST_PLACES = 4  # of one kind, outside of its new files
TESTS = {"unit_tests": "-PlanDocs.*", "memory_tests": "*"}    # a page of names is written anew by a program
COMPILED = {"optim": "adam.cpp", "oracle": "bert.cpp", "model": "attention.cpp", "parallel/tensor": "axis_types.cpp",
            "parallel/pipeline": "analysis.cpp", "memory": "chunks.cpp"}


def compiled(folder, file="added.cpp"):
    return f"{folder}/CMakeLists.txt", COMPILED[folder], "replace", f"{file} {COMPILED[folder]}"


# Kind: row of CONTRIBUTING.md, template, headers, new files, places elsewhere: file of src/kuafu or tests/,
# text of a line, and the line that goes before or after it, or in place of the text.
RECIPES = {
    "scheme": {
        "row": "tensor-parallel scheme",
        "headers": ["kuafu/parallel/tensor/interface.h", "kuafu/parallel/tensor/products.h", "kuafu/tensor/collectives.h"],
        "files": {"parallel/tensor/added.cpp": ("", """std::unique_ptr<TensorParallel> make_added_scheme(const Mesh& mesh) {
  return std::make_unique<MyScheme>(mesh);
}""")},
        "places": [
            ("plan/tensor_modes.def", "#undef KUAFU_TENSOR_MODE", "before",
             'KUAFU_TENSOR_MODE(kAdded, "added_scheme", line_axes, make_added_scheme, "columns, then rows: added")'),
            compiled("parallel/tensor"),
            ("tests/parallel/tensor/conformance_test.cpp", '{"3d", 8},', "before", '      {"added_scheme", 2},')],
        "conformance": ["added_scheme"],
        "plan": ["parallel.tensor.mode=added_scheme", "parallel.tensor.size=2"]},
    "optimizer": {
        "row": "optimizer",
        "headers": ["kuafu/optim/rule.h"],
        "files": {"optim/added.cpp": ("formula", "Rule make_added_rule(const OptimizerPlan& plan) { return make(plan); }"),
                  "oracle/added_formula.cpp": ("rule", "FORMULA")},
        "places": [
            ("plan/optimizers.def", "#undef KUAFU_OPTIMIZER", "before",
             'KUAFU_OPTIMIZER(kAdded, "added_optimizer", make_added_rule, added_formula,\n'
             '                .summary = "RMSProp: added", .keys = {"beta2", "epsilon"})'),
            compiled("optim"),
            compiled("oracle", "added_formula.cpp"),
            ("tests/engine/optimizers_test.cpp", '{"lamb", {{kind, "lamb"}}},', "before",
             '          {"added", {{kind, "added_optimizer"}}},')],
        "conformance": ["--optimizer", "added_optimizer"],
        "plan": ["optimizer.kind=added_optimizer", "parallel.data=2", "parallel.zero=2"]},
    "model": {
        "row": "model",
        "headers": ["kuafu/model/blocks.h"],
        "files": {"model/added.cpp": ("oracle", "Model make_added_model(const ModelPlan& plan, const Context& ctx) { return make(plan, ctx); }"),
                  "oracle/added.cpp": ("engine", "ORACLE")},
        "places": [
            ("plan/models.def", "#undef KUAFU_MODEL", "before",
             'KUAFU_MODEL(kAdded, "added_model", make_added_model, make_added_model,\n'
             '            .summary = "GPT whose branches count half: added")'),
            compiled("model"),
            compiled("oracle"),
            ("tests/oracle/cases.cpp", '{"gpt", {}},', "after", '      {"added", {{"model.kind", "added_model"}}},')],
        "conformance": ["--model", "added_model"],
        "plan": ["model.kind=added_model", "parallel.tensor.mode=1d", "parallel.tensor.size=2"]},
    "schedule": {
        "row": "pipeline schedule",
        "headers": ["kuafu/base/errors.h", "kuafu/parallel/pipeline/schedules.h"],
        "files": {"parallel/pipeline/added.cpp": ("", "Timetable added(PipeShape s) { return make(s); }")},
        "places": [
            ("parallel/pipeline/schedules.h", "Timetable zbv(", "after", "Timetable added(PipeShape s);"),
            ("parallel/pipeline/schedules.cpp", 'schedules.add("1f1b"', "before",
             '  schedules.add("added_schedule", "weight gradients wait for the end: added",\n'
             "                {added, 1, [=](PipeShape s, int) { return s.micro_batches; }});"),
            compiled("parallel/pipeline"),
            ("tests/parallel/pipeline/schedules_test.cpp", '{"zbv", zbv, 2,', "before",
             '    {"added", added, 1, nullptr, [](PipeShape s, int) { return s.micro_batches; }},')],
        "conformance": ["--schedule", "added_schedule"],
        "plan": ["parallel.pipeline.size=2", "parallel.pipeline.schedule=added_schedule", "train.micro_batch=2"]},
    "policy": {
        "row": "memory policy",
        "headers": ["kuafu/memory/room.h"],
        "files": {"memory/added.cpp": ("", "Choice added_policy(const Known& known) { return choose(known); }")},
        "places": [
            ("memory/policy.h", "Choice auto_policy(", "after", "Choice added_policy(const Known& known);"),
            ("memory/policies.def", "#undef KUAFU_POLICY", "before",
             'KUAFU_POLICY("added_policy", added_policy, .summary = "the largest leaves first: added", .keys = {"prefetch"})'),
            compiled("memory"),
            ("tests/memory/policies_test.cpp", '{"static", "lru", "belady"}', "replace", '{"static", "lru", "belady", "added_policy"}')],
        "conformance": ["--policy", "added_policy"],
        "plan": ["memory.policy=added_policy", "memory.device=1 GB", "parallel.data=2"]},
}


def body(kind, headers):
    """A template in namespace kuafu, up to what registers it."""
    text = (SOURCE / TEMPLATES / kind / f"my_{kind}.cpp").read_text()
    text = text[:text.index("void add(Registries& registries)")].rstrip()
    own = "\n".join(f'#include "{h}"' for h in headers)
    text = re.sub(r'#include <torch/version.h>\n|#include "[^"]*"\n', "", text)
    text = re.sub(r"\bkStd\b", "kAddedStd", text)  # files of a target are compiled together
    place = {"schedule": "namespace kuafu::pipeline", "policy": "namespace kuafu::memory"}.get(kind, "namespace kuafu")
    return re.sub(r"namespace \{\n\nusing namespace kuafu;\n(using [^\n]*\n)?", f"{own}\n\n{place} {{\nnamespace {{\n", text, count=1), place


def section(text, begin):
    """The function or class that begins there, with the comment before it."""
    at = text.index(begin)
    start = text.rindex("\n\n", 0, at) + 2
    end = text.index("\n}", at) + 2
    return text[start:end + text[end:].startswith(";")]


def new_files(kind, recipe):
    text, place = body(kind, recipe["headers"])
    for path, (without, maker) in recipe["files"].items():
        mine = text
        if kind == "optimizer":
            written = section(mine, "Tensor formula(")
            if path.startswith("oracle/"):
                yield path, ('#include <ATen/ATen.h>\n\n#include "kuafu/oracle/formulas.h"\n\n'
                             "namespace kuafu::oracle {\nnamespace {\n\nusing at::Tensor;\n\n"
                             + written.replace("formula(", "added_rule(").replace("oracle::", "")
                             + "\n\n}  // namespace\n\nUpdateRule added_formula() { return {.update = added_rule}; }\n\n"
                               "}  // namespace kuafu::oracle\n")
                continue
            mine = mine.replace(written, "")
        if kind == "model":
            oracle = section(mine, "class MyModelOracle")
            if path.startswith("oracle/"):
                yield path, ('#include <ATen/ATen.h>\n\n#include "kuafu/oracle/transformer.h"\n\n'
                             "namespace kuafu::oracle {\nnamespace {\n\nconstexpr double kShare = 0.5;\nusing at::Tensor;\n\n"
                             + re.sub(r"oracle::", "", oracle).replace("kAddedStd;", "kStd;")
                             + "\n\n}  // namespace\n\nstd::unique_ptr<Model> make_added_model(const ModelPlan& plan, uint64_t seed) {\n"
                               "  return std::make_unique<MyModelOracle>(plan, seed);\n}\n\n}  // namespace kuafu::oracle\n")
                continue
            mine = mine.replace(oracle, "")
        yield path, f"{mine.rstrip()}\n\n}}  // namespace\n\n{maker}\n\n}}  // {place}\n"


def edit(path, text, where, line):
    whole = path.read_text()
    if whole.count(text) != 1:
        sys.exit(f"{path}: {whole.count(text)} places have {text!r}; the recipe needs one")
    if where == "replace":
        path.write_text(whole.replace(text, line))
        return
    begin = whole.rindex("\n", 0, whole.index(text)) + 1
    end = whole.index("\n", whole.index(text)) + 1
    at = begin if where == "before" else end
    path.write_text(whole[:at] + line + "\n" + whole[at:])


def promised(row):
    """Files of src/kuafu and of tests that a row of CONTRIBUTING.md names; x is the new thing's name."""
    for line in (SOURCE / "CONTRIBUTING.md").read_text().splitlines():
        if not line.startswith(f"| {row} |"):
            continue
        names = re.findall(r"`([\w/.]+\.(?:cpp|h|txt|def))`", line)
        return {re.sub(r"\bx(_formula)?\.", r"added\1.", n).removeprefix("src/kuafu/") for n in names}
    sys.exit(f"CONTRIBUTING.md has no row '{row}'")


def copy_tree(to):
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-z"], capture_output=True)
    if listed.returncode == 0:
        files = [f for f in listed.stdout.decode().split("\0") if f and (SOURCE / f).is_file()]
    else:  # a tree without git
        files = [str(f.relative_to(SOURCE)) for f in SOURCE.rglob("*")
                 if f.is_file() and not {".venv", "build", ".git"} & set(f.relative_to(SOURCE).parts)]
    for f in files:
        (to / f).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(SOURCE / f, to / f)
    (to / ".venv").symlink_to(SOURCE / ".venv")


def add(tree, kind, recipe):
    touched = set()
    for path, text in new_files(kind, recipe):
        (tree / "src/kuafu" / path).write_text("// SPDX-License-Identifier: Apache-2.0\n" + text)
        touched.add(path)
    if len(recipe["places"]) > MOST_PLACES:
        sys.exit(f"{recipe['row']}: {len(recipe['places'])} places besides its files; CONTRIBUTING.md promises {MOST_PLACES}")
    for path, text, where, line in recipe["places"]:
        edit(tree / ("" if path.startswith("tests/") else "src/kuafu") / path, text, where, line)
        touched.add(path)
    if touched != promised(recipe["row"]):
        sys.exit(f"CONTRIBUTING.md, row '{recipe['row']}', names {sorted(promised(recipe['row']))}; adding one took {sorted(touched)}")
    print(f"{kind}: {len(recipe['files'])} new files, {len(recipe['places'])} places elsewhere, as CONTRIBUTING.md says", flush=True)


def run(what, *command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{what} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def main():
    home = Path(tempfile.mkdtemp(prefix="recipes-", dir=BINARY))
    try:
        copy_tree(home)
        for kind, recipe in RECIPES.items():
            add(home, kind, recipe)
        if "--only-add" in sys.argv:
            return
        began = time.monotonic()
        build = home / "build/release"
        # The flags of the tree's own build: ccache has what knows none of the five, and its precompiled header.
        run("configuring", "cmake", "--preset", "release", cwd=home)
        run("building", "cmake", "--build", build, "-j", os.cpu_count(), "--target", "kuafu", "kuafu-worker", *TESTS)
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
        for test, names in TESTS.items():
            run(test, build / "bin" / test, f"--gtest_filter={names}", "--gtest_brief=1", cwd=build,
                env=os.environ | {"KUAFU_SOURCE_DIR": str(home), "KUAFU_BINARY_DIR": str(build)})
            print(f"{test} pass with all of them", flush=True)
        kuafu = build / "bin/kuafu"
        for kind, recipe in RECIPES.items():
            run(f"conformance of the {kind}", kuafu, "conformance", *recipe["conformance"], "--sizes", 2)
            settings = [word for s in ["train.steps=3", *recipe["plan"]] for word in ("--set", s)]
            said = run(f"a run of the {kind}", kuafu, "run", home / "examples/gpt.toml", "--certify", *settings)
            if "equal" not in re.search(r"certificate +(\S.*)", said)[1]:
                sys.exit(f"the certificate of the {kind}: {said}")
            print(f"{kind}: conforms, certified equal", flush=True)
    finally:
        if "--keep" in sys.argv:
            print(home)
        else:
            shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
