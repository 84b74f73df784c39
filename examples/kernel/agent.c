// SPDX-License-Identifier: GPL-2.0
/*
 * agent: serves connections, an agent for each; listener needs it.
 *
 * A client sends asks, and its agent answers each in capital letters, in the memory of the ask.
 * An agent has receives for AGENT_DEPTH asks, and tells the client so when it accepts.  A client
 * that has an answer may send its next ask.  So another receive is posted before the answer is
 * sent, in a place that is free; there are twice as many places as receives.
 *
 * The order of reading is the order of an agent's life: rnic_agent_start(), agent_begin(),
 * agent_accept(), agent_asked(), agent_serve(), agent_answered(), agent_stop(), agent_end().  Its
 * beginning and its end take time and sleep, so each is a work item.  agent_stop(), which handlers
 * and done functions call, queues the second one, and only once; agent_end() waits for the first.
 * After that nobody else knows the agent, and it can be freed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "agent.h"
#include "message.h"

#define AGENT_DEPTH	16		/* asks of a client that can be on their way */
#define PLACES		(2 * AGENT_DEPTH)
#define PLACE_BYTES	RNIC_MESSAGE_MAX
#define ALL_BYTES	(PLACES * PLACE_BYTES)

static char *poll = "softirq";
module_param(poll, charp, 0444);
MODULE_PARM_DESC(poll, "where completions are handled: softirq (default) or workqueue");

static unsigned int probe = 5;
module_param(probe, uint, 0444);
MODULE_PARM_DESC(probe, "seconds between probes of a client; 0: none are probed (default: 5)");

enum agent_flag {
	AGENT_UP,			/* RDMA-CM has said that the connection is established */
	AGENT_PROBING,			/* a probe is not acknowledged yet */
	AGENT_ENDING,			/* agent_end() is queued, or runs */
};

/*
 * Room for an ask, and then for its answer.  It is the device's, or in one of the agent's lists.
 */
struct place {
	struct ib_cqe		cqe;	/* its done function says what the device has it for */
	struct list_head	list;
	unsigned int		bytes;	/* of the ask */
};

/* What was done.  Only done functions of one completion queue count, and these run one by one. */
struct tally {
	u64	asks;			/* answered */
	u64	wrong;			/* messages that were no asks */
	u64	errors;			/* completions */
};

struct agent {
	struct list_head	list;	/* in agents */
	u32			number;
	unsigned long		flags;	/* bits: enum agent_flag */
	struct rdma_cm_id	*id;
	struct work_struct	begin;
	struct work_struct	end;
	struct delayed_work	probe;
	struct ib_cqe		probed;
	bool			has_queues;	/* what follows is there */
	struct ib_pd		*pd;
	struct ib_cq		*cq;
	char			*bytes;	/* of all places */
	u64			dma;
	struct place		places[PLACES];
	struct list_head	free;	/* places.  Done functions alone change these lists. */
	struct list_head	asked;	/* places with asks */
	struct tally		tally;
};

static DEFINE_MUTEX(agents_mutex);	/* of the following */
static LIST_HEAD(agents);
static unsigned int agents_now;
static u32 agents_ever;
static struct tally ended;		/* of the agents that have ended */
static DECLARE_WAIT_QUEUE_HEAD(agents_gone); /* whoever waits until there are none */

static struct workqueue_struct *agents_queue;
static enum ib_poll_context poll_context;

/* Let the agent end.  Any context may call it, as often as it likes. */
static void agent_stop(struct agent *agent)
{
	if (!test_and_set_bit(AGENT_ENDING, &agent->flags))
		queue_work(agents_queue, &agent->end);
}

/* ------------------------------------------------------------ asks and answers */

static void agent_asked(struct ib_cq *cq, struct ib_wc *wc);
static void agent_answered(struct ib_cq *cq, struct ib_wc *wc);

static int place_index(const struct agent *agent, const struct place *place)
{
	return place - agent->places;
}

static struct ib_sge place_sge(const struct agent *agent, const struct place *place,
			       unsigned int length)
{
	return (struct ib_sge) {
		.addr = agent->dma + place_index(agent, place) * PLACE_BYTES,
		.length = length,
		.lkey = agent->pd->local_dma_lkey,
	};
}

static int agent_post_receive(struct agent *agent, struct place *place)
{
	/* -- your part: post a receive into the memory of a place -- */
	struct ib_sge sge = place_sge(agent, place, PLACE_BYTES);
	struct ib_recv_wr wr = {
		.wr_cqe = &place->cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};

	place->cqe.done = agent_asked;
	return ib_post_recv(agent->id->qp, &wr, NULL);
	/* -- end -- */
}

static int agent_post_answer(struct agent *agent, struct place *place, unsigned int bytes)
{
	/* -- your part: post a SEND of so many bytes of a place -- */
	struct ib_sge sge = place_sge(agent, place, bytes);
	struct ib_send_wr wr = {
		.wr_cqe = &place->cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};

	place->cqe.done = agent_answered;
	return ib_post_send(agent->id->qp, &wr, NULL);
	/* -- end -- */
}

/* What is wrong with a message, NULL if it is an ask.  A client may send anything. */
static const char *message_fault(const struct rnic_message *message, size_t bytes)
{
	if (!rnic_message_is_whole(message, bytes))
		return "these bytes are not one whole message";
	if (message->kind != cpu_to_be32(RNIC_ASK))
		return "this message is no ask";
	return NULL;
}

/* Turn a message into its answer; returns the answer's bytes. */
static unsigned int make_answer(struct agent *agent, struct rnic_message *message, size_t bytes)
{
	const char *fault = message_fault(message, bytes);
	size_t i, length;

	if (fault) {
		agent->tally.wrong++;
		length = strlen(fault);
		message->kind = cpu_to_be32(RNIC_WRONG);
		if (bytes < sizeof(*message))
			message->number = 0;
		message->length = cpu_to_be32(length);
		memcpy(message->text, fault, length);
	} else {
		agent->tally.asks++;
		length = bytes - sizeof(*message);
		message->kind = cpu_to_be32(RNIC_ANSWER);
		for (i = 0; i < length; i++)
			message->text[i] = rnic_capital(message->text[i]);
	}
	return sizeof(*message) + length;
}

/* Answer the ask in a place. */
static int agent_answer(struct agent *agent, struct place *place)
{
	/* -- your part: make the answer of the ask in a place, and post it -- */
	struct ib_device *device = agent->id->device;
	int offset = place_index(agent, place) * PLACE_BYTES;
	unsigned int bytes;

	/* The CPU has the place between these two, to read and to write. */
	ib_dma_sync_single_for_cpu(device, agent->dma + offset, PLACE_BYTES, DMA_BIDIRECTIONAL);
	bytes = make_answer(agent, (void *)(agent->bytes + offset), place->bytes);
	ib_dma_sync_single_for_device(device, agent->dma + offset, PLACE_BYTES, DMA_BIDIRECTIONAL);
	return agent_post_answer(agent, place, bytes);
	/* -- end -- */
}

/* The first place of a list, which leaves it. */
static struct place *take_place(struct list_head *list)
{
	struct place *place = list_first_entry(list, struct place, list);

	list_del(&place->list);
	return place;
}

/*
 * Answer what was asked, while there are places for further receives.  An ask that waits for one
 * keeps its receive from being replaced, and its client from sending another ask.
 */
static void agent_serve(struct agent *agent)
{
	int ret = 0;

	while (!ret && !list_empty(&agent->asked) && !list_empty(&agent->free)) {
		ret = agent_post_receive(agent, take_place(&agent->free));
		if (!ret)
			ret = agent_answer(agent, take_place(&agent->asked));
	}
	if (ret)
		agent_stop(agent);
}

/*
 * A completion with an error: the queue pair is in the error state, and the connection at its end.
 */
static void agent_failed(struct agent *agent, const struct ib_wc *wc, const char *what)
{
	if (wc->status != IB_WC_WR_FLUSH_ERR) {
		pr_err("%u: %s: %s (%d)\n", agent->number, what, ib_wc_status_msg(wc->status),
		       wc->status);
		agent->tally.errors++;
	}
	agent_stop(agent);
}

/* A message has come. */
static void agent_asked(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: the completion of a receive -- */
	struct place *place = container_of(wc->wr_cqe, struct place, cqe);
	struct agent *agent = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS) {
		agent_failed(agent, wc, "receive");
		return;
	}
	place->bytes = wc->byte_len;	/* valid only now: without an error, and of a receive */
	list_add_tail(&place->list, &agent->asked);
	agent_serve(agent);
	/* -- end -- */
}

/* An answer was sent, and its place is free. */
static void agent_answered(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: the completion of a SEND -- */
	struct place *place = container_of(wc->wr_cqe, struct place, cqe);
	struct agent *agent = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS) {
		agent_failed(agent, wc, "send");
		return;
	}
	list_add_tail(&place->list, &agent->free);
	agent_serve(agent);
	/* -- end -- */
}

/* ------------------------------------------------------------ probes */

static void agent_probed(struct ib_cq *cq, struct ib_wc *wc)
{
	struct agent *agent = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS)
		agent_failed(agent, wc, "probe");
	else
		clear_bit(AGENT_PROBING, &agent->flags);
}

/* Is the client still there?  client_post_probe() in client.c says how this is found out. */
static int agent_post_probe(struct agent *agent)
{
	struct ib_rdma_wr wr = {
		.wr.wr_cqe = &agent->probed,
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};

	if (test_and_set_bit(AGENT_PROBING, &agent->flags)) {
		pr_err("%u: no answer to a probe for %u s\n", agent->number, probe);
		return -ETIMEDOUT;
	}
	agent->probed.done = agent_probed;
	return ib_post_send(agent->id->qp, &wr.wr, NULL);
}

static void agent_probe_later(struct agent *agent)
{
	if (probe)
		queue_delayed_work(agents_queue, &agent->probe, (unsigned long)probe * HZ);
}

/* The work item that comes again and again, until agent_end() cancels it. */
static void agent_probe(struct work_struct *work)
{
	struct agent *agent = container_of(work, struct agent, probe.work);

	if (test_bit(AGENT_UP, &agent->flags) && agent_post_probe(agent))
		agent_stop(agent);
	else
		agent_probe_later(agent);
}

/* ------------------------------------------------------------ the beginning, in a work item */

/* Memory for the places, which the device reads and writes. */
static int agent_make_places(struct agent *agent)
{
	struct ib_device *device = agent->id->device;

	agent->bytes = kzalloc(ALL_BYTES, GFP_KERNEL);
	if (!agent->bytes)
		return -ENOMEM;
	agent->dma = ib_dma_map_single(device, agent->bytes, ALL_BYTES, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(device, agent->dma)) {
		kfree(agent->bytes);
		return -ENOMEM;
	}
	return 0;
}

static void agent_free_places(struct agent *agent)
{
	ib_dma_unmap_single(agent->id->device, agent->dma, ALL_BYTES, DMA_BIDIRECTIONAL);
	kfree(agent->bytes);
}

/* As in client.c: a protection domain, a completion queue, memory, a queue pair. */
static int agent_make_queues(struct agent *agent)
{
	/* -- your part: a protection domain, a completion queue, memory, a queue pair -- */
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = AGENT_DEPTH + 2,	/* a probe, and ib_drain_qp()'s own */
			.max_recv_wr = AGENT_DEPTH + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	int ret;

	agent->pd = ib_alloc_pd(agent->id->device, 0);
	if (IS_ERR(agent->pd))
		return PTR_ERR(agent->pd);
	agent->cq = ib_alloc_cq_any(agent->id->device, agent, 2 * (AGENT_DEPTH + 2), poll_context);
	if (IS_ERR(agent->cq)) {
		ret = PTR_ERR(agent->cq);
		goto err_pd;
	}
	ret = agent_make_places(agent);
	if (ret)
		goto err_cq;
	attr.send_cq = agent->cq;
	attr.recv_cq = agent->cq;
	ret = rdma_create_qp(agent->id, agent->pd, &attr);
	if (ret)
		goto err_places;
	agent->has_queues = true;
	return 0;

err_places:
	agent_free_places(agent);
err_cq:
	ib_free_cq(agent->cq);
err_pd:
	ib_dealloc_pd(agent->pd);
	return ret;
	/* -- end -- */
}

static void agent_free_queues(struct agent *agent)
{
	/* -- your part: free all of that, in reverse order -- */
	ib_drain_qp(agent->id->qp);	/* no done function runs after it */
	rdma_destroy_qp(agent->id);
	agent_free_places(agent);
	ib_free_cq(agent->cq);
	ib_dealloc_pd(agent->pd);
	/* -- end -- */
}

/* Before accepting: from then on the client may send. */
static int agent_post_receives(struct agent *agent)
{
	int i, ret = 0;

	for (i = AGENT_DEPTH; i < PLACES; i++)
		list_add_tail(&agent->places[i].list, &agent->free);
	for (i = 0; i < AGENT_DEPTH && !ret; i++)
		ret = agent_post_receive(agent, &agent->places[i]);
	return ret;
}

static int agent_accept(struct agent *agent)
{
	/* -- your part: accept, with private data that says how many asks there is room for -- */
	struct rnic_offer offer = {
		.magic = cpu_to_be32(RNIC_MAGIC),
		.version = cpu_to_be16(RNIC_VERSION),
		.depth = cpu_to_be16(AGENT_DEPTH),
	};
	struct rdma_conn_param param = {
		.private_data = &offer,
		.private_data_len = sizeof(offer),
		.rnr_retry_count = 6,	/* 7 is for ever */
	};
	int ret;

	/*
	 * Outside of the request's handler, rdma_accept() wants the lock that handlers run under.
	 */
	rdma_lock_handler(agent->id);
	ret = rdma_accept(agent->id, &param);
	rdma_unlock_handler(agent->id);
	return ret;
	/* -- end -- */
}

static void agent_begin(struct work_struct *work)
{
	struct agent *agent = container_of(work, struct agent, begin);
	int ret;

	ret = agent_make_queues(agent);
	if (!ret)
		ret = agent_post_receives(agent);
	if (!ret)
		ret = agent_accept(agent);
	if (ret) {
		pr_err("%u: not accepted: error %d\n", agent->number, ret);
		agent_stop(agent);
		return;
	}
	agent_probe_later(agent);
}

/* ------------------------------------------------------------ the end, in a work item */

/* Forget the agent, and keep what it has done. */
static void agent_leave(struct agent *agent)
{
	mutex_lock(&agents_mutex);
	list_del(&agent->list);
	if (!--agents_now)
		wake_up_all(&agents_gone);
	ended.asks += agent->tally.asks;
	ended.wrong += agent->tally.wrong;
	ended.errors += agent->tally.errors;
	mutex_unlock(&agents_mutex);
}

static void agent_end(struct work_struct *work)
{
	struct agent *agent = container_of(work, struct agent, end);

	cancel_work_sync(&agent->begin);	/* it has ended, or will not begin */
	cancel_delayed_work_sync(&agent->probe);	/* and it does not come again */
	rdma_disconnect(agent->id);	/* an error says that there is no connection (any more) */
	if (agent->has_queues)
		agent_free_queues(agent);
	pr_info("%u: %llu asks answered, %llu messages wrong\n", agent->number,
		agent->tally.asks, agent->tally.wrong);
	agent_leave(agent);
	rdma_destroy_id(agent->id);	/* no handler runs after it; an open request is refused */
	kfree(agent);
}

/* ------------------------------------------------------------ what the listener calls */

/* Let the agent begin, unless there are max.  Nobody who can end it sees it before. */
static int agent_enter(struct agent *agent, unsigned int max)
{
	int ret = 0;

	mutex_lock(&agents_mutex);
	if (agents_now < max) {
		agents_now++;
		agent->number = ++agents_ever;
		list_add_tail(&agent->list, &agents);
		agent->id->context = agent;
		queue_work(agents_queue, &agent->begin);
	} else {
		ret = -EUSERS;
	}
	mutex_unlock(&agents_mutex);
	return ret;
}

int rnic_agent_start(struct rdma_cm_id *id, unsigned int max)
{
	struct agent *agent = kzalloc(sizeof(*agent), GFP_KERNEL);
	int ret;

	if (!agent)
		return -ENOMEM;
	agent->id = id;
	INIT_LIST_HEAD(&agent->free);
	INIT_LIST_HEAD(&agent->asked);
	INIT_WORK(&agent->begin, agent_begin);
	INIT_WORK(&agent->end, agent_end);
	INIT_DELAYED_WORK(&agent->probe, agent_probe);
	ret = agent_enter(agent, max);
	if (ret)
		kfree(agent);
	return ret;
}
EXPORT_SYMBOL_GPL(rnic_agent_start);

void rnic_agent_event(struct rdma_cm_id *id, const struct rdma_cm_event *event)
{
	struct agent *agent = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		set_bit(AGENT_UP, &agent->flags);
		pr_info("%u: serves %pISpc by %s\n", agent->number, &id->route.addr.dst_addr,
			id->device->name);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		pr_info("%u: %s (%d)\n", agent->number, rdma_event_msg(event->event),
			event->status);
		agent_stop(agent);
		break;
	default:
		break;
	}
}
EXPORT_SYMBOL_GPL(rnic_agent_event);

int rnic_agent_disconnect(u32 number)
{
	struct agent *agent;
	int ret = -ENOENT;

	mutex_lock(&agents_mutex);
	list_for_each_entry(agent, &agents, list) {
		if (agent->number == number) {
			agent_stop(agent);
			ret = 0;
		}
	}
	mutex_unlock(&agents_mutex);
	return ret;
}
EXPORT_SYMBOL_GPL(rnic_agent_disconnect);

void rnic_agents_end(void)
{
	struct agent *agent;

	mutex_lock(&agents_mutex);
	list_for_each_entry(agent, &agents, list)
		agent_stop(agent);
	mutex_unlock(&agents_mutex);
	/*
	 * Not the flush alone: an agent_stop() that runs now may have set its bit, and not queued
	 * agent_end() yet. An agent that has left the list has only its id to destroy.
	 */
	wait_event(agents_gone, !READ_ONCE(agents_now));
	flush_workqueue(agents_queue);	/* until all work items that are queued now have run */
}
EXPORT_SYMBOL_GPL(rnic_agents_end);

static const char *agent_state(const struct agent *agent)
{
	if (test_bit(AGENT_ENDING, &agent->flags))
		return "ending";
	return test_bit(AGENT_UP, &agent->flags) ? "connected" : "connecting";
}

void rnic_agents_show(struct seq_file *m)
{
	struct tally all;
	struct agent *agent;

	mutex_lock(&agents_mutex);
	all = ended;
	seq_printf(m, "agents %u\n", agents_now);
	list_for_each_entry(agent, &agents, list) {
		seq_printf(m, "agent %u %pISpc %s %s asks %llu wrong %llu errors %llu\n",
			   agent->number, &agent->id->route.addr.dst_addr,
			   agent->id->device->name, agent_state(agent), agent->tally.asks,
			   agent->tally.wrong, agent->tally.errors);
		all.asks += agent->tally.asks;
		all.wrong += agent->tally.wrong;
		all.errors += agent->tally.errors;
	}
	mutex_unlock(&agents_mutex);
	seq_printf(m, "asks %llu\nwrong %llu\nerrors %llu\n", all.asks, all.wrong, all.errors);
}
EXPORT_SYMBOL_GPL(rnic_agents_show);

/* ------------------------------------------------------------ loading and unloading */

/* client.c says what these are. */
static int __init agent_choose_poll(void)
{
	if (!strcmp(poll, "softirq"))
		poll_context = IB_POLL_SOFTIRQ;
	else if (!strcmp(poll, "workqueue"))
		poll_context = IB_POLL_WORKQUEUE;
	else
		return -EINVAL;
	return 0;
}

static int __init agent_init(void)
{
	if (agent_choose_poll()) {
		pr_err("poll is softirq or workqueue, not %s\n", poll);
		return -EINVAL;
	}
	/* A queue of its own can be flushed without waiting for work items of others. */
	agents_queue = alloc_workqueue("rnic_agents", WQ_UNBOUND, 0);
	return agents_queue ? 0 : -ENOMEM;
}

/* The kernel unloads it when no module uses it any more; so no agent is left. */
static void __exit agent_exit(void)
{
	destroy_workqueue(agents_queue);
}

module_init(agent_init);
module_exit(agent_exit);

MODULE_DESCRIPTION("Agents that serve RDMA connections, for the module listener");
MODULE_LICENSE("GPL");
