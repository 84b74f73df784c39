/* SPDX-License-Identifier: Apache-2.0
 *
 * A program whose prepare handler writes to a page that its handler of SIGSEGV opens, as a collector's write barrier does.
 * It forks, with a device (any argument) or without one, and has no memory of the heap then.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile char *page;

static void barrier(int number) {
    (void)number;
    if (mprotect((void *)page, 4096, PROT_READ | PROT_WRITE))
        _exit(2);
}

static void prepare(void) { *page = 1; }

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = barrier};
    (void)argv;
    page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) || pthread_atfork(prepare, NULL, NULL))
        return 2;
    if (argc > 1) {
        struct ibv_device **devices = ibv_get_device_list(NULL);
        if (!devices || !devices[0] || !ibv_open_device(devices[0]))
            return 2;
    }
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(*page);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 0 : 2;
}
