// SPDX-License-Identifier: GPL-2.0
/*
 * base: a module that other modules use.
 *
 * It has two functions for them, declared in base.h: one takes a counter of theirs, the other gives
 * it back. All counters are shown in /sys/module/base/parameters/counters. user.c has such a
 * counter.
 *
 * The kernel's subsystems work like this: a driver fills a structure, hands in a reference to it,
 * and takes it back before it goes. ib_register_client() of devices.c is one.
 *
 * Read in this order: base.h; base_register() and EXPORT_SYMBOL_GPL(); the parameter; init and
 * exit.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "base.h"

static DEFINE_MUTEX(lock); /* guards the list, not the values */
static LIST_HEAD(counters);

/*
 * The two functions that others may call. That they are not static is not enough: only what is
 * exported is found by other modules. EXPORT_SYMBOL_GPL(): by those whose MODULE_LICENSE() goes
 * with the GPL.
 */

/**
 * base_register() - Show a counter among all others
 * @counter: the caller's; name and value are set
 *
 * May sleep. Returns 0, -EINVAL without a name, or -EEXIST if another counter has that name.
 */
int base_register(struct base_counter *counter)
{
	struct base_counter *other;
	int err = 0;

	if (!counter->name || !*counter->name)
		return -EINVAL;

	mutex_lock(&lock);
	list_for_each_entry(other, &counters, entry) {
		if (!strcmp(other->name, counter->name)) {
			err = -EEXIST;
			goto unlock;
		}
	}
	list_add_tail(&counter->entry, &counters);
unlock:
	mutex_unlock(&lock);
	return err;
}
EXPORT_SYMBOL_GPL(base_register);

/**
 * base_unregister() - Take a counter back
 * @counter: a registered one
 *
 * May sleep. When it returns nobody looks at the counter any more, and its memory may go.
 */
void base_unregister(struct base_counter *counter)
{
	mutex_lock(&lock);
	list_del(&counter->entry);
	mutex_unlock(&lock);
}
EXPORT_SYMBOL_GPL(base_unregister);

/*
 * A parameter may have functions of its own instead of a variable. This one is only read: get()
 * fills a page and returns the length of the text. sysfs_emit_at() never writes beyond that page.
 */
static int counters_get(char *page, const struct kernel_param *param)
{
	struct base_counter *counter;
	int length = 0;

	mutex_lock(&lock);
	list_for_each_entry(counter, &counters, entry)
		length += sysfs_emit_at(page, length, "%s %ld\n", counter->name,
					atomic_long_read(&counter->value));
	mutex_unlock(&lock);
	return length;
}

static const struct kernel_param_ops counters_ops = { .get = counters_get };
module_param_cb(counters, &counters_ops, NULL, 0444);
MODULE_PARM_DESC(counters, "all counters, each with its value");

static int __init base_init(void)
{
	pr_info("ready\n");
	return 0;
}

/*
 * No counter can be left: each is of a module that calls base_register(), and the kernel does not
 * unload base while such a module is loaded.
 */
static void __exit base_exit(void)
{
	pr_info("gone\n");
}

module_init(base_init);
module_exit(base_exit);

MODULE_DESCRIPTION("A module that others use: counters in one place");
MODULE_LICENSE("GPL");
