# SPDX-License-Identifier: Apache-2.0
"""What the two frames of a start-up agree on: revision, CRC, markers, READs, and who may send first.

RFC 5044, 7.1, and RFC 6581, 9. Where these leave a choice, Linux's siw decides.
"""

from __future__ import annotations

from enum import IntEnum

from rnic.records import Record
from rnic.wire.mpa import DEPTH_UNKNOWN, MPA_PRIVATE_BYTES, MpaControl, MpaFrame
from rnic.wire.rdmap import INSUFFICIENT_IRD, NO_MATCHING_RTR

NEWEST = 2
"""The newest revision that this end speaks; 1 is the oldest."""
PRIVATE_BYTES = MPA_PRIVATE_BYTES - MpaControl.SIZE
"""Private data of a program, in any revision."""


class Rtr(IntEnum):
    """The message by which an initiator makes a connection of equals ready (RFC 6581, 9.2)."""

    NONE = 0
    SEND = 1
    WRITE = 2
    READ = 3


class Options(Record):
    """What an end asks for."""

    revision: int = NEWEST
    crc: bool = True
    """CRCs; they are used if either end wants them."""
    markers: bool = False
    """Markers in what this end receives."""
    peer_to_peer: bool = True
    """Either end may send first, after an RTR message."""
    rfc7306: bool = True
    """This end has atomics and immediate data."""
    most_ird: int = 128
    """READs that this end can serve at the same time."""


class Depths(Record):
    """READs and atomics at the same time, of one end."""

    ird: int
    """That it serves."""
    ord: int
    """That it has outstanding."""


class Agreed(Record):
    """What holds for the stream, as this end sees it."""

    depths: Depths
    crc: bool = True
    markers_in: bool = False
    markers_out: bool = False
    rtr: Rtr = Rtr.NONE
    peer_to_peer: bool = False
    rfc7306: bool = False


class UnfitError(Exception):
    """The reply does not fit; the Terminate message's code says why (RFC 6581, 8)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def request(options: Options, depths: Depths, private_data: bytes) -> MpaFrame:
    """The frame of an initiator."""
    return MpaFrame(
        control=_asked_for(options, depths) if options.revision > 1 else None,
        private_data=private_data,
        crc=options.crc,
        markers=options.markers,
        rfc7306=options.rfc7306,
        revision=options.revision,
    )


def _asked_for(options: Options, depths: Depths) -> MpaControl:
    equals = options.peer_to_peer
    return MpaControl(
        ird=depths.ird,
        ord=depths.ord,
        peer_to_peer=equals,
        rtr_send=equals,
        rtr_write=equals,
        rtr_read=equals and depths.ord > 0,
    )


def wishes(asked: MpaFrame) -> Depths | None:
    """What a request asks of the responder, as that sees it; None: it does not say."""
    if asked.control is None or DEPTH_UNKNOWN in (asked.control.ird, asked.control.ord):
        return None
    return Depths(ird=asked.control.ord, ord=asked.control.ird)


def reply(options: Options, asked: MpaFrame, depths: Depths, private_data: bytes) -> tuple[MpaFrame, Agreed]:
    """The frame of a responder, and what is agreed then."""
    rtr = _choose(asked.control) if options.peer_to_peer else Rtr.NONE
    if rtr is Rtr.READ and not depths.ird:
        depths = Depths(ird=1, ord=depths.ord)  # which the RTR message needs
    agreed = Agreed(
        depths,
        crc=options.crc or asked.crc,
        markers_in=options.markers,
        markers_out=asked.markers,
        rtr=rtr,
        peer_to_peer=rtr is not Rtr.NONE,
        rfc7306=options.rfc7306 and asked.rfc7306,
    )
    frame = MpaFrame(
        is_reply=True,
        control=None if asked.control is None else _answer(agreed),
        private_data=private_data,
        crc=agreed.crc,  # siw goes by the reply alone
        markers=options.markers,
        rfc7306=options.rfc7306,
        revision=asked.revision,
    )
    return frame, agreed


def _choose(control: MpaControl | None) -> Rtr:
    """The RTR message, as siw prefers it; it proposes WRITE where an initiator names none."""
    if control is None or not control.peer_to_peer:
        return Rtr.NONE
    if control.rtr_write or not (control.rtr_read or control.rtr_send):
        return Rtr.WRITE
    return Rtr.READ if control.rtr_read else Rtr.SEND


def _answer(agreed: Agreed) -> MpaControl:
    return MpaControl(
        ird=agreed.depths.ird,
        ord=agreed.depths.ord,
        peer_to_peer=agreed.peer_to_peer,
        rtr_send=agreed.rtr is Rtr.SEND,
        rtr_write=agreed.rtr is Rtr.WRITE,
        rtr_read=agreed.rtr is Rtr.READ,
    )


def reject(asked: MpaFrame, private_data: bytes) -> MpaFrame:
    """The frame of a responder that refuses."""
    return MpaFrame(
        is_reply=True,
        control=None if asked.control is None else MpaControl(),
        private_data=private_data,
        crc=asked.crc,
        rejected=True,
        revision=asked.revision,
    )


def settle(options: Options, depths: Depths, asked: MpaFrame, answer: MpaFrame) -> Agreed:
    """What is agreed for the initiator, who wanted these depths. UnfitError if the reply does not fit."""
    rtr = _agreed_rtr(asked, answer)
    return Agreed(
        _agreed_depths(options, depths, answer.control),
        crc=asked.crc or answer.crc,
        markers_in=asked.markers,
        markers_out=answer.markers,
        rtr=rtr,
        peer_to_peer=rtr is not Rtr.NONE,
        rfc7306=asked.rfc7306 and answer.rfc7306,
    )


def _agreed_rtr(asked: MpaFrame, answer: MpaFrame) -> Rtr:
    ours, theirs = asked.control, answer.control
    if ours is None or theirs is None or not (ours.peer_to_peer and theirs.peer_to_peer):
        return Rtr.NONE
    if ours.rtr_write and theirs.rtr_write:
        return Rtr.WRITE
    if ours.rtr_read and theirs.rtr_read:
        return Rtr.READ
    if ours.rtr_send and theirs.rtr_send:
        return Rtr.SEND
    raise UnfitError(NO_MATCHING_RTR, "the peer wants an RTR message that this end has not offered")


def _agreed_depths(options: Options, ours: Depths, theirs: MpaControl | None) -> Depths:
    """As siw: this end has no more outstanding than the peer serves, and serves what the peer asks for if it
    can.
    """
    if theirs is None:
        return ours
    ird, ord_ = ours.ird, ours.ord
    if theirs.ird != DEPTH_UNKNOWN:
        ord_ = min(ord_, theirs.ird)
    if theirs.ord != DEPTH_UNKNOWN and theirs.ord > ird:
        if theirs.ord > options.most_ird:
            text = f"the peer has up to {theirs.ord} READs outstanding; this end serves {options.most_ird}"
            raise UnfitError(INSUFFICIENT_IRD, text)
        ird = theirs.ord
    return Depths(ird, ord_)
