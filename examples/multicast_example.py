# SPDX-License-Identifier: Apache-2.0
"""The multicast example of the RDMA-aware programming manual: all members of a group get what one sends.

    python multicast_example.py -m GROUP -b ADDRESS        a member, as many as you like; start them first
    python multicast_example.py -m GROUP -b ADDRESS -s     the sender

ADDRESS is an address of this machine, and chooses the device. Each of the ten messages has 100 bytes and, as
its immediate data, the number of the sender's queue pair. The other members can be the original in C, which
is mckey of librdmacm.
"""

import argparse
import sys
import time

import rnic
from rnic import SGE, QPCap, SendFlags, SendWR, WROpcode
from rnic.rdmacm import CmId, EventChannel, EventType, PortSpace, UDParam, create_id

COUNT, SIZE = 10, 100
HEADER = 40  # bytes ahead of a datagram that was received: whence it came
WAIT = 30  # seconds


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Datagrams to all members of a multicast group.")
    parser.add_argument("-m", "--group", required=True, help="the group's address, 239.1.2.3 for example")
    parser.add_argument("-b", "--bind", required=True, help="an address of this machine")
    parser.add_argument("-s", "--sender", action="store_true", help="send; without it: receive")
    parser.add_argument("--pause", type=float, default=3, help="seconds for the others to join (3)")
    return parser.parse_args()


def expect(channel: EventChannel, kind: EventType) -> UDParam | None:
    """Wait for the next event, which must be of this kind; returns its parameters."""
    with channel.get_cm_event(WAIT) as event:
        if event.event is not kind:
            sys.exit(event.explain())
        return event.param if isinstance(event.param, UDParam) else None


def join(cm_id: CmId, channel: EventChannel, group: str) -> UDParam:
    """Join the group; returns the path to it, its queue pair number and its Q_Key."""
    cm_id.join_multicast((group, 0))
    found = expect(channel, EventType.MULTICAST_JOIN)
    assert found
    assert found.ah_attr
    print(f"joined {found.ah_attr.dgid}", flush=True)
    return found


def send(cm_id: CmId, group: UDParam, memory: rnic.MR) -> None:
    """Send all messages; none of them is acknowledged."""
    assert cm_id.pd
    assert cm_id.qp
    assert group.ah_attr
    with cm_id.pd.create_ah(group.ah_attr) as ah:
        wr = SendWR(opcode=WROpcode.SEND_WITH_IMM, sg_list=[SGE(memory, HEADER, SIZE)])
        wr.send_flags, wr.imm_data = SendFlags.SIGNALED, cm_id.qp.qp_num
        wr.ah, wr.remote_qpn, wr.remote_qkey = ah, group.qp_num, group.qkey
        for _ in range(COUNT):
            cm_id.qp.post_send(wr)
            if not (wc := cm_id.get_send_comp(WAIT)).ok:
                sys.exit(wc.explain())
    print(f"{COUNT} messages sent")


def receive(cm_id: CmId, buffer: bytearray) -> None:
    """Print the messages that come, and their senders."""
    for _ in range(COUNT):
        wc = cm_id.get_recv_comp(WAIT)
        if not wc.ok:
            sys.exit(wc.explain())
        text = bytes(buffer[HEADER : wc.byte_len]).split(b"\0")[0]
        print(f"{wc.byte_len - HEADER} bytes from queue pair {wc.imm_data}: {text!r}")


def main() -> None:
    """Run a member, or the sender."""
    args = options()
    with EventChannel() as channel, create_id(channel, PortSpace.UDP) as cm_id:
        cm_id.resolve_addr((args.bind, 0), (args.group, 0))  # which device leads to the group
        expect(channel, EventType.ADDR_RESOLVED)
        cm_id.create_qp(cap=QPCap(max_send_wr=COUNT, max_recv_wr=COUNT))
        buffer = bytearray(HEADER + SIZE)
        buffer[HEADER : HEADER + 7] = b"to all\0"
        with cm_id.reg_msgs(buffer) as memory:
            if not args.sender:
                for _ in range(COUNT):  # before the first message can come
                    cm_id.post_recv(memory)
            group = join(cm_id, channel, args.group)
            if args.sender:
                time.sleep(args.pause)
                send(cm_id, group, memory)
            else:
                receive(cm_id, buffer)
            cm_id.leave_multicast((args.group, 0))
            cm_id.destroy_qp()


if __name__ == "__main__":
    main()
