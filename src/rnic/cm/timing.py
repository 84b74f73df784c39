# SPDX-License-Identifier: Apache-2.0
"""Times in the format of the communication manager: 4.096 us * 2^n, n of five bits (IBA 12.7)."""

from __future__ import annotations

PACKET_LIFE_TIME = 16  # n of the time that a packet can be under way over RoCE, 0.27 s; older kernels: 18
RESPONSE_TIMEOUT = 20  # n of the time that an answer may take, 4.3 s: the kernel's
MAX_CM_RETRIES = 15  # how often a message is sent again: the kernel's
LONGEST = 24  # n of the longest time that is waited for a peer's sake, 69 s: a peer may write 31, 2.4 hours

LONGEST_ACK = (
    21  # n of the longest time without an ACK that a peer can ask for, 8.6 s; older kernels ask for 20
)


def iba_ns(code: int) -> int:
    """The nanoseconds of a 5-bit code, at most those of `LONGEST`."""
    return 4096 << min(code, LONGEST)


def ack_timeout(ack_delay: int, packet_life_time: int) -> int:
    """The code of the time after which a packet without ACK is lost (IBA 12.7.34).

    It covers twice the life time and the peer's delay. A code can only double, so the sum is rounded: it is
    one more than the larger code if the smaller one is at least half of it.
    """
    way, delay = packet_life_time + 1, ack_delay
    return min(31, max(way, delay) + (abs(way - delay) <= 1))


def peer_ack_timeout(asked: int, own: int) -> int:
    """The code of a queue pair's timeout that the peer asks for, within our limits (IBA 12.7.34).

    0 would mean no timeout at all (IBA 9.9.2.1.2), and the death of the peer would never be noticed: then it
    is our own sum. A code above `LONGEST_ACK` is reduced to it.
    """
    return min(asked or own, LONGEST_ACK)


def retries_within(wait: int, retries: int) -> int:
    """How often to send a message again, every `wait` ns, for a peer: `LONGEST` limits the sum."""
    return min(retries, max(0, iba_ns(LONGEST) // wait - 1))
