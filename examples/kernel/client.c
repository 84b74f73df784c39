// SPDX-License-Identifier: GPL-2.0
/*
 * client: a connection to a server, from address to last completion.
 *
 * It sends texts, and the server answers each in capital letters.  message.h says what the two
 * ends say.  The server is peer_listener.py or the module listener.  Commands are written to
 * /proc/rnic_client:
 *
 *	connect ADDR PORT	ADDR is of IPv4 or IPv6
 *	send TEXT		returns when the answer is there
 *	texts COUNT		so many texts, as many at a time as the server has receives for
 *	disconnect
 *
 * A command that fails is a write() that fails, so a shell says why.  Reading the file shows how
 * things are.
 *
 * The order of reading is the order of a connection's life: client_resolve(),
 * client_make_queues(), client_post_receives(), client_call(), client_ask(), client_sent() and
 * client_answered(), client_break(), client_down().  Three contexts meet in it:
 *
 *	a process that writes a command. It may sleep, and holds client.mutex: one at a time;
 *	the handler of RDMA-CM's events. It may sleep, but must not destroy the event's id;
 *	done functions of completions. In softirq context they must not sleep.
 *
 * So an end that a handler or a done function sees is only noted there (client_break()), and a
 * work item, which may sleep and holds nothing, takes the connection down (client_down()).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/inet.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string_helpers.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "message.h"

#define CLIENT_DEPTH	16	/* asks on their way at most, and receives for their answers */
#define AREA_BYTES	(CLIENT_DEPTH * RNIC_MESSAGE_MAX)
#define RESOLVE_MS	2000	/* in which an address or a route is to be found */
#define STEP_MS		20000	/* the longest wait for any event */
#define ANSWER_MS	60000	/* and for an answer */
#define ACK_TIMEOUT	17	/* 4.096 us << 17 = 0.5 s until a packet is sent again */

static char *addr;
module_param(addr, charp, 0444);
MODULE_PARM_DESC(addr, "the server to connect with when the module is loaded (default: none)");

static char *port = "7471";
module_param(port, charp, 0444);
MODULE_PARM_DESC(port, "the port of that server (default: 7471)");

static unsigned int texts;
module_param(texts, uint, 0444);
MODULE_PARM_DESC(texts, "how many texts to send to that server (default: 0)");

static char *poll = "softirq";
module_param(poll, charp, 0444);
MODULE_PARM_DESC(poll, "where completions are handled: softirq (default) or workqueue");

static unsigned int probe = 5;
module_param(probe, uint, 0444);
MODULE_PARM_DESC(probe, "seconds between probes of the server; 0: it is not probed (default: 5)");

enum client_state {
	CLIENT_IDLE,		/* there is no connection, and no object of one */
	CLIENT_CONNECTING,
	CLIENT_CONNECTED,
	CLIENT_BROKEN,		/* it has ended, and client_down() has yet to free it */
};

static const char * const client_state_names[] = {
	[CLIENT_IDLE] = "idle",
	[CLIENT_CONNECTING] = "connecting",
	[CLIENT_CONNECTED] = "connected",
	[CLIENT_BROKEN] = "broken",
};

/* Memory for CLIENT_DEPTH messages, which the device reads or writes. */
struct area {
	char			*bytes;
	u64			dma;		/* the same memory as the device addresses it */
	enum dma_data_direction	direction;
};

/*
 * An ask. It is free for the next one when its SEND has completed and its answer has come, in
 * either order.
 */
struct ask {
	struct ib_cqe	cqe;		/* its done function is called with the completion */
	u32		number;
	unsigned int	length;		/* of its text */
	bool		sending;	/* the device has it: its memory must stay as it is */
	bool		waiting;	/* for the answer */
};

struct answer {
	struct ib_cqe	cqe;
};

static struct client {
	struct mutex		mutex;	/* of a command: one at a time; it owns what follows */
	struct rdma_cm_id	*id;
	struct ib_pd		*pd;
	struct ib_cq		*cq;
	struct area		ask_area;
	struct area		answer_area;
	struct ask		asks[CLIENT_DEPTH];
	struct answer		answers[CLIENT_DEPTH];
	u32			next;	/* the number of the next ask */
	struct completion	step;	/* RDMA-CM has done a step; step_status says how */
	int			step_status;
	wait_queue_head_t	wait;	/* an ask is free, or the connection has ended */
	struct work_struct	down;
	struct delayed_work	probe;
	struct ib_cqe		probed;

	spinlock_t		lock;	/* of all that follows; never held for long */
	enum client_state	state;
	int			error;	/* why there is no connection: a negative errno */
	u16			window;	/* how many asks may be on their way */
	u16			on_the_way;
	bool			probing; /* a probe is not acknowledged yet */
	bool			leaving; /* the module is unloaded: no connection begins */
	struct sockaddr_storage	peer;
	struct rnic_request	refusal; /* the private data of the last refusal, else 0 */
	u64			sent, received, wrong, errors;
	char			text[RNIC_TEXT_MAX]; /* of the last answer */
	unsigned int		text_length;
	enum rnic_kind		text_kind;
} client;

/* ------------------------------------------------------------ the end, as it is noted */

static bool client_is_connected(struct client *c)
{
	return READ_ONCE(c->state) == CLIENT_CONNECTED;
}

/*
 * Note that the connection has ended, and let client_down() do the rest.  Any context may call it;
 * only the first call of a connection counts.
 */
static void client_break(struct client *c, int error)
{
	bool ends;

	spin_lock_bh(&c->lock);
	ends = c->state == CLIENT_CONNECTING || c->state == CLIENT_CONNECTED;
	if (ends) {
		c->state = CLIENT_BROKEN;
		c->error = error;
		/* Whoever waits for a step of the connection wakes up, now and in later steps. */
		c->step_status = error ? error : -ECONNABORTED;
		complete_all(&c->step);
	}
	spin_unlock_bh(&c->lock);
	if (ends) {
		wake_up_all(&c->wait);
		schedule_work(&c->down);
	}
}

/* ------------------------------------------------------------ RDMA-CM's events */

/* A step of the connection is done; the command that waits for it goes on. */
static void client_step(struct client *c, int status)
{
	spin_lock_bh(&c->lock);
	if (c->state == CLIENT_CONNECTING) {
		c->step_status = status;
		complete(&c->step);
	}
	spin_unlock_bh(&c->lock);
}

/* The server has accepted: how many asks does it have receives for? */
static int client_take_offer(struct client *c, const struct rdma_conn_param *param)
{
	/* Private data is valid in the handler alone. */
	const struct rnic_offer *offer = param->private_data;
	u16 depth;

	if (!offer || param->private_data_len < sizeof(*offer) ||
	    offer->magic != cpu_to_be32(RNIC_MAGIC) ||
	    offer->version != cpu_to_be16(RNIC_VERSION)) {
		pr_err("the server accepted without an offer of version %d\n", RNIC_VERSION);
		return -EPROTO;
	}
	depth = be16_to_cpu(offer->depth);
	if (!depth) {
		pr_err("the server has no receives for messages\n");
		return -EPROTO;
	}
	spin_lock_bh(&c->lock);
	c->window = min_t(u16, depth, CLIENT_DEPTH);
	spin_unlock_bh(&c->lock);
	return 0;
}

/* The server has refused, and may have said what it has instead. */
static void client_take_refusal(struct client *c, struct rdma_cm_id *id,
				struct rdma_cm_event *event)
{
	const struct rnic_request *refusal = event->param.conn.private_data;

	pr_err("refused: %s (%d)\n", rdma_reject_msg(id, event->status), event->status);
	if (!refusal || event->param.conn.private_data_len < sizeof(*refusal) ||
	    refusal->magic != cpu_to_be32(RNIC_MAGIC))
		return;
	pr_err("the server has version %u, service %u\n", be16_to_cpu(refusal->version),
	       be16_to_cpu(refusal->service));
	spin_lock_bh(&c->lock);
	c->refusal = *refusal;
	spin_unlock_bh(&c->lock);
}

/*
 * RDMA-CM calls it for each event of the id, one at a time, in process context.  To return
 * anything but 0 would destroy the id; that is client_down()'s.
 */
static int client_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct client *c = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		client_step(c, 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		client_step(c, client_take_offer(c, &event->param.conn));
		break;
	case RDMA_CM_EVENT_REJECTED:
		/* The status is a reason of the CM's protocol over RoCE, an errno over iWARP. */
		client_take_refusal(c, id, event);
		client_step(c, -ECONNREFUSED);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		pr_err("%s (%d)\n", rdma_event_msg(event->event), event->status);
		client_step(c, event->status < 0 ? event->status : -EHOSTUNREACH);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		pr_info("%s\n", rdma_event_msg(event->event));
		client_break(c, -ECONNRESET);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		/*
		 * The device goes when client_down() has destroyed the id; its removal waits for
		 * that.
		 */
		pr_info("%s\n", rdma_event_msg(event->event));
		client_break(c, -ENODEV);
		break;
	default:	/* such as TIMEWAIT_EXIT: the queue pair's number may be used again */
		break;
	}
	return 0;
}

/* Wait until RDMA-CM has done a step: 0, or the negative errno of why it has not. */
static int client_wait_step(struct client *c)
{
	long left = wait_for_completion_interruptible_timeout(&c->step, msecs_to_jiffies(STEP_MS));

	/*
	 * A signal is -ERESTARTSYS, with which the kernel begins a system call again.  A command
	 * that was interrupted is not to be begun again.
	 */
	if (left < 0)
		return -EINTR;
	return left ? c->step_status : -ETIMEDOUT;
}

/* ------------------------------------------------------------ connecting, step by step */

/*
 * Make an id, and find the device and the route that lead to the server.  Returns the id, or
 * ERR_PTR() of a negative errno: the kernel's way to return a pointer or a reason, for IS_ERR()
 * and PTR_ERR().
 */
static struct rdma_cm_id *client_resolve(struct client *c)
{
	/* -- your part: make an id, resolve the address, then the route -- */
	struct rdma_cm_id *id;
	int ret;

	/* The third argument is id->context. RDMA_PS_TCP: ports of reliable connections. */
	id = rdma_create_id(&init_net, client_event, c, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return id;

	/*
	 * Without a source address the routing table chooses.  The event comes later; only -errno
	 * comes now.  A neighbour's answer can come before RDMA-CM (6.1) waits for it; then the
	 * address is resolved only when the time is over.  So the time is short.
	 */
	ret = rdma_resolve_addr(id, NULL, (struct sockaddr *)&c->peer, RESOLVE_MS);
	if (!ret)
		ret = client_wait_step(c);
	if (ret)
		goto err_destroy;

	/* From here on id->device is known. */
	ret = rdma_set_ack_timeout(id, ACK_TIMEOUT);
	if (!ret)
		ret = rdma_resolve_route(id, RESOLVE_MS);
	if (!ret)
		ret = client_wait_step(c);
	if (ret)
		goto err_destroy;
	return id;

err_destroy:
	/*
	 * No handler runs when it returns, and none will. It sleeps, and waits for a handler that
	 * runs.
	 */
	rdma_destroy_id(id);
	return ERR_PTR(ret);
	/* -- end -- */
}

/* Memory that the device may use, for one direction of messages. */
static int area_make(struct ib_device *device, struct area *area, enum dma_data_direction direction)
{
	area->bytes = kzalloc(AREA_BYTES, GFP_KERNEL);
	if (!area->bytes)
		return -ENOMEM;
	area->direction = direction;
	/*
	 * ib_dma_map_single(), not dma_map_single(): a device in software has no DMA, and gets
	 * addresses of the kernel.  From now on the memory is the device's, until a sync or the
	 * unmapping gives it to the CPU.
	 */
	area->dma = ib_dma_map_single(device, area->bytes, AREA_BYTES, direction);
	if (ib_dma_mapping_error(device, area->dma)) {
		kfree(area->bytes);
		return -ENOMEM;
	}
	return 0;
}

static void area_free(struct ib_device *device, struct area *area)
{
	ib_dma_unmap_single(device, area->dma, AREA_BYTES, area->direction);
	kfree(area->bytes);
}

static struct rnic_message *area_message(struct area *area, int index)
{
	return (struct rnic_message *)(area->bytes + index * RNIC_MESSAGE_MAX);
}

static void client_sent(struct ib_cq *cq, struct ib_wc *wc);
static void client_answered(struct ib_cq *cq, struct ib_wc *wc);

/*
 * Where done functions are called:
 *
 *	IB_POLL_SOFTIRQ		in softirq context: soonest, but they must not sleep;
 *	IB_POLL_WORKQUEUE	in a thread of the kernel: they may sleep, and come later;
 *	IB_POLL_DIRECT		where the module itself calls ib_process_cq_direct().  There is no
 *				interrupt, and a module that does not call sees nothing: for
 *				those who poll anyway.
 */
static enum ib_poll_context client_poll_context(void)
{
	return strcmp(poll, "workqueue") ? IB_POLL_SOFTIRQ : IB_POLL_WORKQUEUE;
}

/* Make all that the connection needs of the device; nothing is left of it if that fails. */
static int client_make_queues(struct client *c)
{
	/* -- your part: a protection domain, a completion queue, memory, a queue pair -- */
	struct ib_device *device = c->id->device;
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,	/* who posts says which SENDs complete */
		.cap = {
			.max_send_wr = CLIENT_DEPTH + 2, /* a probe, ib_drain_qp()'s own */
			.max_recv_wr = CLIENT_DEPTH + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	int ret;

	/*
	 * A protection domain: what belongs together. Its local_dma_lkey is good for all mapped
	 * memory.
	 */
	c->pd = ib_alloc_pd(device, 0);
	if (IS_ERR(c->pd))
		return PTR_ERR(c->pd);

	/* One completion queue for both directions, with room for all that can complete. */
	c->cq = ib_alloc_cq(device, c, 2 * (CLIENT_DEPTH + 2), 0, client_poll_context());
	if (IS_ERR(c->cq)) {
		ret = PTR_ERR(c->cq);
		goto err_pd;
	}

	ret = area_make(device, &c->ask_area, DMA_TO_DEVICE);
	if (ret)
		goto err_cq;
	ret = area_make(device, &c->answer_area, DMA_FROM_DEVICE);
	if (ret)
		goto err_asks;

	/*
	 * A queue pair that belongs to the id: RDMA-CM takes it through its states. It is in INIT
	 * now.
	 */
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	ret = rdma_create_qp(c->id, c->pd, &attr);
	if (ret)
		goto err_answers;
	return 0;

err_answers:
	area_free(device, &c->answer_area);
err_asks:
	area_free(device, &c->ask_area);
err_cq:
	ib_free_cq(c->cq);
err_pd:
	ib_dealloc_pd(c->pd);
	return ret;
	/* -- end -- */
}

static void client_free_queues(struct client *c)
{
	/* -- your part: free all of that, in reverse order -- */
	struct ib_device *device = c->id->device;

	/*
	 * The queue pair goes into the error state, all that is posted completes with
	 * IB_WC_WR_FLUSH_ERR, and the last done function has returned when it does.  Only then may
	 * memory go.  It sleeps.
	 */
	ib_drain_qp(c->id->qp);
	rdma_destroy_qp(c->id);
	area_free(device, &c->answer_area);
	area_free(device, &c->ask_area);
	ib_free_cq(c->cq);
	ib_dealloc_pd(c->pd);
	/* -- end -- */
}

/* Give the device the memory for an answer.  Any context may call it. */
static int client_post_receive(struct client *c, int index)
{
	/* -- your part: post a receive into the memory of answer number index -- */
	struct ib_sge sge = {
		.addr = c->answer_area.dma + index * RNIC_MESSAGE_MAX,
		.length = RNIC_MESSAGE_MAX,
		.lkey = c->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = {
		.wr_cqe = &c->answers[index].cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};

	c->answers[index].cqe.done = client_answered;
	return ib_post_recv(c->id->qp, &wr, NULL);
	/* -- end -- */
}

/* Before connecting: an answer that comes when no receive is posted is not taken. */
static int client_post_receives(struct client *c)
{
	int i, ret = 0;

	for (i = 0; i < CLIENT_DEPTH && !ret; i++)
		ret = client_post_receive(c, i);
	return ret;
}

/* Send the request, and wait for the server's answer to it. */
static int client_call(struct client *c)
{
	/* -- your part: connect with private data, and wait for the answer -- */
	struct rnic_request request = {
		.magic = cpu_to_be32(RNIC_MAGIC),
		.version = cpu_to_be16(RNIC_VERSION),
		.service = cpu_to_be16(RNIC_ECHO),
	};
	struct rdma_conn_param param = {
		.private_data = &request,
		.private_data_len = sizeof(request),
		.retry_count = 6,	/* how often a packet is sent again; 7 is for ever in rxe */
		.rnr_retry_count = 6,	/* and a message that found no receive; 7 is for ever */
	};
	int ret;

	ret = rdma_connect(c->id, &param);
	return ret ? ret : client_wait_step(c);
	/* -- end -- */
}

/* ------------------------------------------------------------ probes */

static void client_failed(struct client *c, const struct ib_wc *wc, const char *what);

/* The server's device has acknowledged a probe. */
static void client_probed(struct ib_cq *cq, struct ib_wc *wc)
{
	struct client *c = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS) {
		client_failed(c, wc, "probe");
		return;
	}
	spin_lock_bh(&c->lock);
	c->probing = false;
	spin_unlock_bh(&c->lock);
}

/*
 * Is the server still there?  Over RoCE nothing tells an idle connection that its peer was killed.
 * An RDMA WRITE of no bytes needs no memory at either end, and is acknowledged as any other.
 */
static int client_post_probe(struct client *c)
{
	struct ib_rdma_wr wr = {
		.wr.wr_cqe = &c->probed,
		.wr.opcode = IB_WR_RDMA_WRITE,
		.wr.send_flags = IB_SEND_SIGNALED,
	};

	c->probed.done = client_probed;
	spin_lock_bh(&c->lock);
	c->probing = true;
	spin_unlock_bh(&c->lock);
	return ib_post_send(c->id->qp, &wr.wr, NULL);
}

static void client_probe_later(struct client *c)
{
	if (probe)
		schedule_delayed_work(&c->probe, (unsigned long)probe * HZ);
}

/*
 * The work item that comes again and again while there is a connection.  It takes no mutex: a
 * command may hold that while it waits for a place in the window.  client_down() cancels it before
 * it frees anything.
 */
static void client_probe(struct work_struct *work)
{
	struct client *c = container_of(work, struct client, probe.work);
	int ret = 0;

	if (READ_ONCE(c->probing)) {
		pr_err("the server has not answered a probe for %u s\n", probe);
		ret = -ETIMEDOUT;
	} else if (client_is_connected(c)) {
		ret = client_post_probe(c);
	}
	if (ret)
		client_break(c, ret);
	else
		client_probe_later(c);
}

/* ------------------------------------------------------------ the states' beginning and end */

/* From idle to connecting. */
static int client_begin(struct client *c, const struct sockaddr_storage *peer)
{
	int ret = 0;

	spin_lock_bh(&c->lock);
	if (c->leaving) {
		ret = -ENODEV;
	} else if (c->state == CLIENT_IDLE) {
		c->state = CLIENT_CONNECTING;
		c->error = 0;
		c->peer = *peer;
		c->window = 0;
		c->on_the_way = 0;
		c->probing = false;
		c->sent = 0;
		c->received = 0;
		c->wrong = 0;
		c->errors = 0;
		c->text_length = 0;
		memset(&c->refusal, 0, sizeof(c->refusal));
		memset(c->asks, 0, sizeof(c->asks));
		c->next = 0;
		init_completion(&c->step);
	} else {
		ret = -EISCONN;
	}
	spin_unlock_bh(&c->lock);
	return ret;
}

/* From connecting to connected, unless the server has disconnected already. */
static int client_enter(struct client *c)
{
	int ret = 0;

	spin_lock_bh(&c->lock);
	if (c->state == CLIENT_CONNECTING)
		c->state = CLIENT_CONNECTED;
	else
		ret = c->step_status;
	spin_unlock_bh(&c->lock);
	return ret;
}

/* To idle: nothing is left of the connection. */
static void client_become_idle(struct client *c)
{
	spin_lock_bh(&c->lock);
	c->state = CLIENT_IDLE;
	spin_unlock_bh(&c->lock);
}

/*
 * Connect.  Each step that fails undoes those before it, in reverse order: the kernel's chain of
 * gotos.
 */
static int client_connect(struct client *c, const struct sockaddr_storage *peer)
{
	int ret;

	ret = client_begin(c, peer);
	if (ret)
		return ret;

	c->id = client_resolve(c);
	if (IS_ERR(c->id)) {
		ret = PTR_ERR(c->id);
		goto err_idle;
	}
	ret = client_make_queues(c);
	if (ret)
		goto err_id;
	ret = client_post_receives(c);
	if (ret)
		goto err_queues;
	ret = client_call(c);
	if (!ret)
		ret = client_enter(c);
	if (ret)
		goto err_queues;
	client_probe_later(c);
	pr_info("connected with %pISpc by %s, %u asks at a time\n", &c->peer,
		c->id->device->name, c->window);
	return 0;

err_queues:
	client_break(c, ret);	/* noted before the receives are flushed, which is an error, too */
	client_free_queues(c);
err_id:
	rdma_destroy_id(c->id);
err_idle:
	client_break(c, ret);
	client_become_idle(c);
	pr_err("no connection with %pISpc: error %d\n", &c->peer, ret);
	return ret;
}

/* The work item that takes a connection down which has ended. */
static void client_down(struct work_struct *work)
{
	struct client *c = container_of(work, struct client, down);

	mutex_lock(&c->mutex);
	if (READ_ONCE(c->state) == CLIENT_BROKEN) {
		cancel_delayed_work_sync(&c->probe);
		/*
		 * It tells the server, or confirms what the server told; an error says that it
		 * knows already.
		 */
		rdma_disconnect(c->id);
		client_free_queues(c);
		rdma_destroy_id(c->id);
		client_become_idle(c);
		pr_info("disconnected from %pISpc\n", &c->peer);
	}
	mutex_unlock(&c->mutex);
}

/*
 * Disconnect, and wait until all is freed. The mutex is not held: a command that waits is to end.
 */
static void client_disconnect(struct client *c)
{
	client_break(c, 0);
	flush_work(&c->down);
}

/* ------------------------------------------------------------ asks */

/* Why nothing can be sent. */
static int client_gone(struct client *c)
{
	int error = READ_ONCE(c->error);

	return error ? error : -ENOTCONN;
}

/* Whether an ask is free; NULL: whether all are. */
static bool client_is_free(struct client *c, const struct ask *ask)
{
	bool is_free;

	spin_lock_bh(&c->lock);
	is_free = ask ? !ask->sending && !ask->waiting : !c->on_the_way;
	spin_unlock_bh(&c->lock);
	return is_free;
}

/*
 * Wait until an ask is free, or all are (NULL): 0, or a negative errno if the connection ends
 * before.
 */
static int client_wait_free(struct client *c, const struct ask *ask)
{
	long left;

	left = wait_event_interruptible_timeout(c->wait,
						client_is_free(c, ask) || !client_is_connected(c),
						msecs_to_jiffies(ANSWER_MS));

	if (left < 0)
		return -EINTR;
	if (client_is_free(c, ask))
		return 0;	/* even if the connection has ended since */
	return client_is_connected(c) ? -ETIMEDOUT : client_gone(c);
}

/* Post a SEND of an ask whose memory is ready. */
static int client_post_ask(struct client *c, int index)
{
	/* -- your part: post a SEND of ask number index -- */
	struct ask *ask = &c->asks[index];
	struct ib_sge sge = {
		.addr = c->ask_area.dma + index * RNIC_MESSAGE_MAX,
		.length = sizeof(struct rnic_message) + ask->length,
		.lkey = c->pd->local_dma_lkey,
	};
	struct ib_send_wr wr = {
		.wr_cqe = &ask->cqe,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
	};

	ask->cqe.done = client_sent;
	/* What the CPU has written is the device's from here on. */
	ib_dma_sync_single_for_device(c->id->device, sge.addr, sge.length, DMA_TO_DEVICE);
	return ib_post_send(c->id->qp, &wr, NULL);
	/* -- end -- */
}

/*
 * Ask.  The flow control is here: ask number N has place N % window, and waits until that is free.
 * So there are never more asks on their way than the server has receives for.
 */
static int client_ask(struct client *c, const char *text, size_t length)
{
	struct rnic_message *message;
	struct ask *ask;
	int index, ret;

	if (length > RNIC_TEXT_MAX)
		return -EMSGSIZE;
	if (!client_is_connected(c))
		return client_gone(c);
	index = c->next % c->window;
	ask = &c->asks[index];
	ret = client_wait_free(c, ask);
	if (ret)
		return ret;

	message = area_message(&c->ask_area, index);
	message->kind = cpu_to_be32(RNIC_ASK);
	message->number = cpu_to_be32(c->next);
	message->length = cpu_to_be32(length);
	memcpy(message->text, text, length);

	spin_lock_bh(&c->lock);
	ask->number = c->next++;
	ask->length = length;
	ask->sending = true;	/* before it is posted: the answer may be quick */
	ask->waiting = true;
	c->on_the_way++;
	c->sent++;
	spin_unlock_bh(&c->lock);

	ret = client_post_ask(c, index);
	if (ret)
		client_break(c, ret);
	return ret;
}

/* Ask, and wait for the answer. */
static int client_send(struct client *c, const char *text, size_t length)
{
	int ret = client_ask(c, text, length);

	return ret ? ret : client_wait_free(c, NULL);
}

/* Ask for texts of all lengths and letters. */
static int client_send_texts(struct client *c, unsigned int count)
{
	char *text = kmalloc(RNIC_TEXT_MAX, GFP_KERNEL);
	unsigned int i, length;
	int ret = 0;

	if (!text)
		return -ENOMEM;
	for (i = 0; i < RNIC_TEXT_MAX; i++)
		text[i] = 'A' + i % ('z' - 'A' + 1);
	for (i = 0; i < count && !ret; i++) {
		length = i * 37 % (RNIC_TEXT_MAX + 1);
		ret = client_ask(c, text + (RNIC_TEXT_MAX - length), length);
	}
	kfree(text);
	return ret ? ret : client_wait_free(c, NULL);
}

/* ------------------------------------------------------------ completions */

/*
 * A completion with an error: the queue pair is in the error state, and nothing more will come of
 * it.
 */
static void client_failed(struct client *c, const struct ib_wc *wc, const char *what)
{
	if (wc->status == IB_WC_WR_FLUSH_ERR) {
		/* It had no chance any more.  Of a request that failed, an event says why. */
		if (client_is_connected(c))
			client_break(c, -ECONNRESET);
		return;
	}
	pr_err("%s: %s (%d)\n", what, ib_wc_status_msg(wc->status), wc->status);
	spin_lock_bh(&c->lock);
	c->errors++;
	spin_unlock_bh(&c->lock);
	client_break(c, -EIO);
}

/* A SEND has completed: the device does not need its memory any more. */
static void client_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: the completion of a SEND -- */
	struct ask *ask = container_of(wc->wr_cqe, struct ask, cqe);
	struct client *c = cq->cq_context;

	if (wc->status != IB_WC_SUCCESS) {
		client_failed(c, wc, "send");
		return;
	}
	spin_lock_bh(&c->lock);
	ask->sending = false;
	spin_unlock_bh(&c->lock);
	wake_up(&c->wait);
	/* -- end -- */
}

static bool is_answer_to(const struct rnic_message *answer, const struct rnic_message *ask)
{
	unsigned int i, length = be32_to_cpu(ask->length);

	if (answer->length != ask->length)
		return false;
	for (i = 0; i < length; i++)
		if (answer->text[i] != rnic_capital(ask->text[i]))
			return false;
	return true;
}

/* Which ask a message answers; ERR_PTR(-EPROTO) if it answers none.  The lock is held. */
static struct ask *client_find_ask(struct client *c, const struct rnic_message *message,
				   size_t bytes)
{
	struct ask *ask;
	int index;

	if (!rnic_message_is_whole(message, bytes))
		return ERR_PTR(-EPROTO);
	index = be32_to_cpu(message->number) % c->window;
	ask = &c->asks[index];
	if (!ask->waiting || ask->number != be32_to_cpu(message->number))
		return ERR_PTR(-EPROTO);
	if (message->kind == cpu_to_be32(RNIC_WRONG))
		return ask;
	if (message->kind != cpu_to_be32(RNIC_ANSWER) ||
	    !is_answer_to(message, area_message(&c->ask_area, index)))
		return ERR_PTR(-EPROTO);
	return ask;
}

/* Note an answer; its ask, or ERR_PTR(-EPROTO). */
static struct ask *client_take_answer(struct client *c, const struct rnic_message *message,
				      size_t bytes)
{
	struct ask *ask;

	spin_lock_bh(&c->lock);
	ask = client_find_ask(c, message, bytes);
	if (IS_ERR(ask)) {
		c->errors++;
	} else {
		c->text_kind = be32_to_cpu(message->kind);
		c->text_length = be32_to_cpu(message->length);
		memcpy(c->text, message->text, c->text_length);
		if (c->text_kind == RNIC_WRONG)
			c->wrong++;
		else
			c->received++;
	}
	spin_unlock_bh(&c->lock);
	return ask;
}

/* An answer has come. */
static void client_answered(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: the completion of a receive -- */
	struct answer *answer = container_of(wc->wr_cqe, struct answer, cqe);
	struct client *c = cq->cq_context;
	int ret, index = answer - c->answers;
	u64 dma = c->answer_area.dma + index * RNIC_MESSAGE_MAX;
	struct ask *ask;

	if (wc->status != IB_WC_SUCCESS) {
		client_failed(c, wc, "receive");
		return;
	}
	/*
	 * The CPU reads what the device wrote, and gives the memory back. Only now is wc->byte_len
	 * valid.
	 */
	ib_dma_sync_single_for_cpu(cq->device, dma, RNIC_MESSAGE_MAX, DMA_FROM_DEVICE);
	ask = client_take_answer(c, area_message(&c->answer_area, index), wc->byte_len);
	ib_dma_sync_single_for_device(cq->device, dma, RNIC_MESSAGE_MAX, DMA_FROM_DEVICE);
	if (IS_ERR(ask)) {
		pr_err("the server sent what is no answer to an ask\n");
		client_break(c, PTR_ERR(ask));
		return;
	}

	/*
	 * Posted again before the ask is free: each ask on its way has a receive for its answer.
	 */
	ret = client_post_receive(c, index);
	if (ret) {
		client_break(c, ret);
		return;
	}
	spin_lock_bh(&c->lock);
	ask->waiting = false;
	c->on_the_way--;
	spin_unlock_bh(&c->lock);
	wake_up(&c->wait);
	/* -- end -- */
}

/* ------------------------------------------------------------ /proc/rnic_client */

static int client_show(struct seq_file *m, void *unused)
{
	struct client *c = m->private;

	/* Not the mutex: how things are can be read while a command waits. */
	spin_lock_bh(&c->lock);
	seq_printf(m, "state %s\n", client_state_names[c->state]);
	if (c->peer.ss_family)
		seq_printf(m, "peer %pISpc\n", &c->peer);
	seq_printf(m, "poll %s\n", poll);
	seq_printf(m, "depth %u\n", c->window);
	seq_printf(m, "sent %llu\n", c->sent);
	seq_printf(m, "received %llu\n", c->received);
	seq_printf(m, "wrong %llu\n", c->wrong);
	seq_printf(m, "errors %llu\n", c->errors);
	seq_printf(m, "error %d\n", c->error);
	if (c->refusal.magic)
		seq_printf(m, "refusal version %u service %u\n", be16_to_cpu(c->refusal.version),
			   be16_to_cpu(c->refusal.service));
	seq_puts(m, "answer ");
	seq_escape_mem(m, c->text, c->text_length, ESCAPE_ANY | ESCAPE_NAP, NULL);
	seq_putc(m, '\n');
	spin_unlock_bh(&c->lock);
	return 0;
}

static int client_open(struct inode *inode, struct file *file)
{
	return single_open(file, client_show, pde_data(inode));
}

static int client_connect_words(struct client *c, const char *host, const char *service)
{
	struct sockaddr_storage peer = {};	/* not all of it is set below */

	if (!host || !service)
		return -EINVAL;
	/* AF_UNSPEC: an address of either family */
	if (inet_pton_with_scope(&init_net, AF_UNSPEC, host, service, &peer)) {
		pr_err("%s port %s is no address\n", host, service);
		return -EINVAL;
	}
	return client_connect(c, &peer);
}

static int client_texts_words(struct client *c, const char *word)
{
	unsigned int count;
	int ret = word ? kstrtouint(word, 0, &count) : -EINVAL;

	return ret ? ret : client_send_texts(c, count);
}

/* One command.  The mutex is held. */
static int client_command(struct client *c, const char *verb, char *rest)
{
	char *word;

	if (!strcmp(verb, "connect")) {
		word = strsep(&rest, " ");
		return client_connect_words(c, word, rest);
	}
	if (!strcmp(verb, "send"))
		return client_send(c, rest ? rest : "", rest ? strlen(rest) : 0);
	if (!strcmp(verb, "texts"))
		return client_texts_words(c, rest);
	return -EINVAL;
}

static int client_line(struct client *c, char *line, size_t length)
{
	char *verb;
	int ret;

	if (length && line[length - 1] == '\n') /* echo adds it */
		line[--length] = '\0';
	/* One write() is one command: what follows a NUL or a newline would be lost. */
	if (strcspn(line, "\n") != length)
		return -EINVAL;
	verb = strsep(&line, " ");
	if (!strcmp(verb, "disconnect")) {
		client_disconnect(c);
		return 0;
	}
	ret = mutex_lock_interruptible(&c->mutex);
	if (ret)
		return ret;
	ret = client_command(c, verb, line);
	mutex_unlock(&c->mutex);
	return ret;
}

static ssize_t client_write(struct file *file, const char __user *buffer, size_t count,
			    loff_t *position)
{
	char *line;
	int ret;

	if (count > PAGE_SIZE)
		return -E2BIG;
	line = memdup_user_nul(buffer, count);
	if (IS_ERR(line))
		return PTR_ERR(line);
	ret = client_line(pde_data(file_inode(file)), line, count);
	kfree(line);
	return ret ? ret : count;
}

static const struct proc_ops client_proc = {
	.proc_open = client_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = client_write,
};

/* ------------------------------------------------------------ loading and unloading */

/* What the parameters ask for. */
static int client_begin_by_parameters(struct client *c)
{
	int ret;

	if (!addr)
		return 0;
	mutex_lock(&c->mutex);
	ret = client_connect_words(c, addr, port);
	if (!ret)
		ret = client_send_texts(c, texts);
	mutex_unlock(&c->mutex);
	return ret;
}

static void client_end(struct client *c, struct proc_dir_entry *proc)
{
	/*
	 * An open file does not hold the module: proc_remove() waits for each write(), so these
	 * have to end.  They do without a connection, and none begins any more.
	 */
	spin_lock_bh(&c->lock);
	c->leaving = true;
	spin_unlock_bh(&c->lock);
	client_disconnect(c);
	proc_remove(proc);
	flush_work(&c->down);	/* queued by a command that has ended since */
}

static struct proc_dir_entry *client_file;

static int __init client_init(void)
{
	int ret;

	if (strcmp(poll, "softirq") && strcmp(poll, "workqueue")) {
		pr_err("poll is softirq or workqueue, not %s\n", poll);
		return -EINVAL;
	}
	mutex_init(&client.mutex);
	spin_lock_init(&client.lock);
	init_waitqueue_head(&client.wait);
	INIT_WORK(&client.down, client_down);
	INIT_DELAYED_WORK(&client.probe, client_probe);

	client_file = proc_create_data("rnic_client", 0644, NULL, &client_proc, &client);
	if (!client_file)
		return -ENOMEM;
	ret = client_begin_by_parameters(&client);
	if (ret)
		client_end(&client, client_file);	/* insmod says why */
	return ret;
}

static void __exit client_exit(void)
{
	client_end(&client, client_file);
}

module_init(client_init);
module_exit(client_exit);

MODULE_DESCRIPTION("An RDMA client: connects, asks, and checks the answers");
MODULE_LICENSE("GPL");
