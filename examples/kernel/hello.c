// SPDX-License-Identifier: GPL-2.0
/*
 * hello: the parts of a kernel module.
 *
 * It says a greeting in the kernel's log when it is loaded, as often as a parameter says, and another one when
 * it is unloaded.
 */
#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

static char *whom = "world";
module_param(whom, charp, 0444);
MODULE_PARM_DESC(whom, "who is greeted (default: world)");

static int __init hello_init(void)
{
	pr_info("hello: hello, %s\n", whom);
	return 0;
}

static void __exit hello_exit(void)
{
	pr_info("hello: goodbye, %s\n", whom);
}

module_init(hello_init);
module_exit(hello_exit);

MODULE_DESCRIPTION("The parts of a kernel module");
MODULE_LICENSE("GPL");
