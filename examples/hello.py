# SPDX-License-Identifier: Apache-2.0
"""Two queue pairs in one process, connected over the loopback device: one writes into memory of the other."""

import rnic
from rnic import AccessFlags

ctx = rnic.open_device("roce_lo")
pd, cq = ctx.alloc_pd(), ctx.create_cq(16)
init = rnic.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=rnic.QPType.RC)
a, b = pd.create_qp(init), pd.create_qp(init)
rnic.connect_qps(a, b)  # from RESET to RTS; show=print prints each change of state

source = pd.reg_mr(bytearray(b"hello, RDMA"), AccessFlags.LOCAL_WRITE)
target = pd.alloc_mr(4096, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE)
write = rnic.SendWR(opcode=rnic.WROpcode.RDMA_WRITE, sg_list=[rnic.SGE(source, offset=0, length=11)])
write.remote_addr, write.rkey, write.send_flags = target.addr, target.rkey, rnic.SendFlags.SIGNALED
a.post_send(write)
while not (done := cq.poll(1)):
    pass
print(done[0].status.name, bytes(target.buf[:11]))
