// SPDX-License-Identifier: GPL-2.0
/*
 * user: a module that uses another one, base.
 *
 * It has one counter, which it registers at base when it is loaded. Each number that is written to
 * /sys/module/user/parameters/add is added to it, and /sys/module/base/parameters/counters shows
 * the sum.
 *
 * Nothing here says that base is needed. It follows from the calls: the build looks up each name
 * that user.ko does not have itself, finds base's in Module.symvers, and writes "depends: base"
 * into user.ko (see modinfo). insmod refuses user.ko while base is not loaded (Unknown symbol);
 * modprobe loads base first, as depmod has found it. From then on the kernel counts user among
 * those who use base (see lsmod), and rmmod refuses base.
 *
 * Read in this order: the counter; init and exit; the parameter.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

#include "base.h"

static char *name = KBUILD_MODNAME;
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "of the counter (default: user)");

/* The module's own memory. base has a reference to it, and gives that back before we go. */
static struct base_counter counter;

/*
 * Called when the parameter is set: by a write to its file, and by insmod user.ko add=5, which is
 * before user_init(). kstrtol() takes a whole number and nothing else; it returns -EINVAL or
 * -ERANGE.
 */
static int add_set(const char *text, const struct kernel_param *param)
{
	long value;
	int err = kstrtol(text, 0, &value);

	if (!err)
		atomic_long_add(value, &counter.value);
	return err;
}

static const struct kernel_param_ops add_ops = { .set = add_set };
module_param_cb(add, &add_ops, NULL, 0200);
MODULE_PARM_DESC(add, "a number that is added to the counter");

static int __init user_init(void)
{
	int err;

	counter.name = name;
	err = base_register(&counter);
	if (err) {
		/* %pe prints an error in a pointer's place by its name: -EEXIST */
		pr_err("base takes no counter with the name \"%s\": %pe\n", name, ERR_PTR(err));
		return err;
	}
	pr_info("base counts for us as \"%s\"\n", name);
	return 0;
}

static void __exit user_exit(void)
{
	base_unregister(&counter);
	pr_info("the sum was %ld\n", atomic_long_read(&counter.value));
}

module_init(user_init);
module_exit(user_exit);

MODULE_DESCRIPTION("A module that uses another one");
MODULE_LICENSE("GPL");
