// SPDX-License-Identifier: GPL-2.0
/*
 * listener: takes requests for connections; an agent serves each.
 *
 * It listens on all RDMA devices, for clients such as peer_client.py and the module client.  It
 * checks the private data of a request (message.h), and refuses what it does not serve with
 * private data that says what it does.  Agents are in the module agent, which is loaded first.
 *
 * Reading /proc/rnic_listener shows the agents.  Writing "disconnect NUMBER" ends one.
 *
 * The order of reading: listener_listen(), listener_event(), listener_request(),
 * listener_refuse(), listener_exit().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/in6.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>

#include "agent.h"
#include "message.h"

#define BACKLOG	16			/* requests that may wait for the handler */

static ushort port = 7471;
module_param(port, ushort, 0444);
MODULE_PARM_DESC(port, "the port to listen on (default: 7471)");

static uint max_agents = 8;
module_param(max_agents, uint, 0644);
MODULE_PARM_DESC(max_agents, "how many clients are served at a time (default: 8)");

static struct rdma_cm_id *listener_ids[2];	/* for IPv4 and IPv6 */
static struct proc_dir_entry *listener_file;
static atomic_t requests, refused;

/* ------------------------------------------------------------ requests */

/* What is wrong with a request, NULL if it is one for us.  Private data is a stranger's. */
static const char *request_fault(const struct rdma_conn_param *param)
{
	const struct rnic_request *request = param->private_data;

	if (!request || param->private_data_len < sizeof(*request))
		return "no private data";
	if (request->magic != cpu_to_be32(RNIC_MAGIC))
		return "wrong magic";
	if (request->version != cpu_to_be16(RNIC_VERSION))
		return "wrong version";
	if (request->service != cpu_to_be16(RNIC_ECHO))
		return "wrong service";
	return NULL;
}

/* Refuse a request, and say what there is. */
static void listener_refuse(struct rdma_cm_id *id, const char *why)
{
	/* -- your part: refuse, with private data that says what there is -- */
	struct rnic_request offered = {
		.magic = cpu_to_be32(RNIC_MAGIC),
		.version = cpu_to_be16(RNIC_VERSION),
		.service = cpu_to_be16(RNIC_ECHO),
	};

	atomic_inc(&refused);
	pr_info("refused %pISpc: %s\n", &id->route.addr.dst_addr, why);
	/* If it fails, the id's destruction refuses, without private data. */
	rdma_reject(id, &offered, sizeof(offered), IB_CM_REJ_CONSUMER_DEFINED);
	/* -- end -- */
}

/* A request has come, with an id of its own. */
static int listener_request(struct rdma_cm_id *id, const struct rdma_cm_event *event)
{
	/* -- your part: refuse a request that is none for us, or start an agent -- */
	const char *fault = request_fault(&event->param.conn);
	int ret = fault ? -EPROTO : rnic_agent_start(id, max_agents);

	atomic_inc(&requests);
	if (ret == -EUSERS)
		fault = "there are max_agents clients";
	else if (ret && !fault)
		fault = "no memory";
	if (fault)
		listener_refuse(id, fault);
	return ret;	/* anything but 0: RDMA-CM destroys the id when the handler has returned */
	/* -- end -- */
}

/*
 * The events of the listener, and of the ids of requests, which begin with its handler and
 * context.  An id whose context is not the listener's any more has an agent.
 */
static int listener_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		return listener_request(id, event);
	if (id->context != listener_ids) {
		rnic_agent_event(id, event);
		return 0;
	}
	/*
	 * RDMA-CM listens on each device with an id of its own.  When the device goes, that id
	 * goes with it: anything but 0 destroys it.
	 */
	return event->event == RDMA_CM_EVENT_DEVICE_REMOVAL ? -ENODEV : 0;
}

/* Listen at an address; the id that listens, or ERR_PTR() of a negative errno. */
static struct rdma_cm_id *listener_listen(struct sockaddr *address)
{
	struct rdma_cm_id *id;
	int ret;

	id = rdma_create_id(&init_net, listener_event, listener_ids, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return id;
	/*
	 * Else an id of IPv6 takes the port for IPv4, too, but over iWARP no requests from there.
	 */
	ret = rdma_set_afonly(id, 1);
	if (!ret)
		ret = rdma_bind_addr(id, address);
	if (!ret)
		ret = rdma_listen(id, BACKLOG);
	if (ret) {
		rdma_destroy_id(id);
		return ERR_PTR(ret);
	}
	return id;
}

/* Listen at all addresses of both families. */
static int listener_listen_everywhere(void)
{
	struct sockaddr_in all4 = {
		.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_ANY),
	};
	struct sockaddr_in6 all6 = {
		.sin6_family = AF_INET6,
		.sin6_port = htons(port),
		.sin6_addr = IN6ADDR_ANY_INIT,
	};

	listener_ids[0] = listener_listen((struct sockaddr *)&all4);
	if (IS_ERR(listener_ids[0]))
		return PTR_ERR(listener_ids[0]);
	listener_ids[1] = listener_listen((struct sockaddr *)&all6);
	if (IS_ERR(listener_ids[1])) {
		rdma_destroy_id(listener_ids[0]);
		rnic_agents_end();	/* of clients that have come already */
		return PTR_ERR(listener_ids[1]);
	}
	return 0;
}

/* In this order: first no new requests and agents, then no agents. */
static void listener_stop(void)
{
	rdma_destroy_id(listener_ids[0]);
	rdma_destroy_id(listener_ids[1]);
	rnic_agents_end();
}

/* ------------------------------------------------------------ /proc/rnic_listener */

static int listener_show(struct seq_file *m, void *unused)
{
	seq_printf(m, "port %u\n", port);
	seq_printf(m, "requests %d\n", atomic_read(&requests));
	seq_printf(m, "refused %d\n", atomic_read(&refused));
	rnic_agents_show(m);
	return 0;
}

static int listener_open(struct inode *inode, struct file *file)
{
	return single_open(file, listener_show, NULL);
}

static ssize_t listener_write(struct file *file, const char __user *buffer, size_t count,
			      loff_t *position)
{
	char line[32] = "";
	size_t length;
	u32 number;
	int ret;

	if (count >= sizeof(line))
		return -E2BIG;
	if (copy_from_user(line, buffer, count))
		return -EFAULT;
	/* sscanf() would take 4294967297 for 1, and would not say what follows the number. */
	length = str_has_prefix(line, "disconnect ");
	if (!length || strlen(line) != count)
		return -EINVAL;
	ret = kstrtou32(line + length, 10, &number);
	if (ret)
		return ret;
	ret = rnic_agent_disconnect(number);
	return ret ? ret : count;
}

static const struct proc_ops listener_proc = {
	.proc_open = listener_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = listener_write,
};

/* ------------------------------------------------------------ loading and unloading */

static int __init listener_init(void)
{
	int ret;

	if (!port) {	/* RDMA-CM would take any, and a different one for each id */
		pr_err("port=0 is not in 1..65535\n");
		return -EINVAL;
	}
	ret = listener_listen_everywhere();
	if (ret) {
		pr_err("port %u: error %d\n", port, ret);
		return ret;
	}
	listener_file = proc_create("rnic_listener", 0644, NULL, &listener_proc);
	if (!listener_file) {
		listener_stop();
		return -ENOMEM;
	}
	pr_info("listens on port %u\n", port);
	return 0;
}

static void __exit listener_exit(void)
{
	proc_remove(listener_file);
	listener_stop();
}

module_init(listener_init);
module_exit(listener_exit);

MODULE_DESCRIPTION("An RDMA server: a listener that hands each request to an agent");
MODULE_LICENSE("GPL");
