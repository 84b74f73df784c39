# SPDX-License-Identifier: Apache-2.0
"""Workers of pytest-xdist of which one dies: what it ran has failed, and what it had left others run.

xdist's own distribution by files hands on a dead worker's files whole, with what is done and with the test of
which it died. That test kills one worker after the other; and a worker that gets a file with nothing to do,
or with a single test, waits for more for ever.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_ENOUGH = 2  # tests that a worker has: it begins the last one only when it knows whether others follow


class Files(LoadFileScheduling):
    """`--dist loadfile` that outlives its workers."""

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker has ended; returns the test of which it died. Others run the rest of its files first."""
        left = [
            (scope, [name for name, done in tests.items() if not done])
            for scope, tests in self.assigned_work.pop(node).items()
        ]
        died_of = next((names.pop(0) for _, names in left if names), None)
        for scope, names in reversed(left):
            if names:
                self.workqueue[scope] = dict.fromkeys(names, False)
                self.workqueue.move_to_end(scope, last=False)
        for other in self.nodes:
            if other in self.registered_collections:
                self._reschedule(other)
        return died_of

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker files until it has enough to do, or tell it that there are no more."""
        if node.shutting_down:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) <= _ENOUGH:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def let_go_in_children() -> None:
    """Children that a worker has forked and left behind do not look like the worker to who waits for its end.

    Called before the worker opens anything: the pipes that it has are xdist's.
    """
    pipes = [
        fd for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()] if fd > 2 and _is_pipe(fd)
    ]
    os.register_at_fork(after_in_child=lambda: _let_go(pipes))


def _is_pipe(fd: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # the one by which the folder was read
        return False


def _let_go(pipes: list[int]) -> None:
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in pipes:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
