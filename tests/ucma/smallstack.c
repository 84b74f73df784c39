/* SPDX-License-Identifier: Apache-2.0
 *
 * A signal handler on a stack of 8 KiB, as servers have that were written when SIGSTKSZ was so, opens files
 * and sends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STACK = 8192, PAGE = 4096 };
static volatile sig_atomic_t good;
static int ends[2];

static void handle(int number) {
    struct stat about;
    int fd = open("/dev/null", O_RDONLY);
    struct msghdr message = {.msg_iov = &(struct iovec){"x", 1}, .msg_iovlen = 1};
    good =
        number == SIGUSR1 && fd >= 0 && !stat("/", &about) && !access("/", R_OK) && sendmsg(ends[0], &message, 0) == 1;
    close(fd);
}

int main(void) {
    char *room = mmap(NULL, PAGE + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) ||
        mprotect(room + PAGE, STACK, PROT_READ | PROT_WRITE))
        return 1;
    stack_t stack = {.ss_sp = room + PAGE, .ss_size = STACK};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1))
        return 1;
    puts("handled");
    return !good;
}
