/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs.h: libibverbs' interface, written for rnic: the names, values and layouts of rdma-core 44, and the same ABI.
 *
 * A program that was compiled against this file runs with rdma-core's libibverbs.so.1 as with rnic's, and one that was
 * compiled against rdma-core's file runs with either. Programs include this file, not its parts:
 *
 *   base       the system's types, names of objects, GIDs
 *   device     devices and ports, events           memory    domains, regions, windows
 *   work       requests and completions            queues    CQs, SRQs, WQs, QPs
 *   flow       rules for Ethernet frames           extended  ibv_wr_ and ibv_wc_ calls
 *   context    the tables of functions             functions what the library exports
 *   calls      verbs that go through the tables
 *   newer     what rdma-core 45 to 65 have added
 */
#ifndef INFINIBAND_VERBS_H
#define INFINIBAND_VERBS_H

#include <infiniband/verbs/calls.h>
#include <infiniband/verbs/newer.h>

#endif
