// SPDX-License-Identifier: GPL-2.0
/*
 * hello: the parts of a kernel module.
 *
 * A module is code that is added to the running kernel. It has no main(): it is two functions, one
 * that the kernel calls when the module is loaded and one that it calls before the module is
 * unloaded. In between the module does nothing by itself; it waits until something that it has
 * registered is used. This module registers nothing. It writes greetings into the kernel's log.
 *
 * Read in this order: module_init() and module_exit() at the end; hello_init(); the parameters;
 * hello_exit().
 */

/* What pr_info() and the like put before each line. KBUILD_MODNAME is "hello", by the Kbuild. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>

#define TIMES_MAX 10

/*
 * Parameters: insmod hello.ko whom=you times=3. module_param(name, type, mode) makes one of a
 * variable. The kernel converts the text and refuses what is no number; whether the number makes
 * sense is for us to check. The mode is of the file /sys/module/hello/parameters/NAME. 0444:
 * everybody may read it, and nobody may change it, so the variable is constant once hello_init()
 * runs.
 */
static char *whom = "world";
module_param(whom, charp, 0444);
MODULE_PARM_DESC(whom, "who is greeted (default: world)");

static int times = 1;
module_param(times, int, 0444);
MODULE_PARM_DESC(times, "how often, 1 to 10 (default: 1)");

/* 0644: root may change it while the module is loaded, by writing to the file. */
static char *farewell = "goodbye";
module_param(farewell, charp, 0644);
MODULE_PARM_DESC(farewell, "what is said when the module is unloaded (default: goodbye)");

/*
 * Called once, when the module is loaded, in the context of the process that loads it: it may
 * sleep. It returns 0, or a negative errno, and then the module is not loaded and insmod prints the
 * error's text. Whatever it had got until then it must give back itself: hello_exit() is not
 * called. __init: the memory of this function is freed when it has returned.
 */
static int __init hello_init(void)
{
	int i;

	/* Bad values are refused, with a line that says why: an errno alone is a riddle. */
	if (times < 1 || times > TIMES_MAX) {
		pr_err("times=%d is not in 1..%d\n", times, TIMES_MAX);
		return -EINVAL;
	}

	/*
	 * The log has levels, from pr_emerg() to pr_debug(); dmesg --level shows one of them.
	 * pr_debug() prints only if it is switched on: insmod hello.ko dyndbg=+p. None of these
	 * calls sleeps, so they may stand anywhere, in interrupt handlers, too.
	 */
	pr_debug("whom is at %p\n", whom);
	for (i = 0; i < times; i++)
		pr_info("hello, %s\n", whom);
	return 0;
}

/*
 * Called once, when the module is unloaded. It cannot fail: it must give back all that the module
 * has, since the module's code and data are gone when it returns. It may sleep.
 */
static void __exit hello_exit(void)
{
	/*
	 * Somebody may be writing to /sys/module/hello/parameters/farewell at this moment, and that
	 * frees the old text. So the parameters are locked while a text that may change is read.
	 * The lock is a mutex: who takes it may sleep.
	 */
	kernel_param_lock(THIS_MODULE);
	pr_notice("%s, %s\n", farewell, whom);
	kernel_param_unlock(THIS_MODULE);
}

module_init(hello_init);
module_exit(hello_exit);

/*
 * What modinfo shows. A module whose licence does not go with the kernel's may not call what the
 * kernel exports by EXPORT_SYMBOL_GPL(), which is most of it.
 */
MODULE_DESCRIPTION("The parts of a kernel module");
MODULE_LICENSE("GPL");
