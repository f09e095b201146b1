# SPDX-License-Identifier: Apache-2.0
"""Where long work stands, on standard error: one line that is redrawn on a terminal, else a line every ten seconds."""

import shutil
import sys
import time

EVERY_S = 10.0           # between lines where there is no terminal; shorter work says nothing


class Progress:
    """step() before each of `total` parts of the work, close() before anything else is said."""

    def __init__(self, total, out=None, now=time.monotonic):
        self.total, self.done, self.out, self.now = total, 0, out or sys.stderr, now
        self.began = self.told = now()
        self.is_drawn = False

    def step(self, name):
        line = f"{self.done}/{self.total}  {name}"
        self.done += 1
        if self.out.isatty():
            self.out.write(f"\r\033[K{line[:shutil.get_terminal_size().columns - 1]}")
            self.is_drawn = True
        elif (now := self.now()) - self.told >= EVERY_S:
            self.told = now
            self.out.write(f"report: {line}, after {self.told - self.began:.0f} s\n")
        self.out.flush()

    def close(self):
        if self.is_drawn:
            self.out.write("\r\033[K")
            self.out.flush()
        self.is_drawn = False

    def of(self, drawings, kind):
        """`drawings` {name: function}, each of which tells its name when it is called."""
        def told(name, draw):
            def stepped(*arguments):
                self.step(f"{kind} {name}")
                return draw(*arguments)
            return stepped
        return {name: told(name, draw) for name, draw in drawings.items()}
