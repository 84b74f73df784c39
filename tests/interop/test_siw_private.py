# SPDX-License-Identifier: Apache-2.0
"""Private data between rnic and siw: of every length that siw takes and sends, and of more."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from errno import ECONNRESET, EINVAL, EPROTO
from typing import Any

import pytest
from cm_side import CmSide
from link import SIW, Link
from siw_ends import asking_in_revision

from conftest import OTHER
from rnic import rdmacm
from rnic.mpa import PRIVATE_BYTES

# There is no capture: ports of so many connections come again, and then tshark reads frames as FPDUs.
pytestmark = [pytest.mark.interop, pytest.mark.siw]

ENDS, REVISIONS = ["rnic", "kernel"], ["revision 2", "revision 1"]
# Bytes that an end sends and the other one understands. siw takes 256 in a frame, of which revision 2 needs
# 4, and tells its programs the length in 8 bits; it also counts in 8 bits what it sends, with these 4.
TRIES = 20
MOST = {
    ("rnic", "revision 2"): 252,
    ("rnic", "revision 1"): 255,
    ("kernel", "revision 2"): 251,
    ("kernel", "revision 1"): 255,
}
# What siw 6.1 tells now and then of a reject, if the end of the stream is right behind it.
FORGOTTEN = [["REJECTED", -ECONNRESET, ""], ["CONNECT_ERROR", -EINVAL, ""]]


def data_of(length: int) -> str:
    """Hexadecimal digits of so many bytes."""
    return bytes(i * 7 % 256 for i in range(length)).hex()


class Talk:
    """Two ends: the caller's calls are made here, the listener's meanwhile.

    What comes last at a start-up comes to siw: so siw is whose end leaves. If the other one left at once,
    siw 6.1 would fail, or crash its kernel where it waits for an RTR message.
    """

    def __init__(self, link: Link, connects: str, sides: dict[str, Any], pool: ThreadPoolExecutor) -> None:
        self.connects, self.pool = connects, pool
        self.caller, self.listener = sides[connects], sides[OTHER[connects]]
        self.ip = (link.guest_ip if connects == "rnic" else link.host_ip)["ipv4"]
        self.port = self.listener.listen(self.ip)

    def each(
        self, asks: list[str], answers: list[str], *, rejects: bool = False
    ) -> tuple[list[list[Any]], list[str]]:
        """What the caller was told of each connection, and the private data of each request."""
        rnic_calls = self.connects == "rnic"
        taken = self.pool.submit(self.listener.answer_each, answers, rejects=rejects, leaves=rnic_calls)
        try:
            told = self.caller.ask_each(self.ip, self.port, asks, leaves=not rnic_calls)
        finally:
            answered = taken.result()  # or the listener's error, which comes first
        return told, answered


@contextmanager
def talking(link: Link, connects: str, revision: str) -> Iterator[Talk]:
    """The revision is what the caller prefers."""
    link.set_siw(SIW[revision])
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        here, there = CmSide(rdmacm, device=link.device), link.siw_end(length=4096)
        stack.callback(here.close_ids)
        stack.callback(there.close)
        if (connects, revision) == ("rnic", "revision 1"):
            stack.enter_context(asking_in_revision(link, 1))
        yield Talk(link, connects, {"rnic": here, "kernel": there}, pool)


@pytest.mark.combinations(2, connects=ENDS, revision=REVISIONS)
def test_every_length(link: Link, connects: str, revision: str) -> None:
    """In requests, replies and rejects."""
    asked, answered = MOST[connects, revision], MOST[OTHER[connects], revision]
    with talking(link, connects, revision) as talk:
        count = max(asked, answered) + 1
        asks = [data_of(min(i, asked)) for i in range(count)]
        answers = [data_of(min(i, answered)) for i in reversed(range(count))]
        told, taken = talk.each(asks, answers)
        assert taken == asks
        assert told == [["ESTABLISHED", 0, one] for one in answers]
        for _ in range(TRIES):  # on a busy machine siw forgets many
            told, taken = talk.each(asks, answers, rejects=True)
            assert taken == asks
            lost = [i for i, one in enumerate(told) if connects == "kernel" and one in FORGOTTEN]
            assert [one for i, one in enumerate(told) if i not in lost] == [
                ["REJECTED", -ECONNRESET, one] for i, one in enumerate(answers) if i not in lost
            ]
            asks, answers = ([data[i] for i in lost if answers[i]] for data in (asks, answers))
            if not answers:
                break
        assert not answers


def test_a_request_that_is_too_long_for_siw(link: Link) -> None:
    """siw closes without a word, as if it knew revision 1 alone; in that 4 bytes more fit.

    It tells its programs of 256 bytes as of none. A reply or reject of more than 252 bytes in revision 2 is
    not tried here: it crashes the kernel of siw 6.1.
    """
    with talking(link, "rnic", "revision 2") as talk:
        fit = [253, 254, 255, 256]
        told, taken = talk.each([data_of(length) for length in fit], [""] * len(fit))
        assert [event for event, *_ in told] == ["ESTABLISHED"] * len(fit)
        assert taken == [data_of(length % 256) for length in fit]
        asks = [data_of(length) for length in (257, 400, PRIVATE_BYTES)]
        told, _ = talk.each(asks, [])
        assert told == [["REJECTED", -ECONNRESET, ""]] * len(asks)


def test_what_siw_counts_wrong(link: Link) -> None:
    """Frames of revision 2 with more than 251 bytes say that there are 256 less, with 252: none.

    A reply of this kind is not tried: siw 6.1 waits for an RTR message then, and its kernel crashes if the
    peer closes before that.
    """
    lengths = [252, 253, 254, 255]
    data = [data_of(length) for length in lengths]
    with talking(link, "kernel", "revision 2") as talk:
        told, taken = talk.each([*data, "aa"], ["bb"])
        assert [event for event, *_ in told] == ["REJECTED"] * len(lengths) + ["ESTABLISHED"]
        assert taken == ["aa"]
    with talking(link, "rnic", "revision 2") as talk:
        told, _ = talk.each([""] * len(lengths), data, rejects=True)
        assert told == [["REJECTED", -ECONNRESET, ""], *[["CONNECT_ERROR", -EPROTO, None]] * 3]
