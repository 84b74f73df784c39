# SPDX-License-Identifier: Apache-2.0
"""What is asked for is written as the Linux kernel writes it: the REQ and REP of a recorded rping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rdmacm.ends import exchange_of, joined
from rnic.capture import read_pcap
from rnic.cm import Connection
from rnic.rdmacm import ConnParam, Timing
from rnic.wire import (
    GSI_QPN,
    MAD,
    CmMessage,
    IpCmHeader,
    NotRoCEError,
    Packet,
    Rep,
    Req,
    parse_cm,
)

pytestmark = pytest.mark.roce

VECTORS = Path(__file__).parents[1] / "vectors"
ONE = ConnParam(responder_resources=1, initiator_depth=1, flow_control=False)


def recorded(kind: type[CmMessage]) -> CmMessage:
    for record in read_pcap(VECTORS / "rxe-rping.pcap"):
        try:
            packet = Packet.parse(record.data, record.linktype)
        except NotRoCEError:
            continue
        if packet.transport.bth.dqpn == GSI_QPN:
            message = parse_cm(MAD.parse(packet.transport.payload))
            if isinstance(message, kind):
                return message
    raise AssertionError(f"no {kind.__name__} in the capture")


def test_request_and_reply_have_the_kernels_form() -> None:
    theirs, their_rep = recorded(Req), recorded(Rep)
    assert isinstance(theirs, Req)
    assert isinstance(their_rep, Rep)
    with joined(asked=ONE, agreed=ONE, timing=Timing()) as pair:
        conn = exchange_of(pair.client)
        assert isinstance(conn, Connection)
        assert conn.req
        assert conn.rep
        ends = replace(theirs.primary, flow_label=0, ack_timeout=conn.req.primary.ack_timeout)
        ends = replace(ends, local_gid=conn.req.primary.local_gid, remote_gid=conn.req.primary.remote_gid)
        assert conn.req.primary == ends
        own = {
            name: getattr(conn.req, name)
            for name in (
                "local_comm_id",
                "local_ca_guid",
                "local_qpn",
                "starting_psn",
                "service_id",
                "path_mtu",
            )
        }
        header = IpCmHeader.parse(conn.req.private_data[: IpCmHeader.SIZE])
        kernels = IpCmHeader.parse(theirs.private_data[: IpCmHeader.SIZE])
        assert (header.major, header.minor, header.ip_version) == (kernels.major, kernels.minor, 4)
        same = replace(theirs, primary=ends, private_data=conn.req.private_data, **own)
        assert conn.req == same
        own = {
            name: getattr(conn.rep, name)
            for name in ("local_comm_id", "remote_comm_id", "local_ca_guid", "local_qpn", "starting_psn")
        }
        assert conn.rep == replace(their_rep, **own)


def test_each_end_says_where_the_other_begins() -> None:
    """The kernel's client sends from the REP's starting PSN on: in the capture, 1999110."""
    their_rep = recorded(Rep)
    assert isinstance(their_rep, Rep)
    assert their_rep.starting_psn == 1999110
    with joined(asked=ONE, agreed=ONE, timing=Timing()) as pair:
        conn = exchange_of(pair.client)
        assert isinstance(conn, Connection)
        assert conn.req
        assert conn.rep
        assert pair.client.qp
        assert pair.server.qp
        active, passive = pair.client.qp.query()[0], pair.server.qp.query()[0]
        assert active.sq_psn == passive.rq_psn == conn.rep.starting_psn
        assert passive.sq_psn == active.rq_psn == conn.req.starting_psn
