# SPDX-License-Identifier: Apache-2.0
"""Calls that are to fail are counted as a program makes them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rnic import QPType
from rnic.ucma import Server, layouts
from rnic.ucma.layouts import SOCKADDR_IB, Cmd
from rnic.ucma.sockaddrs import AF_IB
from rnic.wire import PortSpace
from ucma.client import Device, sockaddr


class First:
    """The first call of a name fails."""

    errno = errno.ENOMEM

    def __init__(self, call: str) -> None:
        self.call = call

    def hits(self, n: int, /) -> bool:
        return n == 1


@pytest.mark.parametrize("call", ["rdma_create_id", "rdma_bind_addr"])
def test_what_librdmacm_probes_is_not_counted(tmp_path: Path, call: str) -> None:
    where = str(tmp_path / "ucma")
    with Server(where, [First(call)]), Device(where) as device:
        made = device.good(Cmd.CREATE_ID, layouts.CREATE_ID, ps=PortSpace.IB, qp_type=QPType.RC)
        probe = layouts.ID_RESP.read(made)["id"]
        address = SOCKADDR_IB.write(family=AF_IB)
        fields = {"id": probe, "addr": address, "addr_size": len(address)}
        device.good(Cmd.BIND, layouts.BIND, **fields)
        device.destroy_id(probe)

        def run() -> int:
            made, data = device.command(Cmd.CREATE_ID, layouts.CREATE_ID, uid=1, ps=PortSpace.TCP)
            number = layouts.ID_RESP.read(data)["id"]
            return made or device.command(Cmd.BIND_IP, layouts.BIND_IP, id=number, addr=sockaddr(0))[0]

        assert [run(), run()] == [-errno.ENOMEM, 0]
