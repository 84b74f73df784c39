# SPDX-License-Identifier: Apache-2.0
"""A program of pyverbs whose queue pair an id of RDMA-CM makes; it imports nothing of rnic.

    python3 pyverbs_cm.py server|client ADDRESS PORT

The server sends back what it receives; the client compares and says that it is done; then the server ends the
connection. It ends after all completions that are looked at; that of the client's last SEND is not: a SEND
of siw, whose last bytes have gone, fails if the peer's end of the stream comes ahead of its completion.
"""

from __future__ import annotations

import sys

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

SIZE = 70_000
DATA = bytes(i * 7 % 251 for i in range(SIZE))


def make_id(address: str, port: str, *, listens: bool) -> CMID:
    flags = ce.RAI_PASSIVE if listens else 0
    where = {"src": address, "src_service": port} if listens else {"dst": address, "dst_service": port}
    info = AddrInfo(**where, port_space=ce.RDMA_PS_TCP, flags=flags)
    cap = QPCap(max_send_wr=4, max_recv_wr=4)
    return CMID(creator=info, qp_init_attr=QPInitAttr(qp_type=e.IBV_QPT_RC, cap=cap))


def receive(one: CMID) -> None:
    wc = one.get_recv_comp()
    assert (wc.status, wc.byte_len) == (e.IBV_WC_SUCCESS, SIZE), wc


def send(one: CMID, mr: object) -> None:
    one.post_send(mr)
    wc = one.get_send_comp()
    assert wc.status == e.IBV_WC_SUCCESS, wc


def wait_for_the_end(one: CMID) -> None:
    """The receive that nobody uses comes back."""
    wc = one.get_recv_comp()
    assert wc.status == e.IBV_WC_WR_FLUSH_ERR, wc
    one.get_send_comp()


def serve(address: str, port: str) -> None:
    listener = make_id(address, port, listens=True)
    listener.listen()
    one = listener.get_request()
    mr = one.reg_msgs(SIZE)
    one.post_recv(mr)
    one.accept()
    receive(one)
    one.post_recv(mr)
    send(one, mr)
    receive(one)
    one.disconnect()


def ask(address: str, port: str) -> None:
    one = make_id(address, port, listens=False)
    comes, goes = one.reg_msgs(SIZE), one.reg_msgs(SIZE)
    goes.write(DATA, SIZE)
    one.post_recv(comes)
    one.post_recv(comes)
    one.connect()
    send(one, goes)
    receive(one)
    assert comes.read(SIZE, 0) == DATA
    one.post_send(goes)
    wait_for_the_end(one)
    one.disconnect()
    print("the same bytes came back")


if __name__ == "__main__":
    {"server": serve, "client": ask}[sys.argv[1]](*sys.argv[2:])
