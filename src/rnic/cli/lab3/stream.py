# SPDX-License-Identifier: Apache-2.0
"""What the end of an iWARP connection tells.

A SEND or WRITE is complete when TCP has taken it.  What the peer thinks of it comes later, in a Terminate
message, where RoCE has a NAK (RFC 5040, 4.8; docs/rooms/iwarp.md has the codes).  The end of a process looks
like the end of its connection.
"""

from __future__ import annotations

import rnic
from rnic import StreamEnd, WCStatus

_LAYER_RDMAP, _LAYER_DDP = 0, 1
_PROTECTION = {(_LAYER_RDMAP, 1), (_LAYER_DDP, 1)}  # a key, an address or a right: layer and type
_OWN_MEMORY = (_LAYER_RDMAP, 0, 0)  # of a receive, or of what the peer was sending
_NO_RECEIVE = (_LAYER_DDP, 2, 2)
_TURNED_DOWN = {
    _NO_RECEIVE: WCStatus.RNR_RETRY_EXC_ERR,
    (_LAYER_DDP, 2, 5): WCStatus.REM_INV_REQ_ERR,
}


def turned_down(end: rnic.StreamEvent) -> WCStatus | None:
    """How a work request would have failed that the peer has turned down, if it had not been complete."""
    if end.end is not StreamEnd.TERMINATED:
        return None
    if (end.layer, end.type) in _PROTECTION:
        return WCStatus.REM_ACCESS_ERR
    return _TURNED_DOWN.get((end.layer, end.type, end.code))


def is_misuse(end: rnic.StreamEvent) -> bool:
    """Whether the peer has used a key, an address or a right that it does not have."""
    return end.end is StreamEnd.REFUSED and (end.layer, end.type) in _PROTECTION


def words(end: rnic.StreamEvent, peer: str) -> str:
    """Why nothing more will come: what only the lab knows, or else what the event says of itself."""
    what = (end.layer, end.type, end.code)
    match end.end:
        case StreamEnd.TERMINATED if what == _OWN_MEMORY:
            return f"memory of work that the {peer} has posted is not registered any more"
        case StreamEnd.REFUSED if what == _NO_RECEIVE:
            return f"the {peer} sent a message out of turn, which met no receive"
        case StreamEnd.FIN | StreamEnd.CLOSED:
            return f"the {peer} disconnected, or its process has died"
        case _:
            return f"the connection to the {peer} has ended: {end.explain()}"
