// SPDX-License-Identifier: Apache-2.0

import com.sun.jna.Function;
import com.sun.jna.Memory;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;

/**
 * Two queue pairs of one process: eight bytes by RDMA WRITE, verified, while the collector runs. JNA calls libibverbs by name.
 * Fields of structs are read and written at their places in verbs.h on 64-bit machines; posting and polling go by the context's
 * table of functions.
 */
public final class Pair {
    private static final NativeLibrary VERBS = NativeLibrary.getInstance("libibverbs.so.1");
    private static final int OPS = 8, POLL_CQ = OPS + 88, POST_SEND = OPS + 200; // of struct ibv_context
    private static final int QP_NUM = 52, LKEY = 36, RKEY = 40; // of struct ibv_qp, ibv_mr
    private static final int BYTES = 8, LIMIT_S = 60;

    private static Pointer call(String name, Object... arguments) {
        return VERBS.getFunction(name).invokePointer(arguments);
    }

    private static Pointer need(String name, Object... arguments) {
        Pointer made = call(name, arguments);
        if (made == null) throw new IllegalStateException(name + " gave nothing");
        return made;
    }

    private static void check(String name, Object... arguments) {
        int code = VERBS.getFunction(name).invokeInt(arguments);
        if (code != 0) throw new IllegalStateException(name + " gave " + code);
    }

    private static Pointer open(String wanted) {
        Pointer list = need("ibv_get_device_list", new Object[] {null});
        Pointer context = null;
        for (Pointer device : list.getPointerArray(0))
            if (call("ibv_get_device_name", device).getString(0).equals(wanted)) context = need("ibv_open_device", device);
        VERBS.getFunction("ibv_free_device_list").invokeVoid(new Object[] {list});
        if (context == null) throw new IllegalStateException("no device " + wanted);
        return context;
    }

    private static Memory zeros(int bytes) {
        Memory made = new Memory(bytes);
        made.clear();
        return made;
    }

    private static Pointer createQp(Pointer pd, Pointer cq) {
        Memory init = zeros(64); // struct ibv_qp_init_attr
        init.setPointer(8, cq); // send_cq
        init.setPointer(16, cq); // recv_cq
        for (int place = 32; place < 48; place += 4) init.setInt(place, 1); // cap: requests and elements
        init.setInt(52, 2); // qp_type: RC
        init.setInt(56, 1); // sq_sig_all
        return need("ibv_create_qp", pd, init);
    }

    private static void connect(Pointer qp, Pointer to) {
        Memory attr = zeros(144); // struct ibv_qp_attr
        attr.setInt(0, 1); // qp_state: INIT
        attr.setInt(32, 1 | 2); // qp_access_flags: LOCAL_WRITE, REMOTE_WRITE
        attr.setByte(129, (byte) 1); // port_num
        check("ibv_modify_qp", qp, attr, 57); // STATE, PKEY_INDEX, PORT, ACCESS_FLAGS
        Memory gid = zeros(16);
        check("ibv_query_gid", CONTEXT, (byte) 1, 0, gid);
        attr.setInt(0, 2); // RTR
        attr.setInt(8, 3); // path_mtu: 1024
        attr.setInt(28, to.getInt(QP_NUM)); // dest_qp_num
        attr.write(56, gid.getByteArray(0, 16), 0, 16); // ah_attr.grh.dgid
        attr.setByte(56 + 21, (byte) 64); // ah_attr.grh.hop_limit
        attr.setByte(56 + 29, (byte) 1); // ah_attr.is_global
        attr.setByte(56 + 30, (byte) 1); // ah_attr.port_num
        check("ibv_modify_qp", qp, attr, 1216897); // STATE, AV, PATH_MTU, DEST_QPN, RQ_PSN, and the responder's
        attr.setInt(0, 3); // RTS
        attr.setByte(130, (byte) 14); // timeout
        attr.setByte(131, (byte) 7); // retry_cnt
        check("ibv_modify_qp", qp, attr, 77313); // STATE, TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN, MAX_QP_RD_ATOMIC
    }

    private static void write(Pointer qp, Pointer mr, Pointer from, Pointer to) {
        Memory element = zeros(16), request = zeros(128), bad = zeros(8); // struct ibv_sge, ibv_send_wr
        element.setLong(0, Pointer.nativeValue(from));
        element.setInt(8, BYTES);
        element.setInt(12, mr.getInt(LKEY));
        request.setPointer(16, element); // sg_list
        request.setInt(24, 1); // num_sge; opcode 0: RDMA_WRITE
        request.setLong(40, Pointer.nativeValue(to)); // wr.rdma.remote_addr
        request.setInt(48, mr.getInt(RKEY)); // wr.rdma.rkey
        int code = Function.getFunction(CONTEXT.getPointer(POST_SEND)).invokeInt(new Object[] {qp, request, bad});
        if (code != 0) throw new IllegalStateException("post_send gave " + code);
    }

    private static void complete(Pointer cq) {
        Function poll = Function.getFunction(CONTEXT.getPointer(POLL_CQ));
        Memory completion = zeros(48); // struct ibv_wc
        long until = System.nanoTime() + LIMIT_S * 1_000_000_000L;
        while (poll.invokeInt(new Object[] {cq, 1, completion}) == 0)
            if (System.nanoTime() > until) throw new IllegalStateException("no completion");
        if (completion.getInt(8) != 0) throw new IllegalStateException("status " + completion.getInt(8));
    }

    private static Pointer CONTEXT;

    public static void main(String[] arguments) {
        CONTEXT = open(arguments[0]);
        Pointer pd = need("ibv_alloc_pd", CONTEXT), cq = need("ibv_create_cq", CONTEXT, 4, null, null, 0);
        Memory memory = new Memory(1 << 16);
        Pointer mr = need("ibv_reg_mr", pd, memory, memory.size(), 1 | 2);
        Pointer from = createQp(pd, cq), to = createQp(pd, cq);
        connect(from, to);
        connect(to, from);
        for (long number = 1; number <= 200; number++) {
            memory.setLong(0, number);
            write(from, mr, memory, memory.share(4096));
            complete(cq);
            if (memory.getLong(4096) != number) throw new IllegalStateException("not what was written");
            if (number % 50 == 0) System.gc();
        }
        check("ibv_destroy_qp", from);
        check("ibv_destroy_qp", to);
        check("ibv_dereg_mr", mr);
        check("ibv_destroy_cq", cq);
        check("ibv_dealloc_pd", pd);
        check("ibv_close_device", CONTEXT);
        System.out.println("all is well");
    }
}
