# SPDX-License-Identifier: Apache-2.0
"""A program of the package `ibverbs` of PyPI: SEND, WRITE and READ between two queue pairs, content checked.

Its argument is the name of a device.
"""

import sys
from array import array

import ibverbs as ib

SIZE, HALF = 8192, 4096
RIGHTS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ


def done(cq, count):
    """Wait for so many completions, which are good."""
    while count:
        for wc in cq.poll(count):
            wc.raise_for_status()
            count -= 1


(device,) = (one for one in ib.get_device_list() if one.name == sys.argv[1])
memory = array("B", bytes(range(256)) * (HALF // 256) + bytes(HALF))
at = memory.buffer_info()[0]
with device.open() as context, context.alloc_pd() as pd, context.create_cq(64) as cq:
    port, gid = context.query_port(1), context.query_gid(1, 0)
    mr = pd.reg_mr(at, SIZE, RIGHTS)
    qps = [pd.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC)) for _ in range(2)]
    infos = [ib.local_qp_info(qp, port, gid, port=1, psn=0) for qp in qps]
    for qp, peer in zip(qps, reversed(infos), strict=True):
        ib.connect_rc(qp, ib.QPInfo.from_bytes(peer.to_bytes()), port=1, sgid_index=0, access=RIGHTS)
    first, second = qps
    for opcode in ib.WROpcode.RDMA_WRITE, ib.WROpcode.RDMA_READ, ib.WROpcode.SEND:
        memory[HALF:] = array("B", bytes(HALF))
        here, there = (HALF, 0) if opcode is ib.WROpcode.RDMA_READ else (0, HALF)
        expected = 1
        if opcode is ib.WROpcode.SEND:
            second.post_recv(ib.RecvWR(wr_id=2, sg_list=[ib.SGE(mr, HALF, offset=HALF)]))
            expected = 2
        first.post_send(
            ib.SendWR(
                wr_id=1,
                sg_list=[ib.SGE(mr, HALF, offset=here)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=at + there,
                rkey=mr.rkey,
            )
        )
        done(cq, expected)
        assert memory[:HALF] == memory[HALF:], opcode
    for thing in (*qps, mr):
        thing.close()
sys.stdout.write("all is well\n")
