// SPDX-License-Identifier: GPL-2.0
/*
 * rw: memory registration; READ, WRITE, atomics on a peer's memory.
 * The peer is peer_memory.py.
 *
 *	insmod rw.ko addr=10.77.0.1 port=7471
 *	echo 'write 100 hello' >/proc/rnic_rw
 *	cat /proc/rnic_rw
 *
 * Each command makes a connection of its own, so that one that fails leaves nothing behind:
 *
 *	write OFFSET TEXT		RDMA WRITE
 *	read OFFSET LENGTH		RDMA READ; shows the first bytes, and a checksum of all
 *	pattern OFFSET LENGTH SEED	WRITE a pattern, READ it back into other memory, compare
 *	api OFFSET LENGTH SEED		the same with the functions of <rdma/rw.h>
 *	add OFFSET NUMBER		FETCH_ADD on 8 bytes
 *	swap OFFSET EXPECTED NEW	CMP_SWAP on 8 bytes
 *	lend TEXT			let the peer read and write memory of this module
 *	stale TEXT			the same, with a key that has been invalidated: it must fail
 *	beyond				READ behind the end of the peer's memory: it must fail
 *	badkey				READ with a key that the peer has not given: it must fail
 *
 * A command that fails is a write() that fails, with the errno that rw_error() chooses.
 *
 * Registration is the subject.  A device finds memory by a key, and the memory of a request lies in
 * pages anywhere.  Fast registration tells the device which pages belong to a key, by work requests
 * in the send queue, in the order of all others.  Read in this order:
 *
 *	rw_region_make()	pages, their addresses for the device, and a memory region (MR)
 *	rw_region_register()	REG_MR: the key holds from now on
 *	rw_region_invalidate()	LOCAL_INV: the key does not hold any more
 *	rw_transfer()		READ or WRITE between a region and the peer's memory
 *	rw_do_api()		what <rdma/rw.h> does of all this by itself
 *	rw_do_lend()		the other way round: the peer gets the key
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/crc32.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string_helpers.h>
#include <linux/uaccess.h>
#include <rdma/rw.h>

#include "connection.h"

#define RW_LENGTH_MAX	((u32)(256 * PAGE_SIZE))
#define RW_COMMAND_MAX	512		/* bytes of a command */
#define RW_SHOWN	64		/* bytes that `read` shows */
#define RW_WORK		64		/* work requests that the send queue has room for */

static char *addr;
module_param(addr, charp, 0444);
MODULE_PARM_DESC(addr, "the peer's IPv4 or IPv6 address");

static char *port = "7471";
module_param(port, charp, 0444);
MODULE_PARM_DESC(port, "the peer's port (default: 7471)");

static uint timeout = 30;
module_param(timeout, uint, 0444);
MODULE_PARM_DESC(timeout, "seconds that a completion is waited for, 1 to 86400 (default: 30)");

/* What /proc/rnic_rw shows: the last command and what came of it. */
static DEFINE_MUTEX(rw_mutex);		/* held while a command runs, or its result is shown */
static char rw_command[RW_COMMAND_MAX];
static char rw_text[RW_COMMAND_MAX];
static int rw_result;

static void rw_say(const char *format, ...) __printf(1, 2);
static void rw_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vscnprintf(rw_text, sizeof(rw_text), format, args);
	va_end(args);
}

/* ---------------------------------------------------------------- work requests, waited for */

/* A work request that somebody waits for.  A completion finds it by the address of its cqe. */
struct rw_work {
	struct ib_cqe cqe;
	struct completion done;
	enum ib_wc_status status;
	u32 bytes;			/* of a receive */
};

/*
 * A connection, and the one message each way that `lend` needs: its bytes, and where they lie for
 * the device.
 */
struct rw {
	struct connection connection;
	struct rw_work answer;
	void *mail[2];			/* sent, received: RNIC_MESSAGE_MAX bytes each */
	u64 mail_addr[2];
};

enum { RW_SENT, RW_RECEIVED };

static struct ib_device *rw_device(struct rw *rw)
{
	return rw->connection.id->device;
}

static struct ib_qp *rw_qp(struct rw *rw)
{
	return rw->connection.id->qp;
}

/* A completion.  The CQ is IB_POLL_WORKQUEUE, so this runs in a work queue and might sleep. */
static void rw_done(struct ib_cq *cq, struct ib_wc *wc)
{
	/* -- your part: the completion of a work request: keep what it says, wake who waits -- */
	struct rw_work *work = container_of(wc->wr_cqe, struct rw_work, cqe);

	work->status = wc->status;
	work->bytes = wc->byte_len;	/* means something only if it is a success */
	complete(&work->done);
	/* -- end -- */
}

static void rw_work_init(struct rw_work *work)
{
	work->cqe.done = rw_done;
	init_completion(&work->done);
}

/* The errno of a completion.  All but SUCCESS leave the queue pair in the error state. */
static int rw_error(enum ib_wc_status status)
{
	switch (status) {
	case IB_WC_SUCCESS:
		return 0;
	case IB_WC_REM_ACCESS_ERR:	/* the key, the address or the right to do that is wrong */
		return -EACCES;
	case IB_WC_REM_INV_REQ_ERR:	/* the peer's device cannot do that */
	case IB_WC_REM_OP_ERR:
		return -EREMOTEIO;
	case IB_WC_RETRY_EXC_ERR:	/* no answer */
	case IB_WC_RNR_RETRY_EXC_ERR:
		return -ETIMEDOUT;
	case IB_WC_WR_FLUSH_ERR:	/* not carried out: the connection had ended */
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

/*
 * Wait for a completion.  A peer that stands still never answers, so there is a limit.  The
 * work request is the device's until it has completed: ib_drain_qp() makes it complete, with an
 * error.
 */
static int rw_wait(struct rw *rw, struct rw_work *work)
{
	if (!wait_for_completion_timeout(&work->done, timeout * HZ)) {
		ib_drain_qp(rw_qp(rw));
		rw_say("no answer");
		return -ETIMEDOUT;
	}
	if (work->status != IB_WC_SUCCESS)
		rw_say("%s", ib_wc_status_msg(work->status));
	return rw_error(work->status);
}

/* Post a work request and wait for it.  ib_post_send() itself does not sleep. */
static int rw_post(struct rw *rw, struct ib_send_wr *wr)
{
	/* -- your part: post a work request that completes to rw_done(), and wait for it -- */
	struct rw_work work;
	int err;

	rw_work_init(&work);
	wr->wr_cqe = &work.cqe;
	wr->send_flags = IB_SEND_SIGNALED;	/* a completion is wanted also if it succeeds */
	err = ib_post_send(rw_qp(rw), wr, NULL);
	return err ? err : rw_wait(rw, &work);
	/* -- end -- */
}

/* ---------------------------------------------------------------- memory */

/* Memory of any length, in pages that need not be neighbours, and a memory region of them. */
struct rw_region {
	struct sg_table pages;
	struct ib_mr *mr;
	u32 length;
};

/* Right after rw_region_make(), also after one that has failed. */
static void rw_region_free(struct rw *rw, struct rw_region *region)
{
	struct sg_table *pages = &region->pages;
	struct scatterlist *sg;
	int i;

	if (!IS_ERR_OR_NULL(region->mr))
		ib_dereg_mr(region->mr);
	if (pages->nents)
		ib_dma_unmap_sg(rw_device(rw), pages->sgl, pages->orig_nents, DMA_BIDIRECTIONAL);
	for_each_sgtable_sg(pages, sg, i)
		if (sg_page(sg))
			__free_page(sg_page(sg));
	sg_free_table(pages);
}

/* Pages alone, which is all that the rdma_rw functions want. */
static int rw_region_pages(struct rw *rw, struct rw_region *region, u32 length)
{
	struct sg_table *pages = &region->pages;
	struct scatterlist *sg;
	u32 left = length;
	int i, err;

	memset(region, 0, sizeof(*region));
	region->length = length;
	err = sg_alloc_table(pages, DIV_ROUND_UP(left, PAGE_SIZE), GFP_KERNEL);
	if (err)
		return err;
	pages->nents = 0;		/* pieces that the device sees: none yet */
	for_each_sgtable_sg(pages, sg, i) {
		struct page *page = alloc_page(GFP_KERNEL | __GFP_ZERO);

		if (!page)
			return -ENOMEM;
		sg_set_page(sg, page, min_t(u32, left, PAGE_SIZE), 0);
		left -= sg->length;
	}
	return 0;
}

/*
 * Make a region.  Nothing of this goes through the queue pair yet.
 *
 * ib_dma_map_sg() finds the address of each page as the device sees it.  It is not dma_map_sg(),
 * since software devices, which have no bus, want the kernel's own addresses.  It may join pages,
 * so it returns how many pieces the device sees; 0 means that it has failed.
 *
 * ib_alloc_mr() makes a memory region that can hold so many pages.  It sleeps, and returns an
 * ERR_PTR.
 *
 * ib_map_mr_sg() writes the pages into the region: all must be whole, but for the first one's
 * beginning and the last one's end.  It returns how many pieces it has taken, or a negative errno.
 */
static int rw_region_make(struct rw *rw, struct rw_region *region, u32 length)
{
	/* -- your part: pages, their addresses for the device, a memory region of them -- */
	struct sg_table *pages = &region->pages;
	int ret;

	ret = rw_region_pages(rw, region, length);
	if (ret)
		return ret;
	pages->nents = ib_dma_map_sg(rw_device(rw), pages->sgl, pages->orig_nents,
				     DMA_BIDIRECTIONAL);
	if (!pages->nents)
		return -ENOMEM;
	region->mr = ib_alloc_mr(rw->connection.pd, IB_MR_TYPE_MEM_REG, pages->orig_nents);
	if (IS_ERR(region->mr))
		return PTR_ERR(region->mr);
	ret = ib_map_mr_sg(region->mr, pages->sgl, pages->nents, NULL, PAGE_SIZE);
	if (ret == pages->nents)
		return 0;
	return ret < 0 ? ret : -EINVAL;
	/* -- end -- */
}

/*
 * REG_MR: the device takes what ib_map_mr_sg() has written, and the key holds.  The lowest byte of
 * a key is the user's: with another one for each registration, an old key never opens new memory.
 */
static int rw_region_register(struct rw *rw, struct rw_region *region, int access)
{
	/* -- your part: give the region another key, and post REG_MR with it -- */
	struct ib_reg_wr reg = { .wr.opcode = IB_WR_REG_MR, .mr = region->mr, .access = access };

	ib_update_fast_reg_key(region->mr, ib_inc_rkey(region->mr->rkey));
	reg.key = region->mr->rkey;
	return rw_post(rw, &reg.wr);
	/* -- end -- */
}

/* LOCAL_INV: from here on nobody can use the key.  The region can be registered again. */
static int rw_region_invalidate(struct rw *rw, struct rw_region *region)
{
	/* -- your part: post LOCAL_INV -- */
	struct ib_send_wr invalidate = {
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = region->mr->rkey,
	};

	return rw_post(rw, &invalidate);
	/* -- end -- */
}

/*
 * Put bytes into a region, for the device: on some machines it would not see what is in the
 * processor's cache.
 */
static void rw_region_put(struct rw *rw, struct rw_region *region, const void *data)
{
	struct scatterlist *sg;
	int i;

	sg_copy_from_buffer(region->pages.sgl, region->pages.orig_nents, data, region->length);
	for_each_sgtable_dma_sg(&region->pages, sg, i)
		ib_dma_sync_single_for_device(rw_device(rw), sg_dma_address(sg), sg_dma_len(sg),
					      DMA_BIDIRECTIONAL);
}

/* Get the bytes of a region that the device has written. */
static void rw_region_get(struct rw *rw, struct rw_region *region, void *data)
{
	struct scatterlist *sg;
	int i;

	for_each_sgtable_dma_sg(&region->pages, sg, i)
		ib_dma_sync_single_for_cpu(rw_device(rw), sg_dma_address(sg), sg_dma_len(sg),
					   DMA_BIDIRECTIONAL);
	sg_copy_to_buffer(region->pages.sgl, region->pages.orig_nents, data, region->length);
}

/*
 * Carry out one operation between all of a region and the peer's memory: `wr` has the opcode, the
 * address and the key there.  The region is registered for it alone.
 *
 * What a READ or an atomic brings is written here, which needs a right.  On RoCE the answer has no
 * key in it, so LOCAL_WRITE will do.  On iWARP the peer's device names our key in it, as in a
 * WRITE.
 */
static int rw_transfer(struct rw *rw, struct rw_region *region, struct ib_send_wr *wr)
{
	/* -- your part: register the region, carry out the work request, invalidate the key -- */
	struct rdma_cm_id *id = rw->connection.id;
	struct ib_sge sge = { .addr = region->mr->iova, .length = region->length };
	int err, access = 0;

	if (wr->opcode != IB_WR_RDMA_WRITE) {
		access = IB_ACCESS_LOCAL_WRITE;
		if (rdma_protocol_iwarp(id->device, id->port_num))
			access |= IB_ACCESS_REMOTE_WRITE;
	}
	err = rw_region_register(rw, region, access);
	if (err)
		return err;
	sge.lkey = region->mr->lkey;
	wr->sg_list = &sge;
	wr->num_sge = 1;
	err = rw_post(rw, wr);
	return err ? err : rw_region_invalidate(rw, region);
	/* -- end -- */
}

/* READ or WRITE. */
static int rw_move(struct rw *rw, struct rw_region *region, enum ib_wr_opcode opcode, u64 offset,
		   u32 rkey)
{
	struct ib_rdma_wr wr = {
		.wr.opcode = opcode,
		.remote_addr = rw->connection.addr + offset,
		.rkey = rkey,
	};

	return rw_transfer(rw, region, &wr.wr);
}

/* ---------------------------------------------------------------- commands */

/* Take the next word, a number.  sscanf() would take 4294967297 for 1, and "1x", too. */
static int rw_number(char **args, u64 *number)
{
	char *word = strsep(args, " ");

	if (!word)
		return -EINVAL;
	if (*args)
		*args = skip_spaces(*args);
	return kstrtou64(word, 10, number);
}

/* So many numbers, and nothing else. */
static int rw_numbers(char *args, u64 *numbers, int count)
{
	int i, err = 0;

	for (i = 0; i < count && !err; i++)
		err = rw_number(&args, &numbers[i]);
	return !err && args ? -EINVAL : err;
}

static int rw_do_write(struct rw *rw, char *args)
{
	struct rw_region region;
	u64 offset;
	int err;

	err = rw_number(&args, &offset);
	if (err)
		return err;
	if (!args)
		return -EINVAL;
	err = rw_region_make(rw, &region, strlen(args));
	if (!err) {
		rw_region_put(rw, &region, args);
		err = rw_move(rw, &region, IB_WR_RDMA_WRITE, offset, rw->connection.rkey);
	}
	rw_region_free(rw, &region);
	return err;
}

static int rw_read(struct rw *rw, u64 offset, u32 length, u32 rkey)
{
	struct rw_region region;
	u8 *data;
	int err;

	data = kvmalloc(length, GFP_KERNEL);
	if (!data)
		return -ENOMEM;
	err = rw_region_make(rw, &region, length);
	if (!err)
		err = rw_move(rw, &region, IB_WR_RDMA_READ, offset, rkey);
	if (!err) {
		rw_region_get(rw, &region, data);
		/* %*pE shows so many bytes, and those that are no letters as escapes. */
		rw_say("crc32 %08x: %*pE", ~crc32_le(~0, data, length),
		       min_t(int, length, RW_SHOWN), data);
	}
	rw_region_free(rw, &region);
	kvfree(data);
	return err;
}

static int rw_do_read(struct rw *rw, char *args)
{
	u64 numbers[2];		/* offset, length */
	int err;

	err = rw_numbers(args, numbers, ARRAY_SIZE(numbers));
	if (err)
		return err;
	if (!numbers[1] || numbers[1] > RW_LENGTH_MAX)
		return -EINVAL;
	return rw_read(rw, numbers[0], numbers[1], rw->connection.rkey);
}

static int rw_do_beyond(struct rw *rw, char *args)
{
	if (*args)
		return -EINVAL;
	return rw_read(rw, rw->connection.length, 1, rw->connection.rkey);
}

static int rw_do_badkey(struct rw *rw, char *args)
{
	if (*args)
		return -EINVAL;
	return rw_read(rw, 0, 1, ib_inc_rkey(rw->connection.rkey));
}

/* How a region is made, and how it is moved to the peer and back. */
struct rw_way {
	int (*make)(struct rw *rw, struct rw_region *region, u32 length);
	int (*move)(struct rw *rw, struct rw_region *region, enum ib_wr_opcode opcode, u64 offset,
		    u32 rkey);
};

/* Bytes that differ from their neighbours, and from page to page: byte i is seed + i + i / 251. */
static void rw_fill(u8 *data, u32 length, u32 seed)
{
	u32 i;

	for (i = 0; i < length; i++)
		data[i] = seed + i + i / 251;
}

/* WRITE from one region, READ into another one that has zeros, and compare. */
static int rw_there_and_back(struct rw *rw, const struct rw_way *way, u64 offset, u8 *data,
			     u32 length)
{
	struct rw_region out, in;
	int err;

	err = way->make(rw, &out, length);
	if (err)
		goto free_out;
	err = way->make(rw, &in, length);
	if (err)
		goto free_in;
	rw_region_put(rw, &out, data);
	err = way->move(rw, &out, IB_WR_RDMA_WRITE, offset, rw->connection.rkey);
	if (!err)
		err = way->move(rw, &in, IB_WR_RDMA_READ, offset, rw->connection.rkey);
	if (!err)
		rw_region_get(rw, &in, data);
free_in:
	rw_region_free(rw, &in);
free_out:
	rw_region_free(rw, &out);
	return err;
}

static int rw_pattern(struct rw *rw, char *args, const struct rw_way *way)
{
	u64 numbers[3];		/* offset, length, seed */
	u8 *expected, *data;
	u32 length;
	int err;

	err = rw_numbers(args, numbers, ARRAY_SIZE(numbers));
	if (err)
		return err;
	if (!numbers[1] || numbers[1] > RW_LENGTH_MAX || numbers[2] > U32_MAX)
		return -EINVAL;
	length = numbers[1];
	err = -ENOMEM;
	expected = kvmalloc(length, GFP_KERNEL);
	data = kvmalloc(length, GFP_KERNEL);
	if (expected && data) {
		rw_fill(expected, length, numbers[2]);
		memcpy(data, expected, length);
		err = rw_there_and_back(rw, way, numbers[0], data, length);
	}
	if (!err) {
		err = memcmp(data, expected, length) ? -EILSEQ : 0;
		rw_say("%u bytes there and back, crc32 %08x", length, ~crc32_le(~0, data, length));
	}
	kvfree(data);
	kvfree(expected);
	return err;
}

static int rw_do_pattern(struct rw *rw, char *args)
{
	static const struct rw_way by_hand = { .make = rw_region_make, .move = rw_move };

	return rw_pattern(rw, args, &by_hand);
}

/*
 * The same by <rdma/rw.h>.  rdma_rw_ctx_init() maps the pages, and makes the work requests that
 * this device needs: with a region of a pool that the queue pair has, or without any.  It returns
 * how many there are, or a negative errno, and it may sleep.  rdma_rw_ctx_destroy() gives all of
 * that back.
 */
static int rw_api_move(struct rw *rw, struct rw_region *region, enum ib_wr_opcode opcode,
		       u64 offset, u32 rkey)
{
	/* -- your part: READ or WRITE by the functions of <rdma/rw.h> -- */
	bool is_write = opcode == IB_WR_RDMA_WRITE;
	enum dma_data_direction direction = is_write ? DMA_TO_DEVICE : DMA_FROM_DEVICE;
	struct rdma_cm_id *id = rw->connection.id;
	struct sg_table *pages = &region->pages;
	struct rdma_rw_ctx ctx;
	struct rw_work work;
	int ret;

	ret = rdma_rw_ctx_init(&ctx, id->qp, id->port_num, pages->sgl, pages->orig_nents, 0,
			       rw->connection.addr + offset, rkey, direction);
	if (ret < 0)
		return ret;
	rw_work_init(&work);
	ret = rdma_rw_ctx_post(&ctx, id->qp, id->port_num, &work.cqe, NULL);
	if (!ret)
		ret = rw_wait(rw, &work);
	rdma_rw_ctx_destroy(&ctx, id->qp, id->port_num, pages->sgl, pages->orig_nents, direction);
	return ret;
	/* -- end -- */
}

static int rw_do_api(struct rw *rw, char *args)
{
	static const struct rw_way by_api = { .make = rw_region_pages, .move = rw_api_move };

	return rw_pattern(rw, args, &by_api);
}

/*
 * Atomics bring what was there before: 8 bytes, a number in the byte order of the peer's machine.
 */
static int rw_atomic(struct rw *rw, struct ib_atomic_wr *wr)
{
	/* -- your part: make a region of 8 bytes, carry out the atomic, show what it brings -- */
	struct rw_region region;
	u64 before;
	int err;

	if (rw_device(rw)->attrs.atomic_cap == IB_ATOMIC_NONE)
		return -EOPNOTSUPP;
	err = rw_region_make(rw, &region, sizeof(before));
	if (!err)
		err = rw_transfer(rw, &region, &wr->wr);
	if (!err) {
		rw_region_get(rw, &region, &before);
		rw_say("before: %llu", before);
	}
	rw_region_free(rw, &region);
	return err;
	/* -- end -- */
}

/* The arguments of either command; `count` of them. */
static int rw_change(struct rw *rw, char *args, enum ib_wr_opcode opcode, int count)
{
	struct ib_atomic_wr wr = { .wr.opcode = opcode, .rkey = rw->connection.rkey };
	u64 numbers[3] = {};	/* offset, what is added or expected, what is written then */
	int err;

	err = rw_numbers(args, numbers, count);
	if (err)
		return err;
	wr.remote_addr = rw->connection.addr + numbers[0];
	wr.compare_add = numbers[1];
	wr.swap = numbers[2];
	return rw_atomic(rw, &wr);
}

static int rw_do_add(struct rw *rw, char *args)
{
	return rw_change(rw, args, IB_WR_ATOMIC_FETCH_AND_ADD, 2);
}

static int rw_do_swap(struct rw *rw, char *args)
{
	return rw_change(rw, args, IB_WR_ATOMIC_CMP_AND_SWP, 3);
}

/* ---------------------------------------------------------------- the peer uses our memory */

/*
 * Tell the peer where memory of ours is, and wait for its answer; that it was received was posted
 * before.
 */
static int rw_ask(struct rw *rw, struct rw_region *region)
{
	/* -- your part: SEND where the memory is, and wait for the answer -- */
	struct rnic_message *message = rw->mail[RW_SENT], *answer = rw->mail[RW_RECEIVED];
	struct rnic_region where = {
		.addr = cpu_to_be64(region->mr->iova),
		.rkey = cpu_to_be32(region->mr->rkey),
		.length = cpu_to_be32(region->length),
	};
	struct ib_sge sge = {
		.addr = rw->mail_addr[RW_SENT],
		.length = sizeof(*message) + sizeof(where),
		.lkey = rw->connection.pd->local_dma_lkey,
	};
	struct ib_send_wr send = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	int err;

	message->kind = cpu_to_be32(RNIC_LEND);
	message->number = 0;
	message->length = cpu_to_be32(sizeof(where));
	memcpy(message->text, &where, sizeof(where));
	ib_dma_sync_single_for_device(rw_device(rw), sge.addr, sge.length, DMA_TO_DEVICE);
	err = rw_post(rw, &send);
	if (!err)
		err = rw_wait(rw, &rw->answer);
	if (err)
		return err;
	ib_dma_sync_single_for_cpu(rw_device(rw), rw->mail_addr[RW_RECEIVED], RNIC_MESSAGE_MAX,
				   DMA_FROM_DEVICE);
	if (!rnic_message_is_whole(answer, rw->answer.bytes) ||
	    be32_to_cpu(answer->kind) != RNIC_ANSWER || answer->number != message->number ||
	    answer->length)
		return -EPROTO;
	return 0;
	/* -- end -- */
}

static int rw_lend(struct rw *rw, const char *text, bool is_stale)
{
	char capitals[RW_COMMAND_MAX] = "";
	struct rw_region region;
	int err;

	if (!*text)
		return -EINVAL;
	err = rw_region_make(rw, &region, strlen(text));
	if (err)
		goto free;
	rw_region_put(rw, &region, text);
	err = rw_region_register(rw, &region, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ |
				 IB_ACCESS_REMOTE_WRITE);
	if (!err && is_stale)
		err = rw_region_invalidate(rw, &region);
	if (!err)
		err = rw_ask(rw, &region);
	/*
	 * Before our own processor looks, the peer loses its access; `stale` does not come so far.
	 */
	if (!err)
		err = rw_region_invalidate(rw, &region);
	if (!err) {
		rw_region_get(rw, &region, capitals);
		rw_say("%s", capitals);
	}
free:
	rw_region_free(rw, &region);
	return err;
}

static int rw_do_lend(struct rw *rw, char *args)
{
	return rw_lend(rw, args, false);
}

static int rw_do_stale(struct rw *rw, char *args)
{
	return rw_lend(rw, args, true);
}

/* ---------------------------------------------------------------- a connection for a command */

/*
 * The connection has ended, and a work request may still wait for its completion: the queue pair
 * does not notice by itself on RoCE, nor always on soft iWARP.  In the error state all completes.
 * ib_modify_qp() may sleep, which the handler of events may.
 */
static void rw_lost(struct connection *c)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	ib_modify_qp(c->id->qp, &attr, IB_QP_STATE);
}

/*
 * Post the receive for the answer: before connecting, since a message without one is an error on
 * iWARP.
 */
static int rw_post_receive(struct rw *rw)
{
	struct ib_sge sge = {
		.addr = rw->mail_addr[RW_RECEIVED],
		.length = RNIC_MESSAGE_MAX,
		.lkey = rw->connection.pd->local_dma_lkey,
	};
	struct ib_recv_wr receive = { .wr_cqe = &rw->answer.cqe, .sg_list = &sge, .num_sge = 1 };

	rw_work_init(&rw->answer);
	return ib_post_recv(rw_qp(rw), &receive, NULL);
}

static const enum dma_data_direction rw_mail_direction[] = { DMA_TO_DEVICE, DMA_FROM_DEVICE };

/*
 * Memory that messages are sent from and received into; the PD's local_dma_lkey is the key to it.
 */
static int rw_make_mail(struct rw *rw)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(rw->mail); i++) {
		void *mail = kzalloc(RNIC_MESSAGE_MAX, GFP_KERNEL);
		u64 at;

		if (!mail)
			return -ENOMEM;
		at = ib_dma_map_single(rw_device(rw), mail, RNIC_MESSAGE_MAX, rw_mail_direction[i]);
		if (ib_dma_mapping_error(rw_device(rw), at)) {
			kfree(mail);
			return -ENOMEM;
		}
		rw->mail[i] = mail;
		rw->mail_addr[i] = at;
	}
	return 0;
}

static void rw_free_mail(struct rw *rw)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(rw->mail); i++) {
		if (!rw->mail[i])
			continue;
		ib_dma_unmap_single(rw_device(rw), rw->mail_addr[i], RNIC_MESSAGE_MAX,
				    rw_mail_direction[i]);
		kfree(rw->mail[i]);
	}
}

static int rw_open(struct rw *rw)
{
	struct connection *c = &rw->connection;
	struct ib_qp_init_attr attr = {
		.cap.max_send_wr = RW_WORK,
		.cap.max_recv_wr = 2,		/* the answer, and what ib_drain_qp() posts */
		.cap.max_send_sge = 1,
		.cap.max_recv_sge = 1,
	};
	int err;

	c->lost = rw_lost;
	err = connection_resolve(c, addr, port);
	if (err)
		return err;
	/* What the rdma_rw functions may need for one transfer. */
	attr.cap.max_send_sge = min(c->id->device->attrs.max_send_sge, 16);
	attr.cap.max_rdma_ctxs = rdma_rw_mr_factor(c->id->device, c->id->port_num,
						   RW_LENGTH_MAX / PAGE_SIZE);
	err = connection_make_queue_pair(c, &attr, 2 * RW_WORK, IB_POLL_WORKQUEUE);
	if (!err)
		err = rw_make_mail(rw);
	if (!err)
		err = rw_post_receive(rw);
	return err ? err : connection_connect(c);
}

static void rw_close(struct rw *rw)
{
	connection_stop(&rw->connection);	/* the device gives the messages' memory back */
	rw_free_mail(rw);
	connection_close(&rw->connection);
}

/* ---------------------------------------------------------------- /proc/rnic_rw */

static const struct {
	const char *name;
	int (*run)(struct rw *rw, char *args);
} rw_commands[] = {
	{ "write", rw_do_write },
	{ "read", rw_do_read },
	{ "pattern", rw_do_pattern },
	{ "api", rw_do_api },
	{ "add", rw_do_add },
	{ "swap", rw_do_swap },
	{ "lend", rw_do_lend },
	{ "stale", rw_do_stale },
	{ "beyond", rw_do_beyond },
	{ "badkey", rw_do_badkey },
};

static int rw_run(char *command)
{
	size_t length = strcspn(command, " ");
	struct rw *rw;
	int i, err;

	for (i = 0; i < ARRAY_SIZE(rw_commands); i++)
		if (length == strlen(rw_commands[i].name) &&
		    !strncmp(command, rw_commands[i].name, length))
			break;
	if (i == ARRAY_SIZE(rw_commands))
		return -EINVAL;
	rw = kzalloc(sizeof(*rw), GFP_KERNEL);
	if (!rw)
		return -ENOMEM;
	err = rw_open(rw);
	if (!err)
		err = rw_commands[i].run(rw, skip_spaces(command + length));
	rw_close(rw);
	kfree(rw);
	return err;
}

/* write(): a command, carried out before this returns. */
static ssize_t rw_proc_write(struct file *file, const char __user *from, size_t count, loff_t *at)
{
	char *text, *command;
	bool is_one;
	int err;

	if (count >= RW_COMMAND_MAX)
		return -EMSGSIZE;
	text = memdup_user_nul(from, count);
	if (IS_ERR(text))
		return PTR_ERR(text);
	/* What stands behind a NUL would be lost, and a second line is a second command. */
	is_one = strlen(text) == count;
	command = strim(text);
	is_one = is_one && !strchr(command, '\n');
	err = mutex_lock_interruptible(&rw_mutex);
	if (!err) {
		rw_text[0] = '\0';
		strscpy(rw_command, command, sizeof(rw_command));
		rw_result = is_one ? rw_run(command) : -EINVAL;
		err = rw_result;
		mutex_unlock(&rw_mutex);
	}
	kfree(text);
	return err ? err : count;
}

static int rw_proc_show(struct seq_file *file, void *unused)
{
	int err = mutex_lock_interruptible(&rw_mutex);

	if (err)
		return err;
	seq_printf(file, "command: %s\nresult: %d\ntext: %s\n", rw_command, rw_result, rw_text);
	mutex_unlock(&rw_mutex);
	return 0;
}

static int rw_proc_open(struct inode *inode, struct file *file)
{
	return single_open(file, rw_proc_show, NULL);
}

static const struct proc_ops rw_proc = {
	.proc_open = rw_proc_open,
	.proc_read = seq_read,
	.proc_write = rw_proc_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int __init rw_init(void)
{
	if (!addr) {
		pr_err("addr=... is missing: the peer's address\n");
		return -EINVAL;
	}
	if (!timeout || timeout > CONNECTION_TIMEOUT_MAX) {
		pr_err("timeout=%u: it is 1 to %u seconds\n", timeout, CONNECTION_TIMEOUT_MAX);
		return -EINVAL;
	}
	return proc_create("rnic_rw", 0600, NULL, &rw_proc) ? 0 : -ENOMEM;
}

/* This waits until nobody is in one of the functions above. */
static void __exit rw_exit(void)
{
	remove_proc_entry("rnic_rw", NULL);
}

module_init(rw_init);
module_exit(rw_exit);

MODULE_DESCRIPTION("Memory registration, and RDMA READ, WRITE and atomics on the memory of a peer");
MODULE_LICENSE("GPL");
