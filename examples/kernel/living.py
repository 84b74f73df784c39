# SPDX-License-Identifier: Apache-2.0
"""Noticing that a peer is no more when nothing says so, because its whole machine has died.

Over RoCE a connection on which nobody sends stays as it is. So a program that waits for a message writes no
bytes at all to its peer now and then: an RDMA WRITE of length 0 needs no key, and is acknowledged as any
other. When it is not, it completes with an error, after the retries of the connection. RDMA-CM
then asks the peer to agree to the end. A kernel is asked for a minute before DISCONNECTED comes.
Over iWARP TCP is not acknowledged, and rnic ends the connection.
"""

from __future__ import annotations

from contextlib import suppress

from rnic import WC, WCStatus
from rnic.rdmacm import CmId

PROBE = 5.0  # seconds without a message


def write_nothing(cm_id: CmId) -> WC:
    """The completion of a WRITE of no bytes; no other work request may be under way."""
    cm_id.post_write(remote_addr=0, rkey=0)
    return cm_id.get_send_comp()


def next_receive(cm_id: CmId) -> WC:
    """Wait for the completion of a receive.

    Of a client that is no more it is the failed one of the WRITE. The id is then about to be disconnected:
    DISCONNECTED comes.
    """
    while True:
        with suppress(TimeoutError):
            return cm_id.get_recv_comp(PROBE)
        probe = write_nothing(cm_id)
        if probe.status is WCStatus.RETRY_EXC_ERR:
            print(f"{cm_id.get_peer_addr()}: does not acknowledge any more", flush=True)
            cm_id.disconnect()
        if probe.status is not WCStatus.SUCCESS:
            return probe
