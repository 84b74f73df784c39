// SPDX-License-Identifier: Apache-2.0

// Pairs of queue pairs in one process, each driven by a goroutine: messages of eight bytes, verified.  Meanwhile the
// runtime collects garbage and interrupts its threads by signals, goroutines move between threads, and a process is started.
package main

/*
#include <infiniband/verbs.h>
#include <stdlib.h>

enum { PORT = 1 };

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *at, size_t length) { // ibv_reg_mr() is a macro
    return ibv_reg_mr(pd, at, length, IBV_ACCESS_LOCAL_WRITE);
}

static int connect_qp(struct ibv_qp *qp, struct ibv_qp *to, union ibv_gid gid) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = gid, .hop_limit = 64}}};
    if (!rc)
        rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    if (!rc)
        rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    return rc;
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	pairs    = 4
	messages = 500
	size     = 8
	page     = 4096
)

func need(right bool, what string, err error) {
	if !right {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
}

func openDevice(name string) *C.struct_ibv_context {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	need(list != nil, "ibv_get_device_list", err)
	defer C.ibv_free_device_list(list)
	for _, device := range unsafe.Slice(list, int(n)) {
		if C.GoString(C.ibv_get_device_name(device)) == name {
			context, err := C.ibv_open_device(device)
			need(context != nil, "ibv_open_device", err)
			return context
		}
	}
	need(false, "no device "+name, nil)
	return nil
}

type pair struct {
	channel  *C.struct_ibv_comp_channel
	cq       *C.struct_ibv_cq
	from, to *C.struct_ibv_qp
	mr       *C.struct_ibv_mr
	memory   unsafe.Pointer // what is sent, and what comes
}

func makePair(context *C.struct_ibv_context, pd *C.struct_ibv_pd, gid C.union_ibv_gid) *pair {
	var err error
	p := &pair{memory: C.aligned_alloc(page, page)} // in the heap of `rnic run`
	p.channel, err = C.ibv_create_comp_channel(context)
	need(p.channel != nil, "ibv_create_comp_channel", err)
	p.cq, err = C.ibv_create_cq(context, 16, nil, p.channel, 0)
	need(p.cq != nil, "ibv_create_cq", err)
	p.mr, err = C.reg_mr(pd, p.memory, page)
	need(p.mr != nil, "ibv_reg_mr", err)
	attr := C.struct_ibv_qp_init_attr{send_cq: p.cq, recv_cq: p.cq, qp_type: C.IBV_QPT_RC, sq_sig_all: 1}
	attr.cap = C.struct_ibv_qp_cap{max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1}
	p.from, err = C.ibv_create_qp(pd, &attr)
	need(p.from != nil, "ibv_create_qp", err)
	p.to, err = C.ibv_create_qp(pd, &attr)
	need(p.to != nil, "ibv_create_qp", err)
	need(C.connect_qp(p.from, p.to, gid) == 0 && C.connect_qp(p.to, p.from, gid) == 0, "ibv_modify_qp", nil)
	return p
}

// poll says whether there is a completion, which must be a good one.
func (p *pair) poll(wc *C.struct_ibv_wc) bool {
	n, err := C.ibv_poll_cq(p.cq, 1, wc)
	need(n >= 0, "ibv_poll_cq", err)
	need(n == 0 || wc.status == C.IBV_WC_SUCCESS, C.GoString(C.ibv_wc_status_str(wc.status)), nil)
	return n == 1
}

// wait returns what a completion was.  It sleeps in the library, with a thread of its own.
func (p *pair) wait() C.enum_ibv_wc_opcode {
	var wc C.struct_ibv_wc
	for !p.poll(&wc) {
		need(C.ibv_req_notify_cq(p.cq, 0) == 0, "ibv_req_notify_cq", nil)
		if p.poll(&wc) {
			break
		}
		var cq *C.struct_ibv_cq
		var context unsafe.Pointer
		rc, err := C.ibv_get_cq_event(p.channel, &cq, &context)
		need(rc == 0, "ibv_get_cq_event", err)
		C.ibv_ack_cq_events(cq, 1)
	}
	return wc.opcode
}

// send posts a receive and a SEND, and waits for both.  C memory has the requests: they point to one another.
func (p *pair) send(number uint64) {
	sge := (*[2]C.struct_ibv_sge)(C.calloc(2, C.sizeof_struct_ibv_sge))
	defer C.free(unsafe.Pointer(sge))
	for i := range sge {
		address := C.uint64_t(uintptr(p.memory)) + C.uint64_t(i*size)
		sge[i] = C.struct_ibv_sge{addr: address, length: size, lkey: p.mr.lkey}
	}
	recv := (*C.struct_ibv_recv_wr)(C.calloc(1, C.sizeof_struct_ibv_recv_wr))
	defer C.free(unsafe.Pointer(recv))
	recv.sg_list, recv.num_sge = &sge[1], 1
	wr := (*C.struct_ibv_send_wr)(C.calloc(1, C.sizeof_struct_ibv_send_wr))
	defer C.free(unsafe.Pointer(wr))
	wr.sg_list, wr.num_sge, wr.opcode = &sge[0], 1, C.IBV_WR_SEND
	var badRecv *C.struct_ibv_recv_wr
	var bad *C.struct_ibv_send_wr
	*(*uint64)(p.memory) = number
	need(C.ibv_post_recv(p.to, recv, &badRecv) == 0, "ibv_post_recv", nil)
	need(C.ibv_post_send(p.from, wr, &bad) == 0, "ibv_post_send", nil)
	seen := p.wait() | p.wait()
	need(seen == C.IBV_WC_SEND|C.IBV_WC_RECV, "both completions", nil)
	got := *(*uint64)(unsafe.Add(p.memory, size))
	need(got == number, fmt.Sprintf("%d came for %d", got, number), nil)
}

func (p *pair) destroy() {
	need(C.ibv_destroy_qp(p.from) == 0 && C.ibv_destroy_qp(p.to) == 0, "ibv_destroy_qp", nil)
	need(C.ibv_dereg_mr(p.mr) == 0 && C.ibv_destroy_cq(p.cq) == 0, "ibv_dereg_mr, ibv_destroy_cq", nil)
	need(C.ibv_destroy_comp_channel(p.channel) == 0, "ibv_destroy_comp_channel", nil)
	C.free(p.memory)
}

// disturb keeps the runtime busy until it is told to stop: loops that only a signal ends, garbage, other processes.
func disturb(stop *atomic.Bool, done *sync.WaitGroup) {
	defer done.Done()
	for n := 0; !stop.Load(); n++ {
		runtime.GC()
		x := 1
		for i := 0; i < 1_000_000; i++ {
			x = x*3 + i
		}
		need(x != 0, "an odd number", nil)
		if n%16 == 0 {
			out, err := exec.Command("true").CombinedOutput()
			need(err == nil, string(out), err)
		}
	}
}

func main() {
	context := openDevice(os.Args[1])
	pd, err := C.ibv_alloc_pd(context)
	need(pd != nil, "ibv_alloc_pd", err)
	var gid C.union_ibv_gid
	need(C.ibv_query_gid(context, C.PORT, 0, &gid) == 0, "ibv_query_gid", nil)
	var stop atomic.Bool
	var others, senders sync.WaitGroup
	others.Add(1)
	go disturb(&stop, &others)
	for i := 0; i < pairs; i++ {
		senders.Add(1)
		go func(i int) {
			defer senders.Done()
			p := makePair(context, pd, gid)
			for n := 0; n < messages; n++ {
				p.send(uint64(i)<<32 | uint64(n))
				runtime.Gosched()
			}
			p.destroy()
		}(i)
	}
	senders.Wait()
	stop.Store(true)
	others.Wait()
	need(C.ibv_dealloc_pd(pd) == 0 && C.ibv_close_device(context) == 0, "ibv_close_device", nil)
	fmt.Println("all is well")
}
