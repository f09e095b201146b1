# SPDX-License-Identifier: Apache-2.0
"""What a rank holds: resident bytes as Linux tells them, and bytes that PyTorch's allocator has given
out, which Kuafu's memory book counts in the same way (every block asked of the allocator, whatever
it is for; what kernels and libraries take by themselves is in neither)."""

import time

import torch


def _status(field):
    with open("/proc/self/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def resident():
    """Bytes resident now."""
    return _status("VmRSS")


def peak():
    """Most bytes resident since restart_peak()."""
    return _status("VmHWM")


def restart_peak():
    with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
        file.write("5")


class TensorBytes:
    """Counts from its making on; mark() where a peak begins to count."""

    def __init__(self):
        self._profiler = torch.autograd.profiler.profile(use_kineto=True, profile_memory=True)
        self._profiler.__enter__()
        self._begin = 0

    def mark(self):
        """Call where nothing is under way: the clock is the profiler's to some microseconds."""
        self._begin = time.time_ns()

    def peak(self):
        """Most bytes live at once since the last mark. Ends the counting."""
        self._profiler.__exit__(None, None, None)
        changes = sorted((e.start_ns(), e.nbytes())
                         for e in self._profiler.kineto_results.events() if e.name() == "[memory]")
        live = sum(change for when, change in changes if when < self._begin)
        highest = live
        for when, change in changes:
            if when >= self._begin:
                live += change
                highest = max(highest, live)
        return highest
