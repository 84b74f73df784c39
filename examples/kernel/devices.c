// SPDX-License-Identifier: GPL-2.0
/*
 * devices: the RDMA devices of this computer, and what they can do.
 *
 * The kernel's RDMA core tells its clients of each device that comes and goes. This module is such
 * a client: it keeps a list of the devices, writes into the log what happens to them, and shows
 * them in /proc/rdma_devices.
 *
 * Read in this order: init and exit at the end; devices_add() and devices_remove(); event(); the
 * functions that show a device, from devices_show() upwards.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>

#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>

#define PROC_NAME "rdma_devices"

/* What we keep of a device. */
struct entry {
	struct list_head	list;	/* in entries */
	struct ib_device	*device;	/* the core's, until devices_remove() returns */
	struct ib_event_handler	handler;
	atomic_t		events;	/* how many there have been */
	char			name[IB_DEVICE_NAME_MAX]; /* may change: guarded by the lock */
};

static DEFINE_MUTEX(lock); /* guards the list, and the names in it */
static LIST_HEAD(entries);
static struct ib_client client; /* its functions stand at the end */

/* What the numbers of enumerations mean, for people. */

static const char *node_type(struct ib_device *device)
{
	switch (device->node_type) {
	case RDMA_NODE_IB_CA:
		return "channel adapter"; /* InfiniBand's word; RoCE's devices are that, too */
	case RDMA_NODE_IB_SWITCH:
		return "switch";
	case RDMA_NODE_IB_ROUTER:
		return "router";
	case RDMA_NODE_RNIC:
		return "RNIC"; /* iWARP's word */
	default:
		return "other";
	}
}

/* Ask the port, and never judge by a device's name: users choose that. */
static const char *transport(struct ib_device *device, u32 port)
{
	if (rdma_protocol_iwarp(device, port))
		return "iwarp";
	if (rdma_protocol_roce(device, port))
		return "roce";
	if (rdma_protocol_ib(device, port))
		return "ib";
	return "other";
}

static const char *link_layer(struct ib_device *device, u32 port)
{
	switch (rdma_port_get_link_layer(device, port)) {
	case IB_LINK_LAYER_INFINIBAND:
		return "InfiniBand";
	case IB_LINK_LAYER_ETHERNET:
		return "Ethernet";
	default:
		return "unspecified";
	}
}

static const char *port_state(enum ib_port_state state)
{
	switch (state) {
	case IB_PORT_DOWN:
		return "down";
	case IB_PORT_INIT:
		return "init";
	case IB_PORT_ARMED:
		return "armed";
	case IB_PORT_ACTIVE:
		return "active";
	default:
		return "other";
	}
}

/*
 * How many places of the port's table of GIDs are taken. rdma_get_gid_attr() returns a reference to
 * one, which is given back by rdma_put_gid_attr(), or an error in the pointer's place: -ENODATA for
 * an empty place. It does not sleep.
 */
static int gids(struct ib_device *device, u32 port, int places)
{
	const struct ib_gid_attr *gid;
	int i, count = 0;

	for (i = 0; i < places; i++) {
		gid = rdma_get_gid_attr(device, port, i);
		if (IS_ERR(gid))
			continue;
		rdma_put_gid_attr(gid);
		count++;
	}
	return count;
}

/*
 * ib_query_port() asks the driver, which may ask the hardware: it may sleep. It returns 0 or a
 * negative errno. A port is asked each time that the file is read, since its state changes.
 */
static void show_port(struct seq_file *file, struct ib_device *device, u32 port)
{
	struct ib_port_attr attr;
	int err = ib_query_port(device, port, &attr);

	if (err) {
		seq_printf(file, "  port %u: cannot be queried (%pe)\n", port, ERR_PTR(err));
		return;
	}
	seq_printf(file, "  port %u: %s, %s over %s, MTU %d (at most %d), %d of %d GIDs\n",
		   port, port_state(attr.state), transport(device, port), link_layer(device, port),
		   ib_mtu_enum_to_int(attr.active_mtu), ib_mtu_enum_to_int(attr.max_mtu),
		   gids(device, port, attr.gid_tbl_len), attr.gid_tbl_len);
}

/*
 * What the device can do does not change while it is there. The driver has filled in device->attrs
 * before we were told of the device; it is only read.
 */
static void show_limits(struct seq_file *file, const struct ib_device_attr *attr)
{
	seq_printf(file, "  max_qp: %d\n", attr->max_qp);
	seq_printf(file, "  max_qp_wr: %d\n", attr->max_qp_wr);
	seq_printf(file, "  max_cqe: %d\n", attr->max_cqe);
	seq_printf(file, "  max_send_sge: %d\n", attr->max_send_sge);
	seq_printf(file, "  max_recv_sge: %d\n", attr->max_recv_sge);
	seq_printf(file, "  max_sge_rd: %d\n", attr->max_sge_rd);
	seq_printf(file, "  max_qp_rd_atom: %d\n", attr->max_qp_rd_atom);
	seq_printf(file, "  atomics: %s\n", attr->atomic_cap == IB_ATOMIC_NONE ? "no" : "yes");

	/* Needed by rw and blockdev: memory is registered by a work request. */
	if (attr->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)
		seq_printf(file, "  fast registration: yes, %u pages at most\n",
			   attr->max_fast_reg_page_list_len);
	else
		seq_puts(file, "  fast registration: no\n");
}

/* The list is locked: the device cannot go meanwhile, since devices_remove() waits for the lock. */
static void show_entry(struct seq_file *file, struct entry *entry)
{
	struct ib_device *device = entry->device;
	char firmware[IB_FW_VERSION_NAME_MAX];
	u32 port;

	ib_get_device_fw_str(device, firmware); /* an empty text if the driver says nothing */

	seq_printf(file, "%s\n", entry->name);
	seq_printf(file, "  node type: %s\n", node_type(device));
	seq_printf(file, "  node GUID: %016llx\n", be64_to_cpu(device->node_guid));
	seq_printf(file, "  firmware: %s\n", *firmware ? firmware : "none");
	rdma_for_each_port(device, port)
		show_port(file, device, port);
	show_limits(file, &device->attrs);
	seq_printf(file, "  events: %d\n", atomic_read(&entry->events));
}

/*
 * A short file needs no start(), next() and stop(): single_open() calls this one function for all
 * of it, again with a larger buffer if it does not fit. procfile has the long way.
 */
static int devices_show(struct seq_file *file, void *unused)
{
	struct entry *entry;

	mutex_lock(&lock);
	list_for_each_entry(entry, &entries, list)
		show_entry(file, entry);
	mutex_unlock(&lock);
	return 0;
}

/*
 * What the device reports without being asked: a port goes up or down, a GID changes. The core
 * calls this from a work queue, so it may sleep; but all who listen to the device wait meanwhile.
 */
static void event(struct ib_event_handler *handler, struct ib_event *event)
{
	struct entry *entry = container_of(handler, struct entry, handler);

	atomic_inc(&entry->events);
	switch (event->event) {
	case IB_EVENT_PORT_ACTIVE:
	case IB_EVENT_PORT_ERR:
	case IB_EVENT_LID_CHANGE:
	case IB_EVENT_PKEY_CHANGE:
	case IB_EVENT_GID_CHANGE:
		pr_info("%s port %u: %s\n", event->device->name, event->element.port_num,
			ib_event_msg(event->event));
		break;
	default: /* of the whole device, or with no port that we could name */
		pr_info("%s: %s\n", event->device->name, ib_event_msg(event->event));
	}
}

/*
 * A device has come. It returns 0, or a negative errno, and then we hear no more of this device:
 * all others have it nevertheless. It may sleep.
 */
static int devices_add(struct ib_device *device)
{
	struct entry *entry = kzalloc(sizeof(*entry), GFP_KERNEL);

	if (!entry)
		return -ENOMEM;
	entry->device = device;
	strscpy(entry->name, device->name, sizeof(entry->name));

	/* Given to devices_remove() and devices_rename(), so that they need not look for it. */
	ib_set_client_data(device, &client, entry);

	mutex_lock(&lock);
	list_add_tail(&entry->list, &entries);
	mutex_unlock(&lock);
	pr_info("%s: a new device, %s, %u port(s)\n", device->name, node_type(device),
		device->phys_port_cnt);

	/* The last step: event() may be called at once. */
	INIT_IB_EVENT_HANDLER(&entry->handler, device, event);
	ib_register_event_handler(&entry->handler);
	return 0;
}

/*
 * The device goes, or this module does. When this returns the device is freed, so nothing of us may
 * use it any more; the core waits as long as we take. A module with connections ends them here.
 */
static void devices_remove(struct ib_device *device, void *data)
{
	struct entry *entry = data;

	/* Waits until event() does not run any more: so never call it under a lock of event()'s. */
	ib_unregister_event_handler(&entry->handler);

	mutex_lock(&lock);
	list_del(&entry->list);
	mutex_unlock(&lock);
	pr_info("%s: the device is gone, or we are, after %d event(s)\n", entry->name,
		atomic_read(&entry->events));
	kfree(entry);
}

/* The device has another name: rdma dev set rxe0 name fast. */
static void devices_rename(struct ib_device *device, void *data)
{
	struct entry *entry = data;

	mutex_lock(&lock);
	pr_info("%s: its name is now %s\n", entry->name, device->name);
	strscpy(entry->name, device->name, sizeof(entry->name));
	mutex_unlock(&lock);
}

static struct ib_client client = {
	.name	= KBUILD_MODNAME,
	.add	= devices_add,
	.remove	= devices_remove,
	.rename	= devices_rename,
};

/*
 * ib_register_client() calls devices_add() for each device that is there already, before it
 * returns, and from then on for each that comes. ib_unregister_client() calls devices_remove() for
 * each that is still there. Both may sleep.
 */
static int __init devices_init(void)
{
	int err = ib_register_client(&client);

	if (err)
		return err;
	if (!proc_create_single(PROC_NAME, 0444, NULL, devices_show)) {
		/* A step failed: those before it are undone, the last one first. */
		ib_unregister_client(&client);
		return -ENOMEM;
	}
	return 0;
}

static void __exit devices_exit(void)
{
	remove_proc_entry(PROC_NAME, NULL);
	ib_unregister_client(&client);
}

module_init(devices_init);
module_exit(devices_exit);

MODULE_DESCRIPTION("The RDMA devices that come and go, and what they can do");
MODULE_LICENSE("GPL");
