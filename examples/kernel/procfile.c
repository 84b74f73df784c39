// SPDX-License-Identifier: GPL-2.0
/*
 * procfile: a file in /proc that is read and written, and its lock.
 *
 * /proc/procfile is a list of lines in the kernel's memory. Reading it shows each line with its
 * number. Writing to it is a command:
 *
 *	add TEXT	a line is added at the end
 *	remove NUMBER	that line is removed
 *	clear		all are
 *
 * Read in this order: struct line and the lock; the commands; lines_start() and its three
 * companions, which are the reading side; procfile_write(); procfile_open() for what keeps the
 * module loaded; init and exit.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ctype.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#define TEXT_MAX	200	/* bytes of a line */
#define COMMAND_MAX	(TEXT_MAX + 16)
#define LINES_MAX	100000

/* The kernel's memory is everybody's: what grows by a user's wish must have a limit. */
static unsigned int limit = 1000;
module_param(limit, uint, 0444);
MODULE_PARM_DESC(limit, "how many lines there may be, 1 to 100000 (default: 1000)");

/* One line; its text is behind it in the same piece of memory. */
struct line {
	struct list_head	entry;	/* in lines */
	loff_t			number;	/* larger than that of all before it */
	char			text[];
};

/*
 * The lock guards the three variables below. Many processes may read and write the file at once, on
 * many processors, and a process may lose its processor in the middle of a function. Without the
 * lock a reader could stand on a line that another process frees.
 *
 * It is a mutex: who waits for it sleeps. That is right here, since all that takes it is the system
 * call of a process. An interrupt handler may not sleep; what it shares must be guarded by a
 * spinlock.
 */
static DEFINE_MUTEX(lock);
static LIST_HEAD(lines);
static unsigned int line_count;
static loff_t next_number = 1;

static void remove_line(struct line *line)
{
	lockdep_assert_held(&lock);
	list_del(&line->entry);
	line_count--;
	kfree(line);
}

/* Each command returns 0 or a negative errno, which becomes the errno of the user's write(). */

static int add(const char *text)
{
	size_t size = strlen(text) + 1;
	struct line *line;
	int err = 0;

	if (size == 1 || size - 1 > TEXT_MAX)
		return -EINVAL;

	/*
	 * kmalloc() returns NULL if there is no memory, and that is checked each time. GFP_KERNEL:
	 * it may sleep until the kernel has found some, so it must not be called in interrupt
	 * context or under a spinlock. Under a mutex it may; but nobody need wait for us while we
	 * wait, so it is done before the lock.
	 */
	line = kmalloc(struct_size(line, text, size), GFP_KERNEL);
	if (!line)
		return -ENOMEM;
	memcpy(line->text, text, size);

	mutex_lock(&lock);
	if (line_count < limit) {
		line->number = next_number++;
		list_add_tail(&line->entry, &lines);
		line_count++;
	} else {
		err = -ENOSPC;
	}
	mutex_unlock(&lock);

	if (err)
		kfree(line);
	return err;
}

static int remove(const char *text)
{
	struct line *line;
	long long number;
	int err;

	err = kstrtoll(text, 10, &number);
	if (err)
		return err;

	err = -ENOENT;
	mutex_lock(&lock);
	list_for_each_entry(line, &lines, entry) {
		if (line->number != number)
			continue;
		remove_line(line);
		err = 0;
		break; /* the line is gone, and with it the way to the next one */
	}
	mutex_unlock(&lock);
	return err;
}

static void clear(void)
{
	struct line *line, *next;

	mutex_lock(&lock);
	/* _safe: the loop may free where it stands */
	list_for_each_entry_safe(line, next, &lines, entry)
		remove_line(line);
	mutex_unlock(&lock);
}

/*
 * Reading: seq_file calls these four. A read() of the user's fills a buffer of a page: start(),
 * then show() and next() until the buffer is full or next() returns NULL, then stop(). A long file
 * takes many reads, and the lock is not held between them, as the user may never come back.
 * Meanwhile the list may change.
 *
 * *pos is where to go on. seq_file only keeps it, its meaning is ours: here it is the number of the
 * next line, and not how many lines have been shown. So a line that is removed between two reads
 * makes no other line come twice or not at all.
 */
static void *lines_start(struct seq_file *file, loff_t *pos)
{
	struct line *line;

	mutex_lock(&lock); /* stop() is called whatever start() returns */
	list_for_each_entry(line, &lines, entry)
		if (line->number >= *pos)
			return line;
	return NULL;
}

static void *lines_next(struct seq_file *file, void *at, loff_t *pos)
{
	struct line *line = at;

	*pos = line->number + 1; /* at the end, too: else the last line would come once more */
	return list_is_last(&line->entry, &lines) ? NULL : list_next_entry(line, entry);
}

static void lines_stop(struct seq_file *file, void *at)
{
	mutex_unlock(&lock);
}

/*
 * Shows one line. If the buffer is too small for it, seq_printf() leaves it out and seq_file calls
 * again with a larger one: no other function of the kernel needs to be told. So show() may be
 * called twice for a line, and must not change anything.
 */
static int lines_show(struct seq_file *file, void *at)
{
	struct line *line = at;

	seq_printf(file, "%lld %s\n", line->number, line->text);
	return 0;
}

static const struct seq_operations lines_ops = {
	.start	= lines_start,
	.next	= lines_next,
	.stop	= lines_stop,
	.show	= lines_show,
};

/* A text is what one line can show: ASCII's printable characters, and bytes of UTF-8. */
static bool is_text(const char *text)
{
	for (; *text; text++)
		if (isascii(*text) && !isprint(*text))
			return false;
	return true;
}

static int command(char *text)
{
	char *word = strsep(&text, " "); /* text: what follows the space, or NULL */

	if (!strcmp(word, "add") && text)
		return add(text);
	if (!strcmp(word, "remove") && text)
		return remove(text);
	if (!strcmp(word, "clear") && !text) {
		clear();
		return 0;
	}
	return -EINVAL;
}

/*
 * The user's write(). The pointer is the user's, and so may be anything: NULL, memory that is
 * swapped out, or an address of the kernel. It is never followed; copy_from_user() and its
 * relatives check it and fetch what it points to. They may sleep.
 *
 * memdup_user_nul() copies that many bytes into memory of its own and puts a NUL behind them. It
 * returns a pointer, or an error in the pointer's place (-EFAULT, -ENOMEM): IS_ERR() tells,
 * PTR_ERR() takes it out.
 *
 * What is returned is how many bytes were taken. All of them, here: one write() is one command.
 */
static ssize_t procfile_write(struct file *file, const char __user *from, size_t size,
			      loff_t *pos)
{
	size_t length = size;
	char *text;
	int err;

	if (!size || size > COMMAND_MAX) /* before anything of the user's size is allocated */
		return -EINVAL;
	text = memdup_user_nul(from, size);
	if (IS_ERR(text))
		return PTR_ERR(text);

	if (text[length - 1] == '\n') /* echo adds it */
		text[--length] = '\0';
	/* A NUL in the middle would hide what follows it. */
	if (strlen(text) == length && is_text(text))
		err = command(text);
	else
		err = -EINVAL;

	kfree(text);
	return err ? err : size;
}

/*
 * procfs itself does not keep a module loaded whose file is open. It would be safe: proc_remove()
 * waits until nobody is inside of our functions, and later reads fail with EIO. But a user whose
 * file goes dead may well be surprised. So an open file counts as a use of the module, which lsmod
 * shows, and rmmod refuses. try_module_get() returns false if the module is being unloaded already.
 */
static int procfile_open(struct inode *inode, struct file *file)
{
	int err;

	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	err = seq_open(file, &lines_ops);
	if (err)
		module_put(THIS_MODULE); /* a file that was not opened is not released */
	return err;
}

static int procfile_release(struct inode *inode, struct file *file)
{
	int err = seq_release(inode, file);

	module_put(THIS_MODULE);
	return err;
}

static const struct proc_ops procfile_ops = {
	.proc_open	= procfile_open,
	.proc_read	= seq_read,
	.proc_lseek	= seq_lseek,
	.proc_write	= procfile_write,
	.proc_release	= procfile_release,
};

static int __init procfile_init(void)
{
	if (!limit || limit > LINES_MAX) {
		pr_err("limit=%u is not in 1..%d\n", limit, LINES_MAX);
		return -EINVAL;
	}

	/*
	 * From here on the file can be opened, so all that it needs must be there. NULL: there is
	 * no memory, or the name is taken.
	 */
	if (!proc_create(KBUILD_MODNAME, 0644, NULL, &procfile_ops))
		return -ENOMEM;
	return 0;
}

static void __exit procfile_exit(void)
{
	remove_proc_entry(KBUILD_MODNAME, NULL); /* first: now nobody comes any more */
	clear();
	mutex_destroy(&lock);
}

module_init(procfile_init);
module_exit(procfile_exit);

MODULE_DESCRIPTION("A file in /proc with seq_file: read, write, and what must be locked");
MODULE_LICENSE("GPL");
