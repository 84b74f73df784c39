// SPDX-License-Identifier: Apache-2.0

//! Two queue pairs of one process: a message of eight bytes, verified.  The bindings are bindgen's, of verbs.h, as those of
//! Rust's crates are.  They lack what is inline in C, so posting and polling go by the context's table of functions.

#[allow(dead_code, deref_nullptr, non_camel_case_types, non_snake_case, non_upper_case_globals)]
mod verbs {
    include!(env!("VERBS"));
}

use std::ffi::{c_void, CStr};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use verbs::*;

const PORT: u8 = 1;
const SIZE: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);

unsafe fn open_device(name: &str) -> *mut ibv_context {
    let mut count = 0;
    let list = ibv_get_device_list(&mut count);
    assert!(!list.is_null());
    let mut context = null_mut();
    for i in 0..count as usize {
        let device = *list.add(i);
        if CStr::from_ptr(ibv_get_device_name(device)).to_str() == Ok(name) {
            context = ibv_open_device(device);
        }
    }
    ibv_free_device_list(list);
    assert!(!context.is_null(), "no device {name}");
    context
}

unsafe fn create_qp(pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr = zeroed();
    init.send_cq = cq;
    init.recv_cq = cq;
    init.cap.max_send_wr = 4;
    init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RC;
    init.sq_sig_all = 1;
    let qp = ibv_create_qp(pd, &mut init);
    assert!(!qp.is_null());
    qp
}

unsafe fn connect(qp: *mut ibv_qp, to: *mut ibv_qp) {
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = PORT;
    let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = (*to).qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = PORT;
    attr.ah_attr.grh.hop_limit = 64;
    assert_eq!(ibv_query_gid((*qp).context, PORT, 0, &mut attr.ah_attr.grh.dgid), 0);
    let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN;
    let mask = mask | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
    let mask = mask | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(ibv_modify_qp(qp, &mut attr, mask as i32), 0);
}

unsafe fn post_recv(qp: *mut ibv_qp, sge: &mut ibv_sge) {
    let mut wr: ibv_recv_wr = zeroed();
    wr.sg_list = sge;
    wr.num_sge = 1;
    let mut bad = null_mut();
    let post = (*(*qp).context).ops.post_recv.unwrap();
    assert_eq!(post(qp, &mut wr, &mut bad), 0);
}

unsafe fn post_send(qp: *mut ibv_qp, sge: &mut ibv_sge) {
    let mut wr: ibv_send_wr = zeroed();
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    let mut bad = null_mut();
    let post = (*(*qp).context).ops.post_send.unwrap();
    assert_eq!(post(qp, &mut wr, &mut bad), 0);
}

unsafe fn wait_for(cq: *mut ibv_cq, mut left: i32) {
    let poll = (*(*cq).context).ops.poll_cq.unwrap();
    let begin = Instant::now();
    while left > 0 {
        let mut wc: ibv_wc = zeroed();
        let n = poll(cq, 1, &mut wc);
        assert!(n >= 0 && begin.elapsed() < LIMIT);
        assert_eq!(wc.status, IBV_WC_SUCCESS);
        left -= n;
    }
}

#[cfg(not(test))] // the tests are bindgen's, of the layouts
fn main() {
    let name = std::env::args().nth(1).expect("a device's name");
    let mut memory = Box::new([[0u8; SIZE]; 2]);
    unsafe {
        let context = open_device(&name);
        let pd = ibv_alloc_pd(context);
        let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
        let at = memory.as_mut_ptr();
        let mr = ibv_reg_mr(pd, at as *mut c_void, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE as i32);
        assert!(!pd.is_null() && !cq.is_null() && !mr.is_null());
        let (from, to) = (create_qp(pd, cq), create_qp(pd, cq));
        connect(from, to);
        connect(to, from);
        let lkey = (*mr).lkey;
        let part = |at: *mut [u8; SIZE]| ibv_sge { addr: at as u64, length: SIZE as u32, lkey };
        *at = *b"Ferrous!";
        post_recv(to, &mut part(at.add(1)));
        post_send(from, &mut part(at));
        wait_for(cq, 2);
        assert_eq!(*at.add(1), *b"Ferrous!");
        assert_eq!(ibv_destroy_qp(from) | ibv_destroy_qp(to), 0);
        assert_eq!(ibv_dereg_mr(mr) | ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_dealloc_pd(pd) | ibv_close_device(context), 0);
    }
    println!("all is well");
}
