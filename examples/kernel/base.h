/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What base.ko has for other modules: counters that everybody sees in one place.
 *
 * A counter belongs to the module that counts. base only keeps a reference to it, so it must stay
 * where it is from base_register() until base_unregister() has returned.
 */
#ifndef RNIC_BASE_H
#define RNIC_BASE_H

#include <linux/atomic.h>
#include <linux/list.h>

struct base_counter {
	const char		*name;	/* the owner's; it stays as long as the counter does */
	atomic_long_t		value;	/* the owner changes it at any time, without a lock */
	struct list_head	entry;	/* base's alone */
};

int base_register(struct base_counter *counter);
void base_unregister(struct base_counter *counter);

#endif
