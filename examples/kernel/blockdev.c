// SPDX-License-Identifier: GPL-2.0
/*
 * blockdev: a disk whose sectors lie in the memory of a peer.
 * The peer is a process on another computer: peer_memory.py.
 *
 *	insmod blockdev.ko addr=10.77.0.1 port=7471
 *	mkfs.ext4 /dev/rnicblk0; mount /dev/rnicblk0 /mnt
 *
 * A sector is read by RDMA READ and written by RDMA WRITE: the peer's program takes no part in it.
 * Read this file from its end: blockdev_init() makes everything, in the order in which it is
 * needed; blockdev_end() takes the connection down.  Between them the block layer calls
 * blockdev_queue() for each request, and the RDMA core calls blockdev_done() when it is done.
 *
 * The limits of a request come from the device (blockdev_limits()): a request is one work request.
 *
 * What FLUSH is for.  A WRITE that has completed may still be under way: on RoCE the peer's device
 * has taken it, on iWARP only this end's TCP.  So FLUSH is a READ, which a queue pair carries out
 * behind all earlier WRITEs: when it has come back they are in the peer's memory.  Whether that
 * outlives the peer's computer is the peer's business.
 *
 * When the peer is lost, all requests end with an I/O error, now and later: there is no
 * reconnecting, since WRITEs may be lost that had completed.  Unload the module and load it again.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/blk-mq.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>
#include <rdma/rw.h>

#include "connection.h"

#define SEGMENTS	32	/* pieces of memory in one request, at most */
#define SECTORS		1024	/* in one request, at most: 512 KiB */
#define FLUSH_BYTES	8

static char *addr;
module_param(addr, charp, 0444);
MODULE_PARM_DESC(addr, "the peer's IPv4 or IPv6 address");

static char *port = "7471";
module_param(port, charp, 0444);
MODULE_PARM_DESC(port, "the peer's port (default: 7471)");

static uint depth = 32;
module_param(depth, uint, 0444);
MODULE_PARM_DESC(depth, "requests that are under way at the same time (default: 32)");

static uint timeout = 30;
module_param(timeout, uint, 0444);
MODULE_PARM_DESC(timeout, "seconds after which a request without an answer ends the connection, 1 to 86400 (default: 30)");

static struct {
	struct connection peer;
	void *scratch;			/* where FLUSH reads to */
	struct blk_mq_tag_set tags;
	struct gendisk *disk;
	bool dead;			/* no request may use the queue pair any more */
	struct work_struct end;		/* blockdev_end() */
} blockdev;

/* What each request of the block layer has with it: blk_mq_rq_to_pdu(). */
struct blockdev_request {
	struct ib_cqe cqe;		/* whom the completion is for */
	struct rdma_rw_ctx rw;		/* its work requests */
	enum dma_data_direction direction;
	blk_status_t status;
	u64 offset;			/* in the peer's memory */
	int nents;			/* used of sg */
	struct scatterlist sg[SEGMENTS];
};

/*
 * The peer is lost, or the module is unloaded.  Runs in a work queue, as it sleeps.  Everything
 * comes down in the order of use: no new request, none under way, the queue pair, and what it was
 * made of.
 */
static void blockdev_end(struct work_struct *work)
{
	struct request_queue *queue = blockdev.disk ? blockdev.disk->queue : NULL;

	WRITE_ONCE(blockdev.dead, true);
	/*
	 * Wait until no blockdev_queue() runs that has not seen this.  Later ones wait until the
	 * queue goes on.
	 */
	if (queue)
		blk_mq_quiesce_queue(queue);
	connection_close(&blockdev.peer);
	if (queue)
		blk_mq_unquiesce_queue(queue);
}

static void blockdev_lost(struct connection *c)
{
	schedule_work(&blockdev.end);
}

/*
 * A request is done: called in a softirq (IB_POLL_SOFTIRQ), where nothing may sleep.  What the
 * request has of the queue pair is given back before the block layer hears of it.
 */
static void blockdev_done(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: give back what the request has of the queue pair, then end it -- */
	struct blockdev_request *r = container_of(wc->wr_cqe, struct blockdev_request, cqe);
	struct rdma_cm_id *id = blockdev.peer.id;

	rdma_rw_ctx_destroy(&r->rw, id->qp, id->port_num, r->sg, r->nents, r->direction);
	if (wc->status != IB_WC_SUCCESS) {
		/*
		 * The first one says why; the queue pair is in the error state, and flushes all
		 * others.
		 */
		if (wc->status != IB_WC_WR_FLUSH_ERR)
			pr_err("the peer is lost: %s\n", ib_wc_status_msg(wc->status));
		r->status = BLK_STS_IOERR;
		schedule_work(&blockdev.end);
	}
	blk_mq_complete_request(blk_mq_rq_from_pdu(r));
	/* -- end -- */
}

/* The block layer calls this after blk_mq_complete_request(), on the processor that asked. */
static void blockdev_complete(struct request *request)
{
	struct blockdev_request *r = blk_mq_rq_to_pdu(request);

	blk_mq_end_request(request, r->status);
}

/*
 * A request has had no answer for `timeout` seconds: the peer counts as lost.  The request itself
 * is still in the hands of the device, which may write to its memory.  It ends when the queue pair
 * has given it back.
 */
static enum blk_eh_timer_return blockdev_timeout(struct request *request)
{
	if (!READ_ONCE(blockdev.dead))
		pr_err("no answer for %u s: the peer counts as lost\n", timeout);
	schedule_work(&blockdev.end);
	return BLK_EH_RESET_TIMER;
}

/* What a request wants: which way, where, and its memory as a list of pieces. */
static blk_status_t blockdev_map(struct request *request, struct blockdev_request *r)
{
	/* -- your part: which way, where, and the pieces of memory -- */
	sg_init_table(r->sg, SEGMENTS);
	switch (req_op(request)) {
	case REQ_OP_READ:
		r->direction = DMA_FROM_DEVICE;
		break;
	case REQ_OP_WRITE:
		r->direction = DMA_TO_DEVICE;
		break;
	case REQ_OP_FLUSH:
		r->direction = DMA_FROM_DEVICE;
		sg_init_one(r->sg, blockdev.scratch, FLUSH_BYTES);
		r->nents = 1;
		r->offset = 0;		/* of any byte; a FLUSH has no sector */
		return BLK_STS_OK;
	default:
		return BLK_STS_NOTSUPP;
	}
	r->offset = blk_rq_pos(request) << SECTOR_SHIFT;
	r->nents = blk_rq_map_sg(request->q, request, r->sg);
	return r->nents ? BLK_STS_OK : BLK_STS_IOERR;
	/* -- end -- */
}

/*
 * Post a request.  The rdma_rw functions map its memory for the device (ib_dma_map_sg()), and make
 * the work requests that the device needs:
 *
 *	WRITE, and READ on RoCE: one.  The key to its pieces is the PD's local_dma_lkey, which opens
 *	all of this computer's memory, and which only the kernel has.
 *	READ on iWARP: the peer's device must be told a key to write here, and that one would be too
 *	good for it.  So a memory region is registered for these pieces alone, from a pool that the
 *	queue pair has.
 *
 * They allocate memory, so they may sleep.
 */
static blk_status_t blockdev_post(struct blockdev_request *r)
{
	/* -- your part: post the transfer by the rdma_rw functions -- */
	struct connection *c = &blockdev.peer;
	struct rdma_cm_id *id = c->id;
	int ret;

	ret = rdma_rw_ctx_init(&r->rw, id->qp, id->port_num, r->sg, r->nents, 0,
			       c->addr + r->offset, c->rkey, r->direction);
	if (ret < 0)	/* no memory, or no region is free: the block layer tries again */
		return ret == -ENOMEM || ret == -EAGAIN ? BLK_STS_RESOURCE : BLK_STS_IOERR;
	r->cqe.done = blockdev_done;
	ret = rdma_rw_ctx_post(&r->rw, id->qp, id->port_num, &r->cqe, NULL);
	if (!ret)
		return BLK_STS_OK;
	rdma_rw_ctx_destroy(&r->rw, id->qp, id->port_num, r->sg, r->nents, r->direction);
	return BLK_STS_IOERR;
	/* -- end -- */
}

/* The block layer has a request for us.  It may sleep here, because of BLK_MQ_F_BLOCKING. */
static blk_status_t blockdev_queue(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *data)
{
	struct request *request = data->rq;
	struct blockdev_request *r = blk_mq_rq_to_pdu(request);
	blk_status_t status;
	unsigned int noio;

	if (READ_ONCE(blockdev.dead))
		return BLK_STS_IOERR;
	r->status = BLK_STS_OK;
	status = blockdev_map(request, r);
	if (status)
		return status;
	blk_mq_start_request(request);	/* its time begins */
	/*
	 * A request for memory may make the kernel write dirty pages to a disk, to have their
	 * memory: perhaps to this one, where it would wait for itself.  So no allocation may begin
	 * I/O here.
	 */
	noio = memalloc_noio_save();
	status = blockdev_post(r);
	memalloc_noio_restore(noio);
	return status;
}

static const struct blk_mq_ops blockdev_queue_ops = {
	.queue_rq = blockdev_queue,
	.complete = blockdev_complete,
	.timeout = blockdev_timeout,
};

/*
 * The block layer counts who has the disk open; while somebody has, the module cannot be unloaded.
 */
static const struct block_device_operations blockdev_ops = {
	.owner = THIS_MODULE,
};

/* How many pieces of memory one work request can have. */
static u32 blockdev_segments(struct ib_device *device)
{
	u32 segments = min_t(u32, SEGMENTS, device->attrs.max_send_sge);

	/* On iWARP a READ has a region instead. */
	if (!rdma_protocol_iwarp(device, blockdev.peer.id->port_num))
		segments = min_t(u32, segments, device->attrs.max_sge_rd);
	return segments;
}

static int blockdev_make_queue_pair(void)
{
	struct connection *c = &blockdev.peer;
	struct ib_qp_init_attr attr = {
		.cap.max_send_wr = 1,	/* for ib_drain_qp(); the rdma_rw functions add theirs */
		.cap.max_recv_wr = 1,	/* the same */
		.cap.max_send_sge = blockdev_segments(c->id->device),
		.cap.max_recv_sge = 1,
		.cap.max_rdma_ctxs = depth,	/* transfers of theirs at the same time */
	};

	/*
	 * A request has one completion, but with errors each of its work requests may have one:
	 * there are three where a region is registered.
	 */
	return connection_make_queue_pair(c, &attr, 3 * depth + 2, IB_POLL_SOFTIRQ);
}

/* Tell the block layer what a request may be, so that each fits into one work request. */
static void blockdev_limits(struct request_queue *queue)
{
	/* -- your part: what a request may be, so that it fits into one work request -- */
	blk_queue_max_segments(queue, blockdev_segments(blockdev.peer.id->device));
	blk_queue_max_hw_sectors(queue, SECTORS);
	/*
	 * A memory region is a list of whole pages, but for the first and the last one.  So a
	 * request must have no gaps: the block layer splits those that have.
	 */
	blk_queue_virt_boundary(queue, PAGE_SIZE - 1);
	/*
	 * Please FLUSH; without FUA (a WRITE that is a FLUSH, too) the block layer does that in two
	 * steps.
	 */
	blk_queue_write_cache(queue, true, false);
	/*
	 * Nobody may change a page while it is written: a packet's checksum is made before the
	 * packet is copied, and a peer on iWARP that finds it wrong ends the connection.
	 */
	blk_queue_flag_set(QUEUE_FLAG_STABLE_WRITES, queue);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, queue);
	/* -- end -- */
}

static int blockdev_make_disk(void)
{
	struct blk_mq_tag_set *tags = &blockdev.tags;
	struct gendisk *disk;
	int err;

	tags->ops = &blockdev_queue_ops;
	tags->nr_hw_queues = 1;
	tags->queue_depth = depth;
	tags->numa_node = NUMA_NO_NODE;
	tags->cmd_size = sizeof(struct blockdev_request);
	tags->timeout = timeout * HZ;
	tags->flags = BLK_MQ_F_SHOULD_MERGE | BLK_MQ_F_BLOCKING;
	err = blk_mq_alloc_tag_set(tags);
	if (err)
		return err;
	disk = blk_mq_alloc_disk(tags, NULL);
	if (IS_ERR(disk)) {
		blk_mq_free_tag_set(tags);
		return PTR_ERR(disk);
	}
	disk->fops = &blockdev_ops;
	strscpy(disk->disk_name, "rnicblk0", sizeof(disk->disk_name));
	blockdev_limits(disk->queue);
	blockdev.disk = disk;
	return 0;
}

static void blockdev_free_disk(void)
{
	if (!blockdev.disk)
		return;
	put_disk(blockdev.disk);
	blk_mq_free_tag_set(&blockdev.tags);
}

/*
 * Connect, and show the disk, which has been made before: from now on the connection can be lost at
 * any time.
 */
static int blockdev_connect(void)
{
	struct connection *c = &blockdev.peer;
	int err;

	err = connection_connect(c);
	if (err)
		return err;
	if (c->length < PAGE_SIZE) {
		pr_err("the peer offers %llu bytes, which is no disk\n", c->length);
		return -ENOSPC;
	}
	if (c->length > LLONG_MAX) {	/* a position in the disk is a loff_t, which has a sign */
		pr_err("the peer offers %llu bytes, which is more than a disk can have\n",
		       c->length);
		return -EFBIG;
	}
	set_capacity(blockdev.disk, c->length >> SECTOR_SHIFT);
	/* Requests come before this returns: the kernel looks for partitions. */
	return add_disk(blockdev.disk);
}

/*
 * Take the connection down now.  That may have begun already, so it is left to the work queue,
 * where it is done once at a time.  What asks for it once more before it is done asks in vain, but
 * that must not run when this function has returned.
 */
static void blockdev_end_now(void)
{
	schedule_work(&blockdev.end);
	flush_work(&blockdev.end);
	cancel_work_sync(&blockdev.end);
}

static int __init blockdev_init(void)
{
	int err;

	if (!addr || !depth || depth > BLK_MQ_MAX_DEPTH ||
	    !timeout || timeout > CONNECTION_TIMEOUT_MAX) {
		pr_err("addr is missing, or depth or timeout is wrong\n");
		return -EINVAL;
	}
	INIT_WORK(&blockdev.end, blockdev_end);
	blockdev.peer.lost = blockdev_lost;
	blockdev.scratch = kzalloc(FLUSH_BYTES, GFP_KERNEL);
	if (!blockdev.scratch)
		return -ENOMEM;
	err = connection_resolve(&blockdev.peer, addr, port);
	if (!err)
		err = blockdev_make_queue_pair();
	if (!err)
		err = blockdev_make_disk();
	if (!err)
		err = blockdev_connect();
	if (err) {
		pr_err("no disk at %s, port %s: error %d\n", addr, port, err);
		blockdev_end_now();
		blockdev_free_disk();
		kfree(blockdev.scratch);
		return err;
	}
	pr_info("rnicblk0: %llu MiB at %s\n", blockdev.peer.length >> 20, addr);
	return 0;
}

static void __exit blockdev_exit(void)
{
	del_gendisk(blockdev.disk);	/* returns when no request is under way or can come */
	blockdev_end_now();
	blockdev_free_disk();
	kfree(blockdev.scratch);
}

module_init(blockdev_init);
module_exit(blockdev_exit);

MODULE_DESCRIPTION("A block device whose sectors lie in the memory of an RDMA peer");
MODULE_LICENSE("GPL");
