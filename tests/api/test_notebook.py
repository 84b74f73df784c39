# SPDX-License-Identifier: Apache-2.0
"""How objects look in a notebook; what comes from a peer is text there."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from typing import Any

import pytest

import rnic
from rnic import notebook


class Cells(HTMLParser):
    """The texts of a table, and which elements it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: set[str] = set()
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)
        self.elements.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(thing: Any) -> list[str]:
    cells = Cells(thing._repr_html_())
    assert cells.elements <= {"table", "caption", "b", "tr", "th", "td"}
    return cells.texts


def row(thing: Any, name: str) -> str:
    texts = shown(thing)
    return texts[texts.index(name) + 1]


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a&lt;b", "'\"><img src=x>", "\x1b[31m\x00\u202e"]
)
def test_what_is_shown_is_text(text: str) -> None:
    cells = Cells(notebook.table(text, [(text, text)]))
    assert cells.elements <= {"table", "caption", "b", "tr", "th", "td"}
    wanted = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    assert cells.texts == [wanted] * 3


def test_a_long_value_is_cut() -> None:
    assert len(notebook.table("", [("", "x" * 100_000)])) < 1000


def test_devices_ports_and_counters() -> None:
    (device,) = (one for one in rnic.get_device_list() if one.name == "roce_lo")
    assert shown(device)[0] == "Device"
    assert row(device, "netdev") == "lo"
    with device.open() as ctx:
        assert row(ctx, "device") == "roce_lo"
        assert row(ctx, "GID 0") in ("::ffff:127.0.0.1", "::1", str(ctx.query_gid(1, 0)))
        assert row(ctx.query_port(1), "state") == "ACTIVE"
        assert shown(rnic.Counters({"tx_packets": 0}))[0] == "Counters"
        counted = rnic.Counters({"tx_packets": 3, "rx_packets": 0})
        assert row(counted, "tx_packets").startswith("3 (")
        assert "rx_packets" not in shown(counted)
    assert "EINVAL" in row(ctx, "state") or "closed" in row(ctx, "state")


def test_completions() -> None:
    with rnic.open_device("roce_lo") as ctx, ctx.alloc_pd() as pd, ctx.create_cq(4) as cq:
        init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.RC)
        with pd.create_qp(init) as a, pd.create_qp(init) as b:
            rnic.connect_qps(a, b)
            a.post_send(
                rnic.SendWR(wr_id=7, opcode=rnic.WROpcode.RDMA_WRITE, send_flags=rnic.SendFlags.SIGNALED)
            )
            good = poll(cq)
            assert (row(good, "wr_id"), row(good, "status"), row(good, "opcode")) == (
                "7",
                "SUCCESS",
                "RDMA_WRITE",
            )
            with pd.reg_mr(bytearray(8), rnic.AccessFlags(0)) as mr:
                wr = rnic.SendWR(
                    opcode=rnic.WROpcode.RDMA_WRITE, sg_list=[rnic.SGE(mr)], rkey=1, remote_addr=1
                )
                wr.send_flags = rnic.SendFlags.SIGNALED
                a.post_send(wr)
                bad = poll(cq)
            assert row(bad, "status") == "REM_ACCESS_ERR"
            assert row(bad, "explanation") == bad.explain()


def poll(cq: rnic.CQ) -> rnic.WC:
    while not (found := cq.poll(1)):
        pass
    return found[0]


@pytest.mark.parametrize("device", ["roce_lo", "iwarp_lo"])
def test_connections(device: str) -> None:
    with rnic.listen("127.0.0.1", 0, device=device) as server:
        accepted: list[rnic.Connection] = []
        thread = threading.Thread(target=lambda: accepted.append(server.accept()))
        thread.start()
        with rnic.connect("127.0.0.1", server.port, device=device) as conn:
            thread.join()
            conn.send(b"message")
            assert shown(conn)[0] == "Connection"
            assert row(conn, "device") == device
            assert row(conn, "peer") == str(("127.0.0.1", server.port))
            assert row(conn, "closed") == "False"
            ends = f"{conn.local_address} to {conn.peer_address} on {device}"
            assert repr(conn) == f"<Connection {ends}, open>"
            accepted[0].abort()
            with pytest.raises(rnic.EndpointError):
                conn.close()
        assert row(conn, "closed") == "True"
        assert row(conn, "device") == device
        assert repr(conn) == f"<Connection {ends}, released>"


@pytest.mark.parametrize(
    ("host", "device", "name"),
    [
        ("127.0.0.1", "iwarp_lo", "iwarp_lo"),
        ("0.0.0.0", "iwarp_lo", "iwarp_lo"),
        ("0.0.0.0", None, "all devices"),
    ],
)
def test_listeners(host: str, device: str | None, name: str) -> None:
    with rnic.listen(host, 0, device=device) as server:
        assert shown(server)[0] == "Listener"
        assert row(server, "device") == name
        assert row(server, "address") == str((host, server.port))
        assert row(server, "closed") == "False"
        assert repr(server) == f"<Listener at {(host, server.port)} on {name}>"
    assert row(server, "closed") == "True"
    assert row(server, "device") == name
