/* SPDX-License-Identifier: Apache-2.0
 *
 * heap.c: what a program sees of memory that it allocates in whole pages, under librnic_heap.so.
 *
 * heap WHAT: one of the functions at the end; 0 if all is right.
 *
 * It says itself that it has opened a device, or not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s\n", __LINE__, #what);                                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096, MIB = 1 << 20, GIVEN = 512 << 10, ALL = 256 * MIB };
struct place {
    int fd;
    uint64_t inode, offset;
};
typedef bool find_fn(const void *, uint64_t, struct place *);

static struct place place; /* of what was looked for last */

static void (*function(const char *name))(void) {
    void (*found)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, name);
    NEED(found);
    return found;
}

/* As a device does. */
static void begin(void) {
    NEED(!pthread_atfork(function("rnic_heap_before_fork"), function("rnic_heap_after_fork"), NULL));
    function("rnic_heap_begin")();
}

static bool lies_in_file(const void *at, size_t bytes) {
    find_fn *find = (find_fn *)dlsym(RTLD_DEFAULT, "rnic_heap_find");
    return find && find(at, bytes, &place);
}

static char *pages(size_t bytes) {
    void *at = NULL;
    NEED(!posix_memalign(&at, PAGE, bytes));
    NEED(at && (uintptr_t)at % PAGE == 0);
    return at;
}

/* Functions of libc that the library calls, ahead of libc's. */
static int copies;     /* parts of the file that were read */
static size_t copied;  /* bytes of these */
static int moves_left; /* ahead of one that fails; 0: none fails */
static bool no_holes;  /* nobody can tell them */

ssize_t pread(int file, void *to, size_t bytes, off_t at) {
    copies++;
    copied += bytes;
    return syscall(SYS_pread64, file, to, bytes, at);
}

void *mremap(void *at, size_t old, size_t new, int how, ...) {
    va_list list;
    va_start(list, how);
    void *to = va_arg(list, void *);
    va_end(list);
    errno = ENOMEM;
    return moves_left && !--moves_left ? MAP_FAILED : (void *)syscall(SYS_mremap, at, old, new, how, to);
}

off_t lseek(int file, off_t at, int whence) {
    errno = EIO;
    return no_holes ? -1 : syscall(SYS_lseek, file, at, whence);
}

static volatile int takes_number =
    -1; /* a file that has the number of the heap's, from the next look at that on; -1: none */

int fstat(int file, struct stat *st) {
    int rc = (int)syscall(SYS_fstat, file, st);
    if (takes_number >= 0 && file == place.fd) {
        NEED(dup2(takes_number, file) == file);
        takes_number = -1;
    }
    return rc;
}

static int looks_at_maps; /* files of that name that were opened */

int open(const char *name, int flags, ...) {
    va_list list;
    va_start(list, flags);
    int mode = va_arg(list, int);
    va_end(list);
    looks_at_maps += !strcmp(name, "/proc/self/maps");
    return (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
}

static int unlocks_left; /* ahead of one that a signal comes before; 0: none comes */

int pthread_mutex_unlock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    if (unlocks_left && !--unlocks_left)
        NEED(!raise(SIGUSR1));
    if (!next)
        next = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_unlock");
    return next(mutex);
}

#ifdef __GLIBC__ /* others have one name */
ssize_t pread64(int file, void *to, size_t bytes, off_t at) { return pread(file, to, bytes, at); }
off_t lseek64(int file, off_t at, int whence) { return lseek(file, at, whence); }
int fstat64(int file, struct stat64 *st) { return fstat(file, (struct stat *)(void *)st); }
int open64(const char *name, int flags, ...) { return open(name, flags, 0); }
#endif

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
    NEED(pread(place.fd, &byte, 1, (off_t)place.offset) == 1 && byte == 7);
    NEED(fcntl(place.fd, F_GETFD) & FD_CLOEXEC);
    NEED(ftruncate(place.fd, 0) && errno == EPERM); /* nobody loses a page */
    free(at);
    at = valloc(100);
    NEED(lies_in_file(at, 100));
    free(at);
#ifdef __GLIBC__ /* others do not have it */
    at = pvalloc(100);
    NEED(lies_in_file(at, 100));
    free(at);
#endif
    at = memalign(PAGE, 10);
    NEED(lies_in_file(at, 10));
    free(at);
    at = aligned_alloc(16 * PAGE, PAGE);
    NEED(lies_in_file(at, PAGE) && (uintptr_t)at % (16 * PAGE) == 0);
    free(at);
    char *between = pages(PAGE); /* at what is not aligned that far */
    at = aligned_alloc(16 * PAGE, PAGE);
    NEED(lies_in_file(at, PAGE) && (uintptr_t)at % (16 * PAGE) == 0);
    free(at);
    free(between);
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
    char *rest = pages(ALL - 102 * PAGE); /* the only place left is the first, ahead of the next */
    NEED(rest == at + 100 * PAGE);
    at = reallocarray(at, 10, 10);
    NEED(is_all(at, 100, 3) && malloc_usable_size(at) == PAGE && is_all(next, PAGE, 2));
    volatile size_t most = SIZE_MAX / 2;
    NEED(!reallocarray(at, most, 4) && errno == ENOMEM && is_all(at, 100, 3));
    at = realloc(at, ALL); /* too long for the heap */
    NEED(at && !lies_in_file(at, 1) && is_all(at, 100, 3));
    free(at);
    free(next);
    free(rest);
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

/* The place where the next search begins is a run, also if that one has become a part of another. */
static void next(void) {
    char *at[3] = {pages(PAGE), pages(PAGE), pages(PAGE)};
    free(at[2]);
    free(at[1]);
    char *again = pages(PAGE), *rest = pages(ALL - 2 * PAGE);
    *again = 1;
    fill(rest, 2 * PAGE, 2);
    NEED(*again == 1 && lies_in_file(again, PAGE) && lies_in_file(rest, ALL - 2 * PAGE));
}

/* Whoever has few buffers at a time takes no more of the file than these. */
static void rotation(void) {
    struct stat st;
    char *at[8] = {NULL};
    for (int i = 0; i < 6000; i++) {
        free(at[i % 8]);
        at[i % 8] = pages(16 * PAGE);
        fill(at[i % 8], 16 * PAGE, 1);
    }
    NEED(lies_in_file(at[0], PAGE) && !fstat(place.fd, &st) && st.st_blocks <= MIB / 512);
}

/* Each allocation lies at the lowest place where there is room, and is libc's only if there is none. */
static void lowest(void) {
    enum { N = 200, ROUNDS = 1500 };
    static bool used[ALL / PAGE];
    static struct {
        char *at;
        size_t first, n;
    } has[N];
    unsigned seed = 1;
    char *base = pages(PAGE);
    free(base);
    for (int i = 0; i < ROUNDS; i++) {
        int k = rand_r(&seed) % N;
        size_t n = (size_t)(1 + rand_r(&seed) % (1 << rand_r(&seed) % 12)), step = (size_t)1 << rand_r(&seed) % 9;
        free(has[k].at);
        memset(used + has[k].first, 0, has[k].n);
        has[k].at = memalign(step * PAGE, n * PAGE);
        size_t first = 0, room = 0;
        while (first + n <= sizeof used && room < n) {
            for (room = 0; room < n && !used[first + room]; room++)
                ;
            first += room < n ? (room / step + 1) * step : 0;
        }
        bool found = room == n;
        NEED(has[k].at && lies_in_file(has[k].at, 1) == found);
        NEED(!found || has[k].at == base + first * PAGE);
        has[k].first = found ? first : 0;
        has[k].n = found ? n : 0;
        memset(used + has[k].first, 1, has[k].n);
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

/* Calls that are no points of cancellation, of which the thread has one to come. */
static void *call_all(void *arg) {
    char *at = pages(MIB), *stack = pages(MIB);
    pthread_attr_t attr;
    fill(at, MIB, 1);
    pthread_cancel(pthread_self());
    pid_t pid = fork();
    if (!pid)
        _exit(7);
    madvise(at, MIB, MADV_DONTNEED);
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, MIB);
    free(stack);
    free(at);
    *(pid_t *)arg = pid;
    return arg;
}

static void cancelled(void) {
    for (int closes = 0; closes < 2; closes++) {
        pthread_t thread;
        pid_t pid;
        void *ended;
        int status;
        NEED(!pthread_create(&thread, NULL, call_all, &pid) && !pthread_join(thread, &ended));
        NEED(ended == &pid && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
        NEED(lies_in_file(pages(PAGE), 1) == !closes &&
             (closes || !close(place.fd))); /* the second time without the file */
    }
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
static void are_two(char *at) { NEED(is_all(at, 20 * MIB, 2)); }

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
    NEED(dup2(file, place.fd) == place.fd && ftruncate(file, ALL) == 0);
    NEED(!lies_in_file(at, PAGE));
    for (int i = 0; i < 20; i++)
        fill(pages(MIB), MIB, 9);
    NEED(pread(file, &byte, 1, 5 * MIB) == 1 && byte == 0);
    pid_t pid = fork();
    if (!pid) {
        NEED(is_all(at, PAGE, 1));
        fill(at, PAGE, 2);
        NEED(fcntl(place.fd, F_GETFD) >= 0); /* it is the program's */
        _exit(0);
    }
    NEED(waitpid(pid, &status, 0) == pid && status == 0 && is_all(at, PAGE, 1));
    free(at);
}

/* In a child; its end as waitpid() tells it. */
static int end_of(void (*what)(char *), char *at) {
    int status;
    pid_t pid = fork();
    if (!pid) {
        what(at);
        _exit(0);
    }
    NEED(waitpid(pid, &status, 0) == pid);
    return status;
}

static void is_seven(char *at) { NEED(is_all(at, MIB, 7)); }

/* Another thread puts a file of the program's there, just after the library has looked which file it is. */
static void number_taken(void) {
    enum { HAS = 16 * MIB };
    static char has[HAS];
    char name[] = "/tmp/rnic-heap-test-XXXXXX";
    int file = mkstemp(name);
    NEED(file >= 0 && !unlink(name));
    fill(has, HAS, 5);
    NEED(write(file, has, HAS) == HAS);
    for (int i = 0; i < 4; i++) {
        char *at = pages(MIB), *more;
        fill(at, MIB, 7);
        NEED(lies_in_file(at, MIB));
        int keeps = dup(place.fd);
        takes_number = file;
        switch (i) {
        case 0:
            free(at);
            break;
        case 1:
            NEED(!madvise(at, MIB, MADV_DONTNEED) && is_all(at, MIB, 0));
            break;
        case 2:
            more = pages(8 * MIB); /* more than has ever been handed out */
            fill(more, 8 * MIB, 1);
            free(more);
            break;
        default:
            NEED(end_of(is_seven, at) == 0);
        }
        NEED(takes_number == -1 && dup2(keeps, place.fd) == place.fd && !close(keeps));
        NEED(pread(file, has, HAS, 0) == HAS && is_all(has, HAS, 5));
    }
}

/* The program has its own file where memory of the heap was, and has closed the heap's. */
static void mapped_over(void) {
    char *at = pages(MIB), name[] = "/tmp/rnic-heap-test-XXXXXX";
    int file = mkstemp(name);
    NEED(file >= 0 && !unlink(name) && !ftruncate(file, MIB / 2));
    fill(at, MIB, 7);
    NEED(lies_in_file(at, MIB) && !close(place.fd));
    NEED(mmap(at, MIB / 2, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, file, 0) == at);
    fill(at, MIB / 2, 5);
    NEED(!madvise(at, MIB, MADV_DONTNEED));
    NEED(is_all(at, MIB / 2, 5) && is_all(at + MIB / 2, MIB / 2, 0));
    free(at);
    NEED(is_all(at, MIB / 2, 5));
}

static void writes(char *at) { *at = 2; }

static void returns(char *at) {
    ((void (*)(void))at)();
    NEED(!mprotect(at, PAGE, PROT_READ | PROT_WRITE));
    NEED(!mprotect(at + PAGE, PAGE, PROT_READ | PROT_WRITE) && is_all(at + PAGE, PAGE, 7));
    NEED(at[3 * PAGE] == 1 && at[4 * PAGE] == 1);
    at[3 * PAGE] = 3; /* another mapping, which is common */
}

static void protections(void) {
    int status;
    char *at = pages(5 * PAGE);
    fill(at, 5 * PAGE, 1);
    fill(at + PAGE, PAGE, 7);
    *at = (char)0xc3; /* return, on x86 */
    char *common = mmap(at + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(common != MAP_FAILED);
    *common = 1;
    NEED(!mprotect(at + PAGE, PAGE, PROT_NONE));
#ifdef __x86_64__
    NEED(!mprotect(at, PAGE, PROT_READ | PROT_EXEC));
    for (int closes = 0; closes < 2; closes++) {
        NEED(end_of(returns, at) == 0 && *common == 3);
        *common = 1;
        NEED(lies_in_file(at, 1) == !closes && (closes || !close(place.fd))); /* the second time without the file */
    }
#endif
    status = end_of(writes, at + PAGE);
    NEED(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* ---------------------------------------------------------------- handlers of the program */

static char *kept, *common, *forgotten_late, *more;

static void prepare(void) {
    free(kept);
    kept = pages(PAGE);
    *kept = *common = 1;
    if (forgotten_late) {
        NEED(!madvise(forgotten_late, MIB, MADV_DONTNEED));
        more = pages(20 * MIB); /* more than was mapped */
        fill(more, 20 * MIB, 1);
    }
}
static void in_parent(void) { *common = 0; }
static void in_child(void) {
    NEED(*common == 1 && *kept == 1);
    *common = *kept = 2;
}

/* early.c registers these ahead of the library's: they run when the heap has been copied and its lock is held. */
void early_prepare(void) { prepare(); }
void early_in_parent(void) { in_parent(); }
void early_in_child(void) { in_child(); }

static void sees_all(char *at) { NEED(is_all(at, MIB, 0) && is_all(at + MIB, MIB, 1) && is_all(more, 20 * MIB, 1)); }

/* Handlers that run after a device's, with its locks held. */
static void late_handlers(void) {
    NEED(!pthread_atfork(prepare, in_parent, in_child));
    begin();
    kept = pages(PAGE);
    common = malloc(1);
    forgotten_late = pages(2 * MIB);
    fill(forgotten_late, 2 * MIB, 1);
    NEED(end_of(sees_all, forgotten_late) == 0 && copies > 1);
    NEED(lies_in_file(more, 20 * MIB)); /* registered: what is there when fork() is called */
    fill(more, 20 * MIB, 2);
    char *shared = more;
    forgotten_late = NULL;
    NEED(end_of(are_two, shared) == 0);
}

static void sees_two(char *at) { NEED(at == common && *common == 2 && *kept == 2); }

static void handlers(void) {
    NEED(!pthread_atfork(prepare, in_parent, in_child));
    kept = pages(PAGE);
    common = pages(PAGE);
    NEED(end_of(sees_two, common) == 0 && *common == 0 && *kept == 1 && lies_in_file(kept, 1));
}

static void early_handlers(void) {
    kept = pages(PAGE);
    common = malloc(1);
    NEED(lies_in_file(kept, PAGE) && end_of(sees_two, common) == 0 && *common == 0 && *kept == 1);
}

/* What is free, or was never written, is not copied; nor is each page alone. */
enum { PIECES = 64, STRIPED = 256 }; /* pages */

static void sees_pieces(char *at) {
    for (int i = 1; i < PIECES; i += 2)
        NEED(is_all(((char **)at)[i], PAGE, (char)i));
}

static void sees_stripes(char *at) {
    for (int i = 0; i < STRIPED; i++)
        NEED(is_all(at + i * PAGE, PAGE, i % 2));
}

static void prepare_nothing(void) {}

static void pieces(void) {
    char *at[PIECES], *striped = pages(STRIPED * PAGE);
    for (int i = 1; i < STRIPED; i += 2)
        fill(striped + i * PAGE, PAGE, 1);
    NEED(end_of(sees_stripes, striped) == 0 && copies <= STRIPED / 4);
    NEED(!madvise(striped, STRIPED * PAGE, MADV_DONTNEED));
    for (int i = 0; i < PIECES; i++) {
        at[i] = pages(PAGE);
        fill(at[i], PAGE, (char)i);
    }
    for (int i = 0; i < PIECES; i += 2)
        free(at[i]);
    copied = 0;
    NEED(end_of(sees_pieces, (char *)at) == 0 && copied == PIECES / 2 * PAGE);
    NEED(!pthread_atfork(prepare_nothing, NULL, NULL) && lies_in_file(at[1], PAGE));
    copied = 0;
    NEED(end_of(sees_pieces, (char *)at) == 0 && copied == (PIECES - 1) * PAGE); /* but one again */
}

static void has_mask(char *at) {
    sigset_t mask;
    NEED(!pthread_sigmask(SIG_BLOCK, NULL, &mask));
    for (int i = 1; i < NSIG; i++)
        NEED((sigismember(&mask, i) == 1) == (i == SIGUSR2));
    *at = 1;
}

static void masks(void) {
    char *at = pages(PAGE);
    sigset_t mask;
    NEED(!sigemptyset(&mask) && !sigaddset(&mask, SIGUSR2) && !pthread_sigmask(SIG_BLOCK, &mask, NULL));
    NEED(end_of(has_mask, at) == 0);
    has_mask(at);
}

/* ---------------------------------------------------------------- stacks */

static volatile int handled;

static void fork_here(void) {
    volatile int mine = 1;
    for (int i = 0; i < 3; i++) {
        int status;
        pid_t pid = fork();
        if (!pid) {
            mine = 2;
            _exit(mine == 2 ? 7 : 8);
        }
        NEED(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7 && mine == 1);
    }
}

static void *fork_in_thread(void *arg) {
    fork_here();
    return arg;
}

static void fork_in_handler(int signal) {
    handled = signal;
    fork_here();
}

#ifdef __GLIBC__ /* musl has no contexts */
static void stack_of_context(void) {
    static ucontext_t back, there;
    char *at = pages(2 * MIB);
    NEED(!mprotect(at, PAGE, PROT_NONE) && !getcontext(&there));
    there.uc_stack = (stack_t){.ss_sp = at + PAGE, .ss_size = MIB};
    there.uc_link = &back;
    makecontext(&there, fork_here, 0);
    NEED(!swapcontext(&back, &there));
    NEED(!mprotect(at, PAGE, PROT_READ | PROT_WRITE));
    free(at);
}
#else
static void stack_of_context(void) {}
#endif

static void stacks(void) {
    char *at = pages(MIB);
    pthread_attr_t attr;
    pthread_t thread;
    at[0] = 5;
    NEED(lies_in_file(pages(PAGE), PAGE));
    NEED(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, at + PAGE, MIB - PAGE));
    NEED(at[0] == 5 && !lies_in_file(at, 1));
    char *registered = pages(MIB);
    pthread_attr_t other;
    NEED(lies_in_file(registered, MIB) && !pthread_attr_init(&other));
    NEED(!pthread_attr_setstack(&other, registered, MIB) && lies_in_file(registered, MIB)); /* peers write there */
    free(registered);
    char *again = pages(MIB); /* what was registered before does not count */
    NEED(again == registered && !pthread_attr_setstack(&other, again, MIB) && !lies_in_file(again, 1));
    NEED(!pthread_create(&thread, &attr, fork_in_thread, NULL) && !pthread_join(thread, NULL));
    free(at);

    stack_of_context();
    at = pages(MIB);
    stack_t stack = {.ss_sp = at, .ss_size = MIB};
    struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_ONSTACK};
    NEED(!sigaltstack(&stack, NULL) && !sigaction(SIGUSR1, &action, NULL) && !raise(SIGUSR1) && handled);
}

static void use_as_stack(char *at, size_t bytes) {
    NEED(!sigaltstack(&(stack_t){.ss_sp = at, .ss_size = bytes}, NULL));
}

static void gives(char *at) {
    free(at);
    NEED(is_all(at, MIB, 0));
}

/* It is no memory of the file any more, and forgotten as libc's is. */
static void forgotten_stack(void) {
    struct stat st;
    char *at = pages(MIB);
    fill(at, MIB, 1);
    NEED(lies_in_file(pages(PAGE), PAGE) && !fstat(place.fd, &st) && st.st_blocks >= MIB / 512);
    use_as_stack(at, MIB);
    NEED(!fstat(place.fd, &st) && st.st_blocks == 0 && is_all(at, MIB, 1));
    NEED(!madvise(at, PAGE, MADV_DONTNEED) && is_all(at, PAGE, 0) && is_all(at + PAGE, MIB - PAGE, 1));
    NEED(!sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL));
    gives(at);
}

/* It takes the end of the stack. */
static void stack_by_its_end(void) {
    char *at = pages(MIB);
    pthread_attr_t attr;
    int (*set)(pthread_attr_t *, void *) = (int (*)(pthread_attr_t *, void *))function("pthread_attr_setstackaddr");
    NEED(!pthread_attr_init(&attr) && !set(&attr, at + MIB));
    NEED(!lies_in_file(at, MIB) && !pthread_attr_destroy(&attr));
    NEED(lies_in_file(pages(MIB), MIB));
}

static void free_stacks(void) {
    char *at = pages(MIB), *volatile was = at;
    free(at);
    use_as_stack(was, MIB);
    at = pages(PAGE);
    NEED(lies_in_file(at, PAGE));
}

/* Some of it is in the file, and some is not: peers do not use it, and it is all there. */
static void half_a_stack(void) {
    char *at = pages(3 * MIB);
    fill(at, 3 * MIB, 1);
    NEED(!mprotect(at + MIB, MIB, PROT_READ));
    moves_left = 2;
    use_as_stack(at, 3 * MIB);
    NEED(!moves_left && is_all(at, 3 * MIB, 1));
    NEED(!lies_in_file(at, 3 * MIB) && !lies_in_file(at, 1));
    NEED(end_of(writes, at) == 0 && at[0] == 1);
}

/* A handler that forks may come at any moment, also where the heap has its lock. */
static void fork_at_next_unlock(void (*what)(char *), char *at) {
    handled = 0;
    unlocks_left = 1;
    what(at);
    NEED(!handled == (unlocks_left > 0));
    unlocks_left = 0;
}

static void allocates(char *at) { *(char **)at = pages(PAGE); }
static void frees(char *at) { free(*(char **)at); }
static void empties(char *at) { NEED(!madvise(*(char **)at, PAGE, MADV_DONTNEED)); }
static void registers(char *at) { NEED(lies_in_file(*(char **)at, PAGE)); }

static void forks_in_handlers(void) {
    struct sigaction action = {.sa_handler = fork_in_handler};
    char *at;
    NEED(!sigaction(SIGUSR1, &action, NULL));
    fork_at_next_unlock(allocates, (char *)&at);
    fork_at_next_unlock(frees, (char *)&at);
    begin();
    fork_at_next_unlock(allocates, (char *)&at);
    NEED(handled);
    fork_at_next_unlock(empties, (char *)&at);
    fork_at_next_unlock(registers, (char *)&at);
    fork_at_next_unlock(frees, (char *)&at);
    NEED(handled);
}

/* ---------------------------------------------------------------- children that copy nothing */

static void spawns(void) {
    extern char **environ;
    char *at = pages(MIB), *words[] = {"true", NULL};
    int status;
    pid_t pid;
    fill(at, MIB, 1);
    NEED(!unsetenv("LD_PRELOAD") && !unsetenv("LD_LIBRARY_PATH")); /* the shell may be of another C library */
    NEED(system("exit 3") == 3 << 8);
    FILE *from = popen("true", "r");
    NEED(from && pclose(from) == 0);
    NEED(!posix_spawnp(&pid, "true", NULL, NULL, words, environ) && waitpid(pid, &status, 0) == pid && !status);
    if (!(pid = vfork()))
        _exit(0);
    NEED(waitpid(pid, &status, 0) == pid && !status);
    NEED(copies == 0 && lies_in_file(at, MIB));
    NEED(end_of(writes, at) == 0 && copies == 1); /* ahead of the locks of a device, and not again */
}

/* ---------------------------------------------------------------- what else a program does with memory */

static void forgets(char *at) {
    fill(at, 2 * PAGE, 1);
    NEED(!madvise(at, PAGE, MADV_DONTNEED) && is_all(at, PAGE, 0) && is_all(at + PAGE, PAGE, 1));
    NEED(!madvise(at + PAGE, PAGE, MADV_FREE));
    NEED(madvise(at + 1, PAGE, MADV_DONTNEED) && errno == EINVAL);
}

static void forgotten(void) {
    char *at = pages(2 * PAGE);
    forgets(at);
    NEED(!mprotect(at, PAGE, PROT_READ) && !madvise(at, PAGE, MADV_DONTNEED) && is_all(at, PAGE, 0));
    NEED(!mprotect(at, PAGE, PROT_READ | PROT_WRITE));
    NEED(end_of(forgets, at) == 0);
}

static void is_half_wiped(char *at) { NEED(is_all(at, MIB, 0) && is_all(at + MIB, MIB, 1)); }
static void is_whole(char *at) { NEED(is_all(at, 2 * MIB, 1)); }

/* A child has zeros there, whether peers may use it or not; a block that is allocated anew is as any other. */
static void wiped(void) {
    for (int i = 0; i < 3; i++) {
        char *at = pages(2 * MIB);
        fill(at, 2 * MIB, 1);
        if (i == 1) /* peers may use it */
            NEED(lies_in_file(at, 2 * MIB));
        if (i == 2)
            use_as_stack(at, 2 * MIB);
        NEED(!madvise(at, MIB, MADV_WIPEONFORK) && end_of(is_half_wiped, at) == 0 && is_all(at, 2 * MIB, 1));
        NEED(!madvise(at, MIB, MADV_KEEPONFORK) && end_of(is_whole, at) == 0);
        NEED(!madvise(at, MIB, MADV_WIPEONFORK));
        if (i == 2)
            NEED(!sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL));
        free(at);
        char *again = pages(2 * MIB);
        fill(again, 2 * MIB, 1);
        NEED(again == at && end_of(is_whole, again) == 0);
        free(again);
    }
    errno = 0;
    NEED(madvise(pages(PAGE) + 1, 10, MADV_WIPEONFORK) == -1 && errno == EINVAL);
}

static void fills(char *at) {
    is_half_wiped(at);
    fill(at, MIB, 1);
    NEED(end_of(is_half_wiped, at) == 0 && end_of(is_half_wiped, at) == 0 && is_all(at, 2 * MIB, 1));
    NEED(!madvise(at, MIB, MADV_KEEPONFORK) && end_of(is_whole, at) == 0);
    NEED(!madvise(at, MIB, MADV_WIPEONFORK) && end_of(is_half_wiped, at) == 0);
}

/* For every fork, of a child, too. */
static void wiped_again(void) {
    for (int i = 0; i < 3; i++) {
        char *at = pages(2 * MIB);
        fill(at, 2 * MIB, 1);
        if (i == 1)
            NEED(lies_in_file(at, 2 * MIB));
        if (i == 2)
            use_as_stack(at, 2 * MIB);
        NEED(!madvise(at, MIB, MADV_WIPEONFORK));
        for (int forks_ = 0; forks_ < 3; forks_++)
            NEED(end_of(fills, at) == 0 && is_all(at, 2 * MIB, 1));
        if (i == 2)
            NEED(!sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL));
        free(at);
    }
}

/* Without the descriptor, where the file is still mapped is looked up for much memory alone. */
static void freed_without_descriptor(void) {
    char *holds[64];
    for (size_t i = 0; i < 64; i++) {
        holds[i] = pages(GIVEN);
        fill(holds[i], GIVEN, 1);
    }
    NEED(lies_in_file(holds[0], PAGE) && !close(place.fd));
    looks_at_maps = 0;
    for (int i = 1; i < 64; i += 2)
        free(holds[i]);
    NEED(looks_at_maps <= 2);
    for (int i = 0; i < 200; i++) {
        char *at = pages(GIVEN + (size_t)(i % 3) * MIB);
        fill(at, GIVEN, 1);
        free(at);
    }
    NEED(looks_at_maps <= 2);
    for (int i = 0; i < 64; i += 2)
        NEED(is_all(holds[i], GIVEN, 1));
}

/* Memory that grows by mremap() has zeros there, and not what lies behind it in the file. */
static void grown(void) {
    char *at = pages(MIB), *behind = pages(MIB), *to;
    void *(*grow)(void *, size_t, size_t, int, ...) =
        (void *(*)(void *, size_t, size_t, int, ...))dlsym(RTLD_NEXT, "mremap");
    NEED(grow);
    fill(at, MIB, 1);
    fill(behind, MIB, 2);
    NEED((to = grow(at, MIB, 2 * MIB, MREMAP_MAYMOVE)) != MAP_FAILED);
    NEED(is_all(to, MIB, 1) && is_all(to + MIB, MIB, 0));
    fill(to, 2 * MIB, 3);
    NEED(is_all(behind, MIB, 2));
    NEED(lies_in_file(behind, MIB)); /* what peers may use stays where it is */
    NEED(grow(behind, MIB, 2 * MIB, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM && is_all(behind, MIB, 2));
    NEED(grow(to, 2 * MIB, MIB, 0) == to && is_all(to, MIB, 3));
}

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* What is not for files: as of anonymous memory. */
static void advised(void) {
    char *at = pages(MIB), *common_ = pages(MIB),
         *plain = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(at, MIB, 1);
    fill(common_, MIB, 1);
    NEED(lies_in_file(common_, MIB));
    NEED(madvise(at, MIB, MADV_REMOVE) == -1 && errno == EINVAL && is_all(at, MIB, 1));
    NEED(madvise(common_, MIB, MADV_REMOVE) == -1 && errno == EINVAL && is_all(common_, MIB, 1));
    bool known = !madvise(plain, PAGE, MADV_GUARD_INSTALL); /* of newer kernels */
    NEED(madvise(at, PAGE, MADV_GUARD_INSTALL) == (known ? 0 : -1));
    if (known)
        NEED(!madvise(at, PAGE, MADV_GUARD_REMOVE) && is_all(at, PAGE, 0) && is_all(at + PAGE, MIB - PAGE, 1));
    NEED(madvise(common_, PAGE, MADV_GUARD_INSTALL) == -1 && errno == EINVAL && is_all(common_, MIB, 1));
}

/* Long runs are no memory any more; a child's are not its parent's. */
static void given(void) {
    struct stat st;
    char *at = pages(MIB);
    fill(at, MIB, 1);
    NEED(lies_in_file(at, MIB) && !fstat(place.fd, &st) && st.st_blocks >= MIB / 512);
    NEED(end_of(gives, at) == 0 && is_all(at, MIB, 1));
    errno = 77;
    free(at);
    NEED(errno == 77 && !fstat(place.fd, &st) && st.st_blocks == 0);
    at = pages(MIB);
    NEED(lies_in_file(at, MIB) && !close(place.fd) && !mprotect(at, MIB, PROT_READ)); /* now it cannot be given back */
    errno = 77;
    free(at);
    NEED(errno == 77);
}

/* Of short runs that are free only a few MiB stay memory, whether they are neighbours or not. */
static void given_in_pieces(void) {
    enum { EACH = 16 * PAGE, N = 256, KEPT = 4 * MIB };
    struct stat st;
    char *at[N];
    for (int i = 0; i < N; i++) {
        at[i] = pages(EACH);
        fill(at[i], EACH, (char)i);
    }
    NEED(lies_in_file(at[0], PAGE));
    for (int odd = 0; odd < 2; odd++) {
        for (int i = odd; i < N; i += 2)
            free(at[i]);
        NEED(!fstat(place.fd, &st) && st.st_blocks <= (KEPT + (1 - odd) * N / 2 * EACH) / 512);
        for (int i = 1; i < N && !odd; i += 2)
            NEED(is_all(at[i], EACH, (char)i));
    }
    char *all = pages(ALL);
    NEED(lies_in_file(all, ALL));
}

static void frees_again(char *at) {
    free(at);
    free(at);
}
static void frees_inside(char *at) { free(at + PAGE); }
static void frees_unaligned(char *at) { free(at + 16); }
static void grows_inside(char *at) { at = realloc(at + PAGE, 10); }

static void wrong(void) {
    void (*const what[])(char *) = {frees_again, frees_inside, frees_unaligned, grows_inside};
    char *inner = pages(2 * PAGE);
    free(pages(PAGE));
    free(inner); /* what a page was does not count */
    char *at = pages(4 * PAGE);
    for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
        int status = end_of(what[i], at);
        NEED(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

static bool has_file(void) {
    char name[64], text[64];
    for (int i = 3; i < 1024; i++) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", i);
        ssize_t n = readlink(name, text, sizeof text - 1);
        if (n > 0 && memmem(text, (size_t)n, "rnic-heap", 9))
            return true;
    }
    return false;
}

static void has_none(char *at) {
    NEED(!has_file() && at[0] == 1);
    at = pages(PAGE);
    begin();
    NEED(!has_file() && !lies_in_file(at, 1) && !lies_in_file(pages(PAGE), 1));
}

static void descriptor(void) {
    char *at = pages(PAGE);
    at[0] = 1;
    NEED(has_file() && end_of(has_none, at) == 0);
}

/* Before a device is open, nothing is of the heap. */
static void unused(void) {
    char *at = pages(PAGE);
    NEED(!lies_in_file(at, 1) && !has_file());
    begin();
    NEED(lies_in_file(pages(PAGE), 1) && !lies_in_file(at, 1));
    free(at);
}

/* Before the first free() of a program, and after a call that failed. */
static void errors(void) {
    NEED(!dlsym(RTLD_DEFAULT, "no_such_function") && !dlsym(RTLD_DEFAULT, "nor_this_one"));
    char *text = realloc(NULL, 10);
    free(text);
    NEED(text && dlerror() && !dlerror());
}

/* ---------------------------------------------------------------- limits */

static size_t address_space(void) {
    unsigned long n = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    NEED(f && fscanf(f, "%lu", &n) == 1);
    fclose(f);
    return n * PAGE;
}

static void limit_to(int what, size_t bytes) {
    struct rlimit limit = {bytes, bytes};
    NEED(!setrlimit(what, &limit));
}

static void is_one(char *at) { NEED(is_all(at, 20 * MIB, 1)); }

/* A limit that comes later leaves the copies of children away from what it counts. */
static void limited_later(void) {
    char *at = pages(20 * MIB);
    fill(at, 20 * MIB, 1);
    limit_to(RLIMIT_AS, address_space() + MIB);
    for (int i = 0; i < 2; i++)
        NEED(end_of(is_one, at) == 0);
}

/* A child that gets no copy does not go on. */
static void no_copy(void) {
    char *at = pages(20 * MIB);
    fill(at, 20 * MIB, 1);
    limit_to(RLIMIT_AS, address_space() - MIB); /* the program has more than it may */
    int status = end_of(writes, at);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 127 && at[0] == 1);
}

static void no_file(void) {
    char *at = pages(MIB);
    *at = 1;
    no_holes = true;
    int status = end_of(writes, at);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 127 && at[0] == 1);
}

static void limited_by(int what, size_t bytes) {
    limit_to(what, bytes);
    begin();
    char *at = pages(PAGE);
    NEED(!lies_in_file(at, PAGE) && !has_file());
    free(at);
}
static void limited_file(void) { limited_by(RLIMIT_FSIZE, 1 << 30); }
static void limited_space(void) { limited_by(RLIMIT_AS, 4ul << 30); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*does)(void);
        bool begins; /* itself */
    } all[] = {{"places", places, false},
               {"sizes", sizes, false},
               {"room", room, false},
               {"next", next, false},
               {"rotation", rotation, false},
               {"lowest", lowest, false},
               {"threads", threads, false},
               {"cancelled", cancelled, false},
               {"forks", forks, false},
               {"closed", closed, false},
               {"number taken", number_taken, false},
               {"mapped over", mapped_over, false},
               {"protections", protections, false},
               {"handlers", handlers, false},
               {"late handlers", late_handlers, true},
               {"early handlers", early_handlers, false},
               {"pieces", pieces, false},
               {"masks", masks, false},
               {"stacks", stacks, false},
               {"stack by its end", stack_by_its_end, false},
               {"free stacks", free_stacks, false},
               {"wiped", wiped, false},
               {"wiped again", wiped_again, false},
               {"freed without descriptor", freed_without_descriptor, false},
               {"grown", grown, false},
               {"advised", advised, false},
               {"forgotten stack", forgotten_stack, false},
               {"half a stack", half_a_stack, false},
               {"forks in handlers", forks_in_handlers, true},
               {"spawns", spawns, false},
               {"forgotten", forgotten, false},
               {"given", given, false},
               {"given in pieces", given_in_pieces, false},
               {"wrong", wrong, false},
               {"descriptor", descriptor, false},
               {"unused", unused, true},
               {"errors", errors, true},
               {"limited later", limited_later, false},
               {"no copy", no_copy, false},
               {"no file", no_file, false},
               {"limited file", limited_file, true},
               {"limited space", limited_space, true}};
    for (size_t i = 0; argc == 2 && i < sizeof all / sizeof *all; i++) {
        if (!strcmp(argv[1], all[i].name)) {
            if (!all[i].begins)
                begin();
            all[i].does();
            return 0;
        }
    }
    return 2;
}
