/* SPDX-License-Identifier: Apache-2.0
 *
 * No timer runs for what has not left this host.  But what has left is waited for no longer because something else of the
 * same queue pair is on its way.
 */
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "ext.h"
#include "live.h"
#include "wire/opcode.h"

#define READS 8
#define READ_BYTES 65536
#define SENT 200 /* a work request's id */
#define QUEUED 100000 /* bytes that a socket holds while it sends */
#define STREAM_S 20 /* the stream ends at the latest */

static _Atomic int queued; /* what a socket says that it has not sent yet: it moves whenever it is asked */
static _Atomic int asked;

/* In the C library's place. */
int ioctl(int fd, unsigned long request, ...) {
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (request != SIOCOUTQ)
        return (int)syscall(SYS_ioctl, fd, request, arg);
    *(int *)arg = atomic_load(&queued) ? atomic_load(&queued) + atomic_fetch_add(&asked, 1) % 2 : 0;
    return 0;
}

static struct live l;

static void lose_the_next(int opcode) {
    struct rnic_fault fault = {.seed = 1, .lose[0] = {opcode, 1, 1}};
    CHECK_EQ(ext_faults(l.ctx)->set(l.ctx, &fault, NULL), 0);
}

static void read_again(struct rnic_qp *b, uint64_t id) {
    live_post(&l, b, RNIC_WR_RDMA_READ, id, READ_BYTES * id, READ_BYTES, &l);
}

/* Goes on reading, without a pause, until the SEND is complete. */
static bool stream_until_sent(struct rnic_qp *b) {
    double until = live_seconds() + STREAM_S;
    bool sent = false;
    for (int reads = READS; reads;) {
        struct rnic_wc wc;
        if (l.ops->poll_cq(l.cq, 1, &wc) != 1)
            continue;
        CHECK_EQ(wc.status, RNIC_WC_SUCCESS);
        sent |= wc.wr_id == SENT;
        if (wc.wr_id >= READS)
            continue;
        if (sent || live_seconds() > until)
            reads--;
        else
            read_again(b, wc.wr_id);
    }
    return sent;
}

/* b reads from a, whose one SEND is lost: the last bytes of the answers are never gone. */
static void test_a_lost_send_is_repeated_while_answers_go_out(void) {
    live_open(&l, -1);
    struct rnic_qp *a = live_qp(&l), *b = live_qp(&l);
    live_join(&l, a, &l, b, 14, 7);
    atomic_store(&queued, QUEUED);
    live_post_recv(&l, b, 100, 0, 64);
    for (uint64_t i = 0; i < READS; i++)
        read_again(b, i);
    CHECK_EQ(live_wait(&l).status, RNIC_WC_SUCCESS); /* the stream has begun */
    read_again(b, 0);
    lose_the_next(ROCE_RC_SEND_ONLY);
    live_post(&l, a, RNIC_WR_SEND, SENT, 0, 64, &l);
    CHECK(stream_until_sent(b));
    atomic_store(&queued, 0);
    CHECK_EQ(l.ops->destroy_qp(a, NULL), 0);
    CHECK_EQ(l.ops->destroy_qp(b, NULL), 0);
    live_close(&l);
}

int main(void) {
    live_isolate();
    RUN(test_a_lost_send_is_repeated_while_answers_go_out);
    return check_done();
}
