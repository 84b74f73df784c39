/* SPDX-License-Identifier: Apache-2.0
 *
 * What RDMA-CM's server does to a queue pair of the program, as the kernel's iw_cm does by itself: over iWARP, where whoever
 * makes the connection moves the queue pair.  The server's answers to commands have such orders behind their data
 * (src/rnic/ucma/orders.py has the same layout), librnic_preload.so reads them, and libibverbs.so carries them out.
 */
#ifndef RNIC_IBVERBS_ORDERS_H
#define RNIC_IBVERBS_ORDERS_H

#include <stdint.h>

enum order_kind { ORDER_BEGIN = 1, ORDER_CLOSE, ORDER_END }; /* to RTS, with a stream; SQD; ERR */

struct order {
    uint64_t guid; /* of the device, host byte order */
    uint32_t qp_num;
    uint32_t kind;
    uint32_t rtr, initiator, crc, markers_in, markers_out, rfc7306; /* struct rnic_stream_attr's */
    uint32_t max_dest_rd_atomic, max_rd_atomic;
};

#define ORDER_FDS 2 /* ORDER_BEGIN has them: the connection, and the line */

/* 0 or -errno.  The descriptors are the library's in any case. */
typedef int order_function(const struct order *order, const int fds[ORDER_FDS]);

/* librnic_preload.so's, where that is loaded: libibverbs.so says who carries out orders. */
__attribute__((weak, visibility("default"))) void rnic_preload_take_orders(order_function *function);

#endif
