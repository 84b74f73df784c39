# SPDX-License-Identifier: Apache-2.0
"""The RC example of the RDMA-aware programming manual: SEND, then RDMA READ, then RDMA WRITE.

Without a host it is the server, with one the client:

    python rc_example.py [-p PORT] [-d DEVICE] [-g GID_INDEX] [HOST]

main() has the ten steps of a typical application in their order. Either end can be the original in C: both
exchange the same 34 bytes over TCP (address, R_Key, QP number, LID, GID; network order), and one letter to
finish each step.
"""

import argparse
import socket
import struct
import sys
import time

import rnic
from rnic import MTU, AccessFlags, QPAttr, QPState, SendFlags, WROpcode

MESSAGE = b"SEND operation      \0"
READ_TEXT = b"RDMA read operation \0"
WRITE_TEXT = b"RDMA write operation\0"
ADDRESS = struct.Struct("!QIIH16s")  # cm_con_data_t: addr, rkey, qp_num, lid, gid
POLL_SECONDS = 10
ACCESS = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_READ | AccessFlags.REMOTE_WRITE


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="SEND, RDMA READ and RDMA WRITE between two processes.")
    parser.add_argument("host", nargs="?", help="the server; without it: be the server")
    parser.add_argument("-p", "--port", type=int, default=19875, help="TCP port of the exchange (19875)")
    parser.add_argument("-d", "--ib-dev", help="device (the first one)")
    parser.add_argument("-g", "--gid-idx", type=int, default=0, help="index into the GID table (0)")
    return parser.parse_args()


def meet(host: str | None, port: int) -> socket.socket:
    """A TCP connection to the other end, for the exchange of addresses."""
    if host:
        return socket.create_connection((host, port), timeout=60)
    with socket.create_server(("", port)) as listener:
        print(f"waiting on port {port} for TCP connection", flush=True)
        return listener.accept()[0]


def swap(sock: socket.socket, mine: bytes) -> bytes:
    """Send these bytes, and return as many of the peer's."""
    sock.sendall(mine)
    theirs = b""
    while len(theirs) < len(mine):
        more = sock.recv(len(mine) - len(theirs))
        if not more:
            sys.exit("the other end has closed the TCP connection")
        theirs += more
    return theirs


def connect(qp: rnic.QP, gid_index: int, peer_qpn: int, peer_gid: bytes) -> None:
    """Move the queue pair from INIT to RTR to RTS, with the attributes that each transition needs."""
    path = rnic.AHAttr(dgid=rnic.GID(peer_gid), sgid_index=gid_index, hop_limit=1, port_num=1)
    qp.modify(
        QPAttr(
            qp_state=QPState.RTR,
            path_mtu=MTU.MTU_256,
            dest_qp_num=peer_qpn,
            rq_psn=0,
            max_dest_rd_atomic=1,
            min_rnr_timer=0x12,
            ah_attr=path,
        )
    )
    qp.modify(QPAttr(qp_state=QPState.RTS, timeout=0x12, retry_cnt=6, rnr_retry=0, sq_psn=0, max_rd_atomic=1))


def complete(cq: rnic.CQ) -> rnic.WC:
    """Wait for the next completion, which must be a success."""
    until = time.monotonic() + POLL_SECONDS
    while not (found := cq.poll(1)):
        if time.monotonic() > until:
            sys.exit(f"no completion within {POLL_SECONDS} s")
    if found[0].status != rnic.WCStatus.SUCCESS:
        sys.exit(found[0].explain())
    return found[0]


def text(mr: rnic.MR) -> str:
    """The text in the buffer."""
    return bytes(mr.buf[: len(MESSAGE)]).split(b"\0")[0].decode(errors="replace")


def main() -> None:
    """Run one end."""
    args = options()
    is_client = args.host is not None
    sock = meet(args.host, args.port)
    with (
        sock,
        rnic.open_device(args.ib_dev) as ctx,  # 1. get the device list, 2. open a device
        ctx.alloc_pd() as pd,  # 3. a protection domain
        pd.alloc_mr(len(MESSAGE), ACCESS) as mr,  # 4. registered memory
        ctx.create_cq(1) as cq,  # 5. a completion queue
        pd.create_qp(
            rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.RC, sq_sig_all=True)
        ) as qp,  # 6.
    ):
        whole = [rnic.SGE(mr, offset=0, length=len(MESSAGE))]
        if not is_client:
            mr.buf[:] = MESSAGE
        gid = ctx.query_gid(1, args.gid_idx)
        mine = ADDRESS.pack(mr.addr, mr.rkey, qp.qp_num, ctx.query_port(1).lid, bytes(gid))
        addr, rkey, qpn, _lid, peer_gid = ADDRESS.unpack(swap(sock, mine))  # 7. who the other end is
        qp.modify(QPAttr(qp_state=QPState.INIT, port_num=1, pkey_index=0, qp_access_flags=ACCESS))
        if is_client:
            qp.post_recv(rnic.RecvWR(sg_list=whole))  # before the server can send
        connect(qp, args.gid_idx, qpn, peer_gid)  # 8. a connected queue pair
        swap(sock, b"Q")

        def post(opcode: WROpcode) -> None:  # 9. post work, and poll for its completion
            wr = rnic.SendWR(opcode=opcode, sg_list=whole, send_flags=SendFlags.SIGNALED)
            wr.remote_addr, wr.rkey = addr, rkey
            qp.post_send(wr)
            complete(cq)

        if is_client:
            complete(cq)
            print(f"Message is: '{text(mr)}'")
        else:
            post(WROpcode.SEND)
            mr.buf[:] = READ_TEXT  # what the client will read
        swap(sock, b"R")
        if is_client:
            post(WROpcode.RDMA_READ)
            print(f"Contents of server's buffer: '{text(mr)}'")
            mr.buf[:] = WRITE_TEXT
            post(WROpcode.RDMA_WRITE)
        swap(sock, b"W")
        if not is_client:
            print(f"Contents of server buffer: '{text(mr)}'")
    # 10. everything is closed, the last made first


if __name__ == "__main__":
    main()
