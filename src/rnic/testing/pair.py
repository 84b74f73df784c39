# SPDX-License-Identifier: Apache-2.0
"""One end of a connection with everything that it needs, and a pair of connected ends."""

from __future__ import annotations

import math
from contextlib import ExitStack
from errno import ENODEV
from time import monotonic
from types import TracebackType
from typing import Any, Self

from rnic._nic.nic import MR, WC
from rnic.enums import AccessFlags
from rnic.errors import VerbsError
from rnic.times import after
from rnic.verbs.connect import Options, connect_both
from rnic.verbs.context import Context
from rnic.verbs.device import Device, get_device_list, open_device
from rnic.verbs.qp import QPCap, QPInitAttr

__all__ = ["ALL_ACCESS", "End", "Pair", "loopback"]

ALL_ACCESS = (
    AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_ATOMIC
)
"""All that a peer can be allowed, but for windows and FLUSH."""

_LOOPBACK = "lo"


def loopback() -> Device:
    """The first device of the list that is on the loopback interface: the RoCE one, or with
    $RNIC_TRANSPORT=iwarp the iWARP one.

    Raises VerbsError: ENODEV if there is none.
    """
    for device in get_device_list():
        if device.netdev == _LOOPBACK:
            return device
    raise VerbsError(ENODEV, f"{_LOOPBACK} has no device: it needs an address", "open_device")


class _Closes:
    """Closes at the end of a `with` block what was made in it, the last first."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def close(self) -> None:
        """Close everything that this object has made."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, traceback)


class End(_Closes):
    """A queue pair in RESET, with its own context, protection domain, completion channel and completion
    queue.

    `device` is whatever open_device() takes, by default loopback(). `ctx` uses an open context instead, which
    stays open. close(), or the end of a `with` block, closes everything, including memory().
    """

    def __init__(
        self,
        device: str | int | Device | None = _LOOPBACK,
        *,
        ctx: Context | None = None,
        cap: QPCap | None = None,
        cqe: int = 1024,
        sq_sig_all: bool = False,
        **open_options: Any,
    ) -> None:
        super().__init__()
        with ExitStack() as stack:
            self.ctx = ctx or stack.enter_context(
                open_device(loopback() if device == _LOOPBACK else device, **open_options)
            )
            self.pd = stack.enter_context(self.ctx.alloc_pd())
            self.channel = stack.enter_context(self.ctx.create_comp_channel())
            self.cq = stack.enter_context(self.ctx.create_cq(cqe, self.channel))
            init = QPInitAttr(send_cq=self.cq, recv_cq=self.cq, sq_sig_all=sq_sig_all, cap=cap or QPCap())
            self.qp = stack.enter_context(self.pd.create_qp(init))
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        return f"<End {self.ctx!r} {self.qp!r}>"

    def memory(self, nbytes: int, access: AccessFlags = ALL_ACCESS) -> MR:
        """Allocate memory and register it; close() of this end frees it."""
        return self._stack.enter_context(self.pd.alloc_mr(nbytes, access))

    def register(self, buffer: Any, access: AccessFlags = ALL_ACCESS) -> MR:
        """Register the memory of a buffer, until close() of this end."""
        return self._stack.enter_context(self.pd.reg_mr(buffer, access))

    def wait(self, n: int = 1, timeout: float | None = 60.0) -> list[WC]:
        """Wait for exactly `n` completions, and return them, whatever their status; it sleeps until they are
        there.

        `timeout` is in seconds. At its end it raises TimeoutError, whose `completions` are those that have
        come.
        """
        found = self.cq.poll(n)
        ends = after(timeout)
        deadline = math.inf if ends is None else ends
        while len(found) < n:
            self.cq.req_notify()
            more = self.cq.poll(n - len(found))
            found += more
            if not more:
                self._sleep(deadline, n, found)
        return found

    def _sleep(self, deadline: float, n: int, found: list[WC]) -> None:
        try:
            self.channel.get_cq_event(max(0.0, deadline - monotonic()))
        except TimeoutError:
            error = TimeoutError(f"{len(found)} of {n} completions came in time: {found}")
            error.completions = found  # type: ignore[attr-defined]
            raise error from None
        self.cq.ack_events()

    def wait_ok(self, n: int = 1, timeout: float | None = 60.0) -> list[WC]:
        """Wait as wait() does, but raise RuntimeError for a completion that failed, with its explanation."""
        found = self.wait(n, timeout)
        for wc in found:
            if not wc.ok:
                raise RuntimeError(wc.explain())
        return found


class Pair(_Closes):
    """Two connected ends, `a` and `b`, in this process.

    Each end has a context of its own, so data goes from one to the other as between two processes. `options`
    are for both connections, `options_b` for b's if it differs. Other arguments are those of End.
    """

    def __init__(
        self,
        device: str | int | Device | None = _LOOPBACK,
        *,
        options: Options | None = None,
        options_b: Options | None = None,
        **end_options: Any,
    ) -> None:
        super().__init__()
        with ExitStack() as stack:
            self.a = stack.enter_context(End(device, **end_options))
            self.b = stack.enter_context(End(device, **end_options))
            connect_both(self.a.qp, self.b.qp, options or Options(), options_b)
            self._stack = stack.pop_all()

    def __repr__(self) -> str:
        return f"<Pair a={self.a!r} b={self.b!r}>"
