# SPDX-License-Identifier: Apache-2.0
"""Tokens whose weights lie on a disk, by `kuafu generate --weights disk` and by transformers under accelerate's disk_offload: the same weights, prompts and
disk, greedy, f32, one thread, in turns. Each side is a process that gets so much memory, what the system keeps of files included, and no more: a memory
cgroup, which needs root.

    sudo scripts/transformers.sh experiments/micro/disk_generation.py [--layers 24 --hidden 1536 --heads 12] [--batch 4] [--prompt 32] [--tokens 8]
                                                                      [--memory 1.5] [--disk DIR] [--rounds 5] [--json results/benchmarks/disk_generation.json]

Timed are the tokens behind the first one, for each of which all weights are read. Tokens are held to be the same in every round."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import accelerate
import generation
import torch
import transformers

sys.path.insert(0, str(generation.ROOT / "scripts" / "report"))

import provenance

CGROUPS = Path("/sys/fs/cgroup")


class MemoryLimit:
    """What is started in it has so many bytes together."""

    def __init__(self, size):
        is_old = (CGROUPS / "memory").is_dir()
        self.folder = (CGROUPS / "memory" if is_old else CGROUPS) / f"kuafu-{os.getpid()}"
        try:
            self.folder.mkdir()
            (self.folder / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(size))
        except OSError as error:
            raise SystemExit(f"cannot make a memory cgroup ({error}): this benchmark needs root, and a system with the memory controller") from error

    def run(self, words, **more):
        into = self.folder / "cgroup.procs"
        done = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                              env=os.environ | {"OMP_NUM_THREADS": "1"} | more, preexec_fn=lambda: into.write_text(str(os.getpid())))
        if done.returncode:
            raise SystemExit(f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def end(self):
        self.folder.rmdir()


def by_kuafu(options, own, limit):
    found = own / "found.json"
    tiers = {"memory.policy": "host", "memory.chunk_size": "8MiB", "memory.prefetch": 2, "memory.disk_path": own}
    limit.run([generation.BIN / "kuafu", "generate", "/dev/null", "--checkpoint", own / "saved", "--file", own / "prompts", "--tokens", options.tokens, "--json", found,
               "--weights", "disk", *generation.plan_words(options), *(w for key, value in tiers.items() for w in ("--set", f"{key}={value}"))])
    made = json.loads(found.read_text())["generation"]
    return made["seconds"] - max(p["first_token_s"] for p in made["prompts"]), [p["tokens"] for p in made["prompts"]]


def by_accelerate(options, own, limit):
    for file in (own / "offloaded").iterdir():      # what the system keeps of it from when it was written is nobody's memory
        with file.open("rb") as written:
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    said = limit.run([sys.executable, __file__, "--side", own, "--tokens", options.tokens, "--prompt", options.prompt])
    answer = json.loads(said.splitlines()[-1])
    return answer["seconds"], answer["tokens"]


def side(options):
    """The process of accelerate's side."""
    torch.set_num_threads(1)
    config = transformers.AutoConfig.from_pretrained(options.side / "theirs")
    with accelerate.init_empty_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    model.tie_weights()
    accelerate.disk_offload(model, options.side / "offloaded", execution_device=torch.device("cpu"))
    lines = (options.side / "prompts").read_text().splitlines()
    times, tokens = generation.by_transformers(options, model, torch.tensor([list(line.encode()) for line in lines]))
    print(json.dumps({"seconds": times["decoding_s"], "tokens": tokens}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 24), ("hidden", 1536), ("heads", 12), ("batch", 4), ("prompt", 32), ("tokens", 8), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--memory", type=float, default=1.5, metavar="GB", help="of each side; default %(default)s")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), metavar="DIR", help="where weights lie; default %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options)
        return
    found = provenance.begin(generation.BIN.parent, options.json, ("kuafu-worker",)) if options.json else None
    weights = 4 * 12 * options.layers * options.hidden ** 2
    if weights < 1.2e9 * options.memory:
        raise SystemExit(f"weights of {weights / 1e9:.2f} GB and memory of {options.memory} GB a side: take more layers, or less memory, so that they do not stay in it")
    limit = MemoryLimit(int(options.memory * 1e9))
    try:
        with tempfile.TemporaryDirectory(dir=options.disk) as own:
            own = Path(own)
            generation.called("run", "/dev/null", "--checkpoint", own / "saved", *generation.plan_words(options))
            generation.called("export", own / "saved", "--format", "hf", "--out", own / "theirs")
            model = transformers.AutoModelForCausalLM.from_pretrained(own / "theirs", dtype=torch.float32)
            accelerate.utils.offload_state_dict(own / "offloaded", model.state_dict())
            del model
            (own / "prompts").write_text("".join(line + "\n" for line in generation.lines_of(options)))
            os.sync()
            rounds = []
            for r in range(options.rounds):
                sides = [("kuafu", by_kuafu), ("accelerate", by_accelerate)]
                made = {name: of(options, own, limit) for name, of in (sides if r % 2 == 0 else reversed(sides))}
                if made["kuafu"][1] != made["accelerate"][1]:
                    raise SystemExit("the tokens are not the same: nothing is told")
                rounds.append({name: seconds for name, (seconds, _) in made.items()})
                print(f"round {r + 1} of {options.rounds}: " + ", ".join(f"{name} {1e3 * s / (options.tokens - 1):.0f} ms a token" for name, s in rounds[-1].items()),
                      file=sys.stderr)
    finally:
        limit.end()
    ratios = sorted(r["accelerate"] / r["kuafu"] for r in rounds)
    print(f"{weights / 1e9:.2f} GB of weights, {options.memory} GB of memory: accelerate / kuafu {statistics.median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f} "
          f"of {options.rounds} rounds")
    if options.json:
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items() if k not in ("json", "side", "disk")}
        provenance.write(options.json, {"benchmark": "disk_generation", "settings": settings, "rounds": rounds, "ratios": ratios, "weights_bytes": weights,
                                        "compared": {"verdict": "equal", "what": "greedy tokens of both sides in every round", "tokens": options.batch * options.tokens},
                                        "transformers": transformers.__version__, "accelerate": accelerate.__version__, "provenance": found})


if __name__ == "__main__":
    main()
