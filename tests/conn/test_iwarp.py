# SPDX-License-Identifier: Apache-2.0
"""What rnic.connect() does on iWARP alone."""

from __future__ import annotations

import socket
import threading

import pytest

import rnic


@pytest.mark.parametrize("crc", ["on", "off"])
def test_crcs_are_switched_by_the_environment(monkeypatch: pytest.MonkeyPatch, crc: str) -> None:
    monkeypatch.setenv("RNIC_MPA_CRC", crc)
    agreed: list[bool] = []
    attach = rnic.QP.attach_stream

    def note(qp: rnic.QP, sock: socket.socket, attr: rnic.StreamAttr) -> None:
        agreed.append(attr.crc)
        attach(qp, sock, attr)

    monkeypatch.setattr(rnic.QP, "attach_stream", note)
    with rnic.listen("127.0.0.1", 0, device="iwarp_lo") as listener:
        at = listener.address[:2]
        caller = threading.Thread(target=lambda: rnic.connect(*at, device="iwarp_lo").close())
        caller.start()
        with listener.accept(30) as served:
            served.close()
        caller.join(30)
    assert agreed == [crc == "on"] * 2
