/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c: what a program sees of memory that it allocates in whole pages, under librnic_heap.so.
 *
 * heap WHAT: one of the functions at the end; 0 if all is right.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s\n", __LINE__, #what);                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096, MIB = 1 << 20, ALL = 256 * MIB };
typedef bool find_fn(const void *, uint64_t, int *, uint64_t *);

static int fd;
static uint64_t offset;

static bool lies_in_file(const void *at, size_t bytes) {
    find_fn *find = (find_fn *)dlsym(RTLD_DEFAULT, "rnic_heap_find");
    return find && find(at, bytes, &fd, &offset);
}

static char *pages(size_t bytes) {
    void *at = NULL;
    NEED(!posix_memalign(&at, PAGE, bytes));
    NEED(at && (uintptr_t)at % PAGE == 0);
    return at;
}

static void fill(char *at, size_t bytes, char value) { memset(at, value, bytes); }

static bool is_all(const char *at, size_t bytes, char value) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != value)
            return false;
    return true;
}

/* ---------------------------------------------------------------- what lies where */

static void places(void) {
    char *at = pages(3 * PAGE), byte = 0;
    fill(at, 3 * PAGE, 7);
    NEED(lies_in_file(at, 3 * PAGE) && lies_in_file(at + 5, 8));
    NEED(pread(fd, &byte, 1, (off_t)offset) == 1 && byte == 7);
    NEED(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    NEED(ftruncate(fd, 0) && errno == EPERM); /* nobody loses a page */
    free(at);
    char *(*const how[])(size_t) = {(char *(*)(size_t))valloc, (char *(*)(size_t))pvalloc};
    for (int i = 0; i < 2; i++) {
        at = how[i](100);
        NEED(lies_in_file(at, 100));
        free(at);
    }
    at = memalign(PAGE, 10);
    NEED(lies_in_file(at, 10));
    free(at);
    at = aligned_alloc(16 * PAGE, PAGE);
    NEED(lies_in_file(at, PAGE) && (uintptr_t)at % (16 * PAGE) == 0);
    free(at);
    at = memalign(64, MIB);
    NEED(!lies_in_file(at, 1));
    free(at);
    at = malloc(MIB);
    NEED(!lies_in_file(at, 1));
    free(at);
    at = memalign(2 * MIB, MIB); /* for huge pages */
    NEED(at && !lies_in_file(at, 1));
    free(at);
    NEED(posix_memalign((void **)&at, 3 * PAGE, 1) == EINVAL);
    free(NULL);
}

static void sizes(void) {
    char *at = pages(10), *next = pages(PAGE);
    NEED(malloc_usable_size(at) == PAGE);
    fill(at, PAGE, 1);
    fill(next, PAGE, 2);
    NEED(is_all(at, PAGE, 1));
    at = realloc(at, 100 * PAGE);
    NEED(is_all(at, PAGE, 1) && lies_in_file(at, 100 * PAGE));
    fill(at, 100 * PAGE, 3);
    NEED(is_all(next, PAGE, 2));
    at = reallocarray(at, 10, 10);
    NEED(is_all(at, 100, 3));
    volatile size_t most = SIZE_MAX / 2;
    NEED(!reallocarray(at, most, 4) && errno == ENOMEM && is_all(at, 100, 3));
    at = realloc(at, ALL); /* too long for the heap */
    NEED(at && !lies_in_file(at, 1) && is_all(at, 100, 3));
    free(at);
    free(next);
    NEED(!realloc(pages(1), 0));
}

/* What is freed is used again, and neighbours become one; beyond its end memory is libc's. */
static void room(void) {
    enum { EACH = 256 * 1024, N = ALL / EACH };
    static char *at[N + 1];
    for (int rounds = 0; rounds < 3; rounds++) {
        for (int i = 0; i <= N; i++) {
            at[i] = pages(EACH);
            at[i][0] = (char)i;
            NEED(lies_in_file(at[i], EACH) == (i < N));
        }
        for (int i = 0; i <= N; i++)
            NEED(at[i][0] == (char)i);
        for (int i = rounds & 1; i <= N; i += 2)
            free(at[i]);
        for (int i = !(rounds & 1); i <= N; i += 2)
            free(at[i]);
        char *all = pages(ALL);
        NEED(lies_in_file(all, ALL));
        free(all);
    }
}

/* ---------------------------------------------------------------- threads */

static void *churn(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    static _Thread_local struct {
        char *at;
        size_t bytes;
    } has[16];
    for (int i = 0; i < 500; i++) {
        int k = rand_r(&seed) % 16;
        if (has[k].at)
            NEED(is_all(has[k].at, has[k].bytes, (char)k));
        free(has[k].at);
        has[k].bytes = (size_t)(rand_r(&seed) % (5 * PAGE)) + 1;
        has[k].at = pages(has[k].bytes);
        fill(has[k].at, has[k].bytes, (char)k);
    }
    for (int k = 0; k < 16; k++)
        free(has[k].at);
    return NULL;
}

static void threads(void) {
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++)
        NEED(!pthread_create(&thread[i], NULL, churn, (void *)(i + 1)));
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) {
            churn((void *)99);
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

/* ---------------------------------------------------------------- forks */

static int child_is(void (*what)(char *), char *at, int *to_child, int *to_parent) {
    int up[2], down[2];
    NEED(!pipe(up) && !pipe(down));
    pid_t child = fork();
    if (!child) {
        *to_parent = up[1], *to_child = down[0];
        what(at);
        _exit(0);
    }
    *to_child = down[1], *to_parent = up[0];
    return child;
}

static int in, out;

static void say(int to) { NEED(write(to, "x", 1) == 1); }

static void hear(int from) {
    char byte;
    NEED(read(from, &byte, 1) == 1);
}

static void child(char *at) {
    hear(in); /* the parent has written */
    NEED(is_all(at, 5 * MIB, 1));
    NEED(at[5 * MIB + PAGE] == 0); /* never written */
    fill(at, 5 * MIB, 3);
    say(out);
    hear(in);
    NEED(is_all(at, 5 * MIB, 3) && !lies_in_file(at, 1));
    free(at);
    char *more = pages(20 * MIB); /* more than was mapped */
    fill(more, 20 * MIB, 4);
    pid_t grandchild = fork();
    if (!grandchild) {
        NEED(is_all(more, 20 * MIB, 4));
        fill(more, 20 * MIB, 5);
        _exit(0);
    }
    int status;
    NEED(waitpid(grandchild, &status, 0) == grandchild && status == 0);
    NEED(is_all(more, 20 * MIB, 4));
    free(more);
    say(out);
}

/* Neither sees what the other writes from then on. */
static void forks(void) {
    char *at = pages(6 * MIB);
    int status;
    fill(at, 5 * MIB, 1);
    pid_t pid = child_is(child, at, &in, &out);
    fill(at, 5 * MIB, 2);
    say(in);
    hear(out);
    NEED(is_all(at, 5 * MIB, 2));
    fill(at, 5 * MIB, 6);
    say(in);
    hear(out);
    NEED(is_all(at, 5 * MIB, 6) && lies_in_file(at, 6 * MIB));
    NEED(waitpid(pid, &status, 0) == pid && status == 0);
    free(at);
}

/* A program may close what it has not opened, and use the number for a file of its own. */
static void closed(void) {
    char *at = pages(PAGE), name[] = "/tmp/rnic-heap-test-XXXXXX", byte;
    int status, file = mkstemp(name);
    NEED(file >= 0 && !unlink(name));
    fill(at, PAGE, 1);
    NEED(lies_in_file(at, PAGE));
    NEED(dup2(file, fd) == fd && ftruncate(file, ALL) == 0);
    NEED(!lies_in_file(at, PAGE));
    for (int i = 0; i < 20; i++)
        fill(pages(MIB), MIB, 9);
    NEED(pread(file, &byte, 1, 5 * MIB) == 1 && byte == 0);
    pid_t pid = fork();
    if (!pid) {
        NEED(is_all(at, PAGE, 1));
        fill(at, PAGE, 2);
        NEED(fcntl(fd, F_GETFD) >= 0); /* it is the program's */
        _exit(0);
    }
    NEED(waitpid(pid, &status, 0) == pid && status == 0 && is_all(at, PAGE, 1));
    free(at);
}

static void limited(void) {
    struct rlimit limit = {1 << 30, 1 << 30};
    NEED(!setrlimit(RLIMIT_FSIZE, &limit));
    char *at = pages(PAGE);
    NEED(!lies_in_file(at, PAGE));
    free(at);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*does)(void);
    } all[] = {{"places", places}, {"sizes", sizes},   {"room", room},      {"threads", threads},
               {"forks", forks},   {"closed", closed}, {"limited", limited}};
    for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++) {
        if (!strcmp(argv[1], all[i].name)) {
            all[i].does();
            return 0;
        }
    }
    return 2;
}
