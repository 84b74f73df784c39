# SPDX-License-Identifier: Apache-2.0
"""Times as the communication manager writes them: 4.096 us * 2^n, n of five bits (IBA 12.7)."""

from __future__ import annotations

PACKET_LIFE_TIME = 16  # n of the time that a packet can be under way over RoCE, 0.27 s; older kernels: 18
RESPONSE_TIMEOUT = 20  # n of the time that an answer may take, 4.3 s: the kernel's
MAX_CM_RETRIES = 15  # how often a message is sent again: the kernel's
LONGEST = 24  # n of the longest time that is waited for a peer's sake, 69 s: a peer may write 31, 2.4 hours

LONGEST_ACK = (
    21  # n of the longest time without an ACK that a peer can ask for, 8.6 s; older kernels ask for 20
)


def iba_ns(code: int) -> int:
    """Nanoseconds of a 5-bit code, those of `LONGEST` at most."""
    return 4096 << min(code, LONGEST)


def ack_timeout(ack_delay: int, packet_life_time: int) -> int:
    """The code of the time after which a packet without ACK is lost (IBA 12.7.34).

    It stands for twice the life time and the peer's delay. A code can only double, so their sum is rounded:
    one more than the larger of the two codes when the smaller is at least half of it.
    """
    way, delay = packet_life_time + 1, ack_delay
    return min(31, max(way, delay) + (abs(way - delay) <= 1))


def peer_ack_timeout(asked: int, own: int) -> int:
    """The code of a queue pair's timeout when the peer has a say in it (IBA 12.7.34).

    0 stands for no timeout at all (IBA 9.9.2.1.2), and so for a peer whose death is never noticed: then it is
    our own sum. What is longer than `LONGEST_ACK` is cut.
    """
    return min(asked or own, LONGEST_ACK)


def retries_within(wait: int, retries: int) -> int:
    """How often a message is sent again, every `wait` ns, for a peer's sake: `LONGEST` bounds the sum."""
    return min(retries, max(0, iba_ns(LONGEST) // wait - 1))
