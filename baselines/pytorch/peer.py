# SPDX-License-Identifier: Apache-2.0
"""What the peers share: options, ranks as processes, step times, the serve protocol.

The time of a step runs from the moment the last rank ended the step before to the moment the last
rank ends this one; the clock is the machine's, the same for all ranks. While nobody asks for steps
the ranks sleep on a pipe and use no core.

The serve protocol: a line "run K" on the input makes the ranks do K more steps of the same training,
then one line {"samples": [seconds, ...], "losses": [...], "resident_bytes": [of each rank]} is
printed; "quit" or the end of the input ends the program."""

import argparse
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.multiprocessing as processes

import environment
import memory


def parse(about, ranks, least_ranks=1, has_micro_batches=False):
    parser = argparse.ArgumentParser(description=about)
    if has_micro_batches:
        parser.add_argument("--micro-batch", type=int, default=1, help="samples of each")
    for name, default in (("layers", 4), ("hidden", 256), ("heads", 4), ("sequence", 128),
                          ("batch", 8), ("steps", 20), ("warmup", 5), ("ranks", least_ranks),
                          ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--implementation", choices=("default", "foreach", "fused"),
                        default="default", help="loop of AdamW; default: what PyTorch chooses")
    parser.add_argument("--json", metavar="FILE", help="write the result to a file as well")
    parser.add_argument("--serve", action="store_true", help="wait for 'run K' lines on the input")
    parser.add_argument("--start", metavar="FILE",
                        help="parameters and tokens of kuafu-bench-step --export")
    parser.add_argument("--compile", action="store_true",
                        help="forward, loss and backward through torch.compile; the first step compiles")
    parser.add_argument("--count-memory", action="store_true",
                        help="tell the peak of the tensor bytes of each rank in the timed steps; "
                             "slows them")
    options = parser.parse_args()
    for name in ("layers", "hidden", "heads", "sequence", "batch", "ranks", "steps", "micro_batch"):
        if getattr(options, name, 1) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: at least 1")
    if options.ranks < least_ranks:
        parser.error(f"--ranks {options.ranks}: at least {least_ranks}")
    if options.warmup < 0:
        parser.error(f"--warmup {options.warmup}: at least 0")
    if options.hidden % options.heads:
        parser.error(f"--hidden {options.hidden} is no multiple of --heads {options.heads}")
    if ranks and options.ranks not in ranks:
        parser.error(f"--ranks {options.ranks}: this peer has {', '.join(map(str, ranks))}")
    if options.compile and (why_not := environment.lacks_for_compiling()):
        parser.error(f"--compile: {why_not}")
    return options


def _rank(rank, build, options, port, distributed, pipe, inherited):
    """One process: builds its part, then answers each number of steps with their times."""
    for end in inherited:             # else a rank would never see that the parent is gone
        end.close()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if distributed is not None:
        distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank,
                                       world_size=options.ranks)
    done = 0
    try:
        before = memory.resident()
        counter = memory.TensorBytes() if options.count_memory else None
        step = build(options, rank)
        pipe.send("ready")
        while (count := pipe.recv()) is not None:
            memory.restart_peak()
            if distributed is not None:
                distributed.barrier()
            if counter is not None:
                counter.mark()
            begin, ends, losses = time.perf_counter(), [], []
            for _ in range(count):
                losses.append(step(done))
                ends.append(time.perf_counter())
                done += 1
            pipe.send((begin, ends, losses, memory.peak() - before))
        if counter is not None:
            pipe.send(counter.peak())
    except EOFError:
        raise SystemExit(1) from None
    except Exception as error:                       # told to the parent, which ends all ranks
        pipe.send(f"rank {rank}: {type(error).__name__}: {error}")
        raise SystemExit(1) from error
    if distributed is not None:
        distributed.destroy_process_group()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """The processes of a peer."""

    def __init__(self, build, options, distributed):
        context = processes.get_context("fork")
        port = _free_port()
        self.pipes, self.workers = [], []
        for rank in range(options.ranks):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_rank, daemon=True,
                                     args=(rank, build, options, port, distributed, theirs,
                                           [*self.pipes, ours]))
            worker.start()
            theirs.close()
            self.pipes.append(ours)
            self.workers.append(worker)
        self._answers()

    def _answers(self):
        answers = []
        for pipe in self.pipes:
            try:
                answer = pipe.recv()
            except EOFError:
                answer = "a rank ended without an answer"
            if isinstance(answer, str) and answer != "ready":
                self.end(kill=True)
                sys.exit(answer)
            answers.append(answer)
        return answers

    def run(self, count):
        """`count` steps: (seconds of each, mean loss at each of the ranks that do not say None,
        resident bytes of each rank at their peak, without those from before the model was made)."""
        for pipe in self.pipes:
            pipe.send(count)
        answers = self._answers()
        marks = [min(begin for begin, _, _, _ in answers)]
        marks += [max(ends[i] for _, ends, _, _ in answers) for i in range(count)]
        known = [l for _, _, l, _ in answers if l[0] is not None]
        losses = [statistics.fmean(l[i] for l in known) for i in range(count)]
        return [b - a for a, b in zip(marks, marks[1:])], losses, [m for *_, m in answers]

    def tensor_bytes(self):
        """Peak of each rank in the last run; the ranks end. For --count-memory."""
        for pipe in self.pipes:
            pipe.send(None)
        answers = self._answers()
        for worker in self.workers:
            worker.join()
        return answers

    def end(self, kill=False):
        for pipe, worker in zip(self.pipes, self.workers):
            if kill:
                worker.kill()
            elif worker.is_alive():
                pipe.send(None)
        for worker in self.workers:
            worker.join()


def serve(ranks):
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 2 or words[0] != "run" or not words[1].isdigit() or int(words[1]) < 1:
            sys.exit(f"unknown request '{line.strip()}': send 'run K' with K >= 1, or 'quit'")
        samples, losses, resident = ranks.run(int(words[1]))
        print(json.dumps({"samples": samples, "losses": losses, "resident_bytes": resident}),
              flush=True)


def main(name, build, about, distributed=None, ranks=None, least_ranks=1, has_micro_batches=False):
    options = parse(about, ranks, least_ranks, has_micro_batches)
    team = Ranks(build, options, distributed)
    if options.serve:
        serve(team)
        team.end()
        return
    if options.warmup:
        team.run(options.warmup)
    samples, losses, resident = team.run(options.steps)
    tensors = team.tensor_bytes() if options.count_memory else None
    if tensors is None:
        team.end()
    result = {"peer": name, "torch": torch.__version__, "settings": vars(options),
              "threads_per_rank": 1, "host": os.uname().nodename,
              "step_time_s": {"median": statistics.median(samples), "samples": samples},
              "tokens_per_s": options.batch * options.sequence / statistics.median(samples),
              "loss": losses, "resident_bytes": resident, "tensor_bytes": tensors}
    print(json.dumps(result))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
