# SPDX-License-Identifier: Apache-2.0
"""What processes of one host say to each other over the port has lines of its own in a capture."""

from __future__ import annotations

import os
import select
import socket

import pytest

from rnic.capture.dissect import describe
from rnic.capture.pcap import Record
from rnic.testing import Options
from transport.conftest import Start
from transport.joining import join

ALL = 3  # ETH_P_ALL of packet(7)
NO_MORE = 0.5  # s without a packet, behind the last one that is looked for


@pytest.mark.wire
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can capture")
def test_no_datagram_of_processes_that_share_a_port_is_malformed(start: Start) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL)) as capture:
        capture.bind(("lo", 0))
        join(start(netns=None), start(netns=None), 4096, Options())
        lines = []
        while select.select([capture], [], [], NO_MORE)[0]:
            frame = capture.recv(65536)
            lines.append(describe(Record(0, frame, len(frame))))
    assert any("rnic shares the port: asks for the process at place" in line for line in lines)
    assert [line for line in lines if "malformed" in line] == []
