# SPDX-License-Identifier: Apache-2.0
"""The exceptions of verbs."""

import errno as _errno
import os
import resource
from typing import Any

__all__ = ["PostError", "VerbsError", "exhausted", "with_limit"]


def with_limit(code: int, text: str) -> str:
    """The text of an error; if descriptors are used up, with the limit that was reached."""
    if code == _errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        cure = f"RLIMIT_NOFILE is {limit} (ulimit -n)"
    elif code == _errno.ENFILE:
        cure = "of the whole machine, /proc/sys/fs/file-max"
    else:
        return text
    return text if cure in text else f"{text or os.strerror(code)}: {cure}"


def exhausted(error: BaseException | int) -> str:
    """The text of an error, with the limit of the process or the machine that was reached."""
    code = error if isinstance(error, int) else getattr(error, "errno", None)
    text = os.strerror(error) if isinstance(error, int) else str(error) or type(error).__name__
    if code in (_errno.EMFILE, _errno.ENFILE):
        return with_limit(code, text)
    if code == _errno.ENOMEM or isinstance(error, MemoryError):
        return f"{text}: see RLIMIT_AS (ulimit -v), the control group's memory and vm.max_map_count"
    if isinstance(error, RuntimeError):  # threading.Thread.start()
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limits = f"RLIMIT_NPROC (ulimit -u, {limit}), the control group's pids.max and RLIMIT_AS (ulimit -v)"
        return f"{text}: see {limits}"
    return text


class VerbsError(OSError):
    """A verb failed: `errno` says how, `verb` which one, and `strerror` why, in words.

    It is raised where the function of libibverbs would return an error, with the errno of its man page.
    """

    verb: str

    def __init__(self, errno: int, text: str = "", verb: str = "") -> None:
        super().__init__(errno, text or os.strerror(errno))
        self.verb = verb

    def __str__(self) -> str:
        name = _errno.errorcode.get(self.errno or 0, f"errno {self.errno}")
        return f"{self.verb}: {self.strerror} [{name}]" if self.verb else f"{self.strerror} [{name}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno, self.strerror, self.verb)


class PostError(VerbsError):
    """A chain was posted only in part: the requests before `bad_wr` were posted, it and those after it were
    not (ibv_post_send(3)).
    """

    bad_wr: Any
    """The SendWR or RecvWR that was refused."""
    index: int
    """Its place in the chain, counted from 0, which is the number of posted requests."""

    def __init__(
        self, errno: int, text: str = "", verb: str = "", bad_wr: Any = None, index: int = 0
    ) -> None:
        super().__init__(errno, text, verb)
        self.bad_wr = bad_wr
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno, self.strerror, self.verb, None, self.index)
