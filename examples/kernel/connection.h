/* SPDX-License-Identifier: GPL-2.0 */
/*
 * How rw and blockdev connect with the peer whose memory they use.
 *
 * client.c shows each of these steps at length, in a module of its own.  Here they are functions
 * that sleep until a step is done.  They may be called in process context only, by one thread at a
 * time:
 *
 *	connection_resolve()		then c->id->device is known
 *	connection_make_queue_pair()	protection domain, completion queue, queue pair
 *	connection_connect()		then c->addr, c->length and c->rkey are what the peer offers
 *	connection_stop()		the connection ends, and all that was posted completes
 *	connection_close()		the same, and nothing is left
 *
 * The first three return 0 or a negative errno.  connection_close() is right after any of them,
 * also after one that has failed.
 */
#ifndef RNIC_CONNECTION_H
#define RNIC_CONNECTION_H

#include <linux/completion.h>
#include <linux/inet.h>
#include <linux/jiffies.h>
#include <linux/nsproxy.h>
#include <linux/printk.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "message.h"

#define CONNECTION_ADDRESS_MS	200	/* for an address to be found, at each try */
#define CONNECTION_TRIES	10
#define CONNECTION_ROUTE_MS	2000	/* for a route */
#define CONNECTION_ANSWER_MS	20000	/* for the peer to answer; RDMA-CM gives up sooner itself */
/*
 * How often RoCE sends a packet again.  Soft RoCE takes 7 for "without end": who waits for a
 * completion has a limit of time.  Fewer would be too few for a network that loses packets, since a
 * long message may lose one again and again before the peer has acknowledged anything.
 */
#define CONNECTION_RETRIES	7
/*
 * How long RoCE waits for an answer before that: 4.096 us << 17 = 0.5 s; without this it would be
 * 2 s.  Soft RoCE (6.1) waits so long for each packet of a READ's response that is lost.
 */
#define CONNECTION_ACK_TIMEOUT	17
#define CONNECTION_TIMEOUT_MAX	86400	/* seconds of `timeout`: as jiffies they fit into an int */
#define CONNECTION_READS	16	/* READs and atomics under way, if the device can */

struct connection {
	struct rdma_cm_id *id;		/* NULL: closed; id->qp is the queue pair */
	struct ib_pd *pd;
	struct ib_cq *cq;		/* of sends and receives */
	struct completion step;		/* the event that somebody waits for has come */
	int status;			/* that of the step */
	u64 addr;			/* of the peer's memory */
	u64 length;			/* bytes of it */
	u32 rkey;			/* the key to it */
	bool up;			/* established, and not given up by this end */
	/*
	 * Called when an established connection has ended, or its device is about to be removed,
	 * which waits for the connection to be closed.  It is called from the handler of events, so
	 * it must not close the connection itself: a handler that destroys its own id waits for its
	 * own end.
	 */
	void (*lost)(struct connection *c);
};

/* Take what the peer has offered in the private data of its answer: it is not trusted. */
static inline int connection_take_offer(struct connection *c, const struct rdma_conn_param *param)
{
	const struct rnic_offer *offer = param->private_data;

	if (!offer || param->private_data_len < sizeof(*offer))
		return -EPROTO;
	if (be32_to_cpu(offer->magic) != RNIC_MAGIC || be16_to_cpu(offer->version) != RNIC_VERSION)
		return -EPROTO;
	c->addr = be64_to_cpu(offer->addr);
	c->length = be64_to_cpu(offer->length);
	c->rkey = be32_to_cpu(offer->rkey);
	return c->addr + c->length < c->addr ? -EPROTO : 0;
}

/*
 * RDMA-CM calls this for each event of the id: in a work queue, so it may sleep, and never twice at
 * the same time. It must return 0: anything else destroys the id.
 */
static inline int connection_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct connection *c = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		c->status = 0;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		c->status = connection_take_offer(c, &event->param.conn);
		c->up = !c->status;
		pr_info("connected with %pISpc by %s\n", &id->route.addr.dst_addr,
			id->device->name);
		break;
	case RDMA_CM_EVENT_REJECTED:
		pr_info("refused: %s\n", rdma_reject_msg(id, event->status));
		c->status = -ECONNREFUSED;
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		c->status = event->status < 0 ? event->status : -EHOSTUNREACH;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		c->status = -ENOTCONN;
		if (c->up) {
			pr_info("lost the connection: %s\n", rdma_event_msg(event->event));
			c->lost(c);
		}
		break;
	default:	/* TIMEWAIT_EXIT, ADDR_CHANGE: nothing to do */
		return 0;
	}
	complete(&c->step);
	return 0;
}

/* Wait for the event that ends a step. */
static inline int connection_wait(struct connection *c, unsigned int ms)
{
	if (!wait_for_completion_timeout(&c->step, msecs_to_jiffies(ms)))
		return -ETIMEDOUT;
	return c->status;
}

/*
 * rdma_resolve_addr() asks the network for the peer's address there.  If the answer comes so soon
 * that the RDMA core does not wait for it yet, it looks again at the end of its time only.  So the
 * time is short, and there are several tries.
 */
static inline int connection_find(struct connection *c, const struct sockaddr_storage *to)
{
	int tries, err = -ETIMEDOUT;

	for (tries = 0; tries < CONNECTION_TRIES && err == -ETIMEDOUT; tries++) {
		reinit_completion(&c->step);
		err = rdma_resolve_addr(c->id, NULL, (const struct sockaddr *)to,
					CONNECTION_ADDRESS_MS);
		if (!err)
			err = connection_wait(c, CONNECTION_ANSWER_MS);
	}
	return err;
}

static inline int connection_resolve(struct connection *c, const char *addr, const char *port)
{
	struct sockaddr_storage to;
	struct rdma_cm_id *id;
	int err;

	/* An IPv4 or IPv6 address in words, and a port, as a socket's address. */
	err = inet_pton_with_scope(&init_net, AF_UNSPEC, addr, port, &to);
	if (err)
		return err;
	init_completion(&c->step);
	id = rdma_create_id(&init_net, connection_event, c, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	c->id = id;
	err = connection_find(c, &to);
	if (!err)
		err = rdma_set_ack_timeout(id, CONNECTION_ACK_TIMEOUT);
	if (err)
		return err;
	reinit_completion(&c->step);
	err = rdma_resolve_route(id, CONNECTION_ROUTE_MS);
	return err ? err : connection_wait(c, CONNECTION_ANSWER_MS);
}

/*
 * Make the queue pair that `attr` describes; its completion queue has `cqe` entries, and calls the
 * done functions in the context `poll`.
 */
static inline int connection_make_queue_pair(struct connection *c, struct ib_qp_init_attr *attr,
					     int cqe, enum ib_poll_context poll)
{
	struct ib_pd *pd;
	struct ib_cq *cq;

	pd = ib_alloc_pd(c->id->device, 0);
	if (IS_ERR(pd))
		return PTR_ERR(pd);
	c->pd = pd;
	cq = ib_alloc_cq(c->id->device, c, cqe, 0, poll);
	if (IS_ERR(cq))
		return PTR_ERR(cq);
	c->cq = cq;
	attr->qp_type = IB_QPT_RC;
	attr->sq_sig_type = IB_SIGNAL_REQ_WR;
	attr->port_num = c->id->port_num;
	attr->send_cq = cq;
	attr->recv_cq = cq;
	return rdma_create_qp(c->id, pd, attr);
}

static inline int connection_connect(struct connection *c)
{
	const struct ib_device_attr *can = &c->id->device->attrs;
	const struct rnic_request request = {
		.magic = cpu_to_be32(RNIC_MAGIC),
		.version = cpu_to_be16(RNIC_VERSION),
		.service = cpu_to_be16(RNIC_MEMORY),
	};
	struct rdma_conn_param param = {
		.private_data = &request,
		.private_data_len = sizeof(request),
		.responder_resources = min(can->max_qp_rd_atom, CONNECTION_READS),
		.initiator_depth = min(can->max_qp_init_rd_atom, CONNECTION_READS),
		.retry_count = CONNECTION_RETRIES,
		.rnr_retry_count = CONNECTION_RETRIES,
	};
	int err;

	reinit_completion(&c->step);
	err = rdma_connect(c->id, &param);
	return err ? err : connection_wait(c, CONNECTION_ANSWER_MS);
}

/*
 * End the connection, and wait until the device uses no memory any more.  ib_drain_qp() moves the
 * queue pair to the error state, where everything posted completes, and returns when the done
 * functions have been called for all of it.  It comes before rdma_disconnect(), which tells the
 * peer: that would make soft iWARP forget a READ that is under way.
 *
 * Events come until the id is destroyed, also that of our own rdma_disconnect().  c->lost() must
 * not meet a queue pair that is being destroyed, so it is not called any more: rdma_lock_handler()
 * waits for a handler that runs.
 */
static inline void connection_stop(struct connection *c)
{
	if (!c->id || !c->id->qp)
		return;
	rdma_lock_handler(c->id);
	c->up = false;
	rdma_unlock_handler(c->id);
	ib_drain_qp(c->id->qp);
	rdma_disconnect(c->id);		/* may fail: then it has ended already */
}

/*
 * Take everything down in the order of use.  Events that come meanwhile are waited for; none comes
 * afterwards.
 */
static inline void connection_close(struct connection *c)
{
	if (!c->id)
		return;
	connection_stop(c);
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	if (c->cq)
		ib_free_cq(c->cq);
	if (c->pd)
		ib_dealloc_pd(c->pd);
	rdma_destroy_id(c->id);
	c->cq = NULL;
	c->pd = NULL;
	c->id = NULL;
}

#endif
