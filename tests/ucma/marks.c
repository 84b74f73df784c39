/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread asks whether a descriptor is RDMA-CM's device file, and between the kernel's answer, that it is none, and what the
 * library makes of it, another thread makes it one by dup2().  Here getpeername() does what that thread does.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static long kernel(long number, ...);
#define syscall kernel
#include "preload/ucma.c"

#define FOLDER "/run/of/rnic"
#define FD 5

static int asked;

const char *run_folder(void) { return FOLDER; }

static long kernel(long number, ...) {
    struct sockaddr_un *peer;
    va_list list;
    if (number != SYS_getpeername) /* of the constructor's search */
        return -1;
    va_start(list, number);
    (void)va_arg(list, int);
    peer = va_arg(list, struct sockaddr_un *);
    va_end(list);
    if (asked++) {
        *peer = (struct sockaddr_un){.sun_family = AF_UNIX};
        strcpy(peer->sun_path, FOLDER SOCKET_NAME);
        return 0;
    }
    ucma_mark(FD);
    errno = ENOTSOCK;
    return -1;
}

int main(void) {
    ucma_mark(FD); /* it was one, and was closed */
    is_ucma(FD);
    printf("%s\n", is_ucma(FD) ? "it is one" : "it is forgotten");
    return 0;
}
