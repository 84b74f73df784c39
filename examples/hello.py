# SPDX-License-Identifier: Apache-2.0
"""Two queue pairs in one process, connected over the loopback device: one writes into memory of the other."""

import rnic
from rnic import AccessFlags, QPAttr, QPState

ctx = rnic.open_device("roce_lo")
pd, cq = ctx.alloc_pd(), ctx.create_cq(16)
init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.RC)
a, b = pd.create_qp(init), pd.create_qp(init)
path = rnic.AHAttr(dgid=ctx.query_gid(1, 0), sgid_index=0, port_num=1, hop_limit=64)
to_init = {"pkey_index": 0, "port_num": 1, "qp_access_flags": AccessFlags.REMOTE_WRITE}
to_rtr = {"path_mtu": rnic.MTU.MTU_4096, "rq_psn": 0, "max_dest_rd_atomic": 1, "min_rnr_timer": 12}
to_rts = {"sq_psn": 0, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7, "max_rd_atomic": 1}
for qp, peer in ((a, b), (b, a)):
    qp.modify(QPAttr(qp_state=QPState.INIT, **to_init))
    qp.modify(QPAttr(qp_state=QPState.RTR, dest_qp_num=peer.qp_num, ah_attr=path, **to_rtr))
    qp.modify(QPAttr(qp_state=QPState.RTS, **to_rts))

source = pd.reg_mr(bytearray(b"hello, RDMA"), AccessFlags.LOCAL_WRITE)
target = pd.alloc_mr(4096, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
write = rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE, sg_list=[rnic.SGE(source, offset=0, length=11)])
write.remote_addr, write.rkey, write.send_flags = target.addr, target.rkey, rnic.SendFlags.SIGNALED
a.post_send(write)
while not (done := cq.poll(1)):
    pass
print(done[0].status.name, bytes(target.buf[:11]))
