/* SPDX-License-Identifier: Apache-2.0
 *
 * librnic_preload.so: programs that are linked with libibverbs and librdmacm also read files of sysfs, and open device
 * files.  This library shows them those that `rnic run` has made: it stands in front of the functions of libc that take a
 * path.  Sockets of NETLINK_RDMA it answers from files of the same folder.  It decides which paths are redirected, and what
 * write() to the RDMA-CM's device file means.  It must not know what the commands do: the server knows (src/rnic/ucma).  And
 * it tells the program when `rnic run` has ended (parent.c).
 *
 * glibc has some functions several times, also for programs of older versions; other libraries of C have them once.
 *
 * Nothing here allocates, locks or keeps what a fork could break.  Functions that signal handlers may call stay so.
 */
#ifndef RNIC_PRELOAD_H
#define RNIC_PRELOAD_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "libc/next.h"

/* ---------------------------------------------------------------- where.c: which paths, and where they lie */

/* Bytes for where a path lies in the tree: 1 if it is not redirected, as signal handlers may have small stacks. */
size_t room_for(const char *path);
/* The path itself, or where it lies in the tree, written to room.  A path that has no room there stays. */
const char *redirected(const char *path, char *room, size_t size);
/* The same, where a relative path begins in the folder that a descriptor is of. */
const char *redirected_at(int dirfd, const char *path, char *room, size_t size);
/* The folder of the tree that has what a program sees beside the contents of one of the kernel's; NULL: nothing. */
const char *beside(const char *path, char room[2 * PATH_MAX]);
/* The folder of $RNIC_RUN; NULL: nothing is redirected. */
const char *run_folder(void);

/* ---------------------------------------------------------------- ucma.c: the device file of RDMA-CM */

/* Whether a path, redirected, is /dev/infiniband/rdma_cm. */
bool is_ucma_path(const char *path);
/* What open() of it returns. */
int ucma_open(int flags);
/* Whether a descriptor is such a file. */
bool is_ucma(int fd);
/* write() to it: a command is carried out. */
ssize_t ucma_write(int fd, const void *buf, size_t count);
/* A descriptor may be such a file from now on. */
void ucma_mark(int fd);

#endif
