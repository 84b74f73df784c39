/* SPDX-License-Identifier: Apache-2.0
 *
 * link/udp/owner.c: who holds UDP 4791, from tables of the test's own, and what is said about it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* struct ucred, memfd_create */
#endif
#include "link/udp/owner.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "link/udp/port.h"
#include "live.h"
#include "names/slot.h"
#include "names/slotmsg.h"

/* ---------------------------------------------------------------- what the kernel shows */

static const char *udp, *udp6, *unix_names; /* instead of /proc/net's; NULL: as it is */
static const char *comm, *stat_of;          /* likewise, of any process */
static const char *no_folder;               /* whose name has this at its end cannot be looked into */
static bool rxe;

static FILE *file_of(const char *text) {
    int fd = memfd_create("text", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && lseek(fd, 0, SEEK_SET) == 0);
    return fdopen(fd, "r");
}

static bool ends_in(const char *path, const char *with) {
    size_t n = strlen(path), m = strlen(with);
    return n >= m && !strcmp(path + n - m, with);
}

DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (!real)
        real = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return no_folder && ends_in(path, no_folder) ? NULL : real(path);
}

FILE *fopen(const char *path, const char *mode) {
    const char *text = !strcmp(path, "/proc/net/udp")    ? udp
                       : !strcmp(path, "/proc/net/udp6") ? udp6
                       : !strcmp(path, "/proc/net/unix") ? unix_names
                       : ends_in(path, "/comm")          ? comm
                       : ends_in(path, "/stat")          ? stat_of
                                                         : NULL;
    if (text)
        return *text ? file_of(text) : NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)mode;
    return fd < 0 ? NULL : fdopen(fd, "r");
}

int access(const char *path, int how) {
    if (!strcmp(path, "/sys/module/rdma_rxe"))
        return rxe ? 0 : -1;
    return faccessat(AT_FDCWD, path, how, 0);
}

static struct sockaddr_in6 at(const char *text) {
    struct sockaddr_in6 a = {.sin6_family = AF_INET6};
    CHECK_EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
    return a;
}

/* ---------------------------------------------------------------- the table of sockets */

#define HEADER "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
#define ROW(sl, local, uid, inode)                                                                                     \
    "  " sl ": " local " 00000000:0000 07 00000000:00000000 00:00000000 00000000 " uid "        0 " inode              \
    " 2 0000000000000000 0\n"

/* Who is in the way of the address: "uid inode", with a * for the wildcard; "" for nobody. */
static void holder_is(const char *address, const char *want) {
    struct sockaddr_in6 a = at(address);
    struct owner o;
    char text[64] = "";
    int before = check_descriptors(), rc = owner_find(&a, &o);
    CHECK_EQ(check_descriptors(), before);
    if (rc == 0)
        (void)snprintf(text, sizeof text, "%u %lu%s", (unsigned)o.uid, o.inode, o.wildcard ? "*" : "");
    else
        CHECK_EQ(rc, -ENOENT);
    if (strcmp(text, want) != 0)
        check_fail(__FILE__, __LINE__, "%s: not \"%s\" but \"%s\"", address, want, text);
}

static void an_address_has_the_socket_that_is_bound_to_it(void) {
    udp = HEADER ROW("1", "0100007F:12B6", "5", "50") ROW("22", "0200007F:12B7", "6", "60")
        ROW("333", "0100007F:12B7", "1001", "1234567890");
    udp6 = HEADER ROW("1", "00000000000000000000000001000000:12B7", "7", "70")
        ROW("2", "B80D01200000000000000000FF010000:12B7", "8", "80");
    holder_is("::ffff:127.0.0.1", "1001 1234567890");
    holder_is("::ffff:127.0.0.2", "6 60");
    holder_is("::ffff:127.0.0.3", "");
    holder_is("::1", "7 70");
    holder_is("2001:db8::1ff", "8 80");
    holder_is("2001:db8::2ff", "");
    holder_is("::127.0.0.2", ""); /* not IPv4's */
}

static void a_wildcard_is_in_the_way_of_its_family_and_that_of_ipv6_of_both(void) {
    udp = HEADER ROW("1", "00000000:12B7", "5", "50");
    udp6 = HEADER;
    holder_is("::ffff:127.0.0.1", "5 50*");
    holder_is("::1", "");
    udp = HEADER;
    udp6 = HEADER ROW("1", "00000000000000000000000000000000:12B7", "6", "60");
    holder_is("::ffff:127.0.0.1", "6 60*");
    holder_is("::1", "6 60*");
    udp6 = HEADER ROW("1", "0000000000000000FFFF000000000000:12B7", "6", "60"); /* of IPv4, by a socket of IPv6 */
    holder_is("::ffff:127.0.0.1", "6 60*");
    holder_is("::1", "");
    udp6 = HEADER ROW("1", "0000000000000000FFFF00000100007F:12B7", "6", "60");
    holder_is("::ffff:127.0.0.1", "6 60");
}

static void the_first_table_goes_first_and_one_may_be_missing(void) {
    udp = HEADER ROW("1", "0100007F:12B7", "5", "50");
    udp6 = HEADER ROW("1", "0000000000000000FFFF00000100007F:12B7", "6", "60");
    holder_is("::ffff:127.0.0.1", "5 50");
    udp = "";
    holder_is("::ffff:127.0.0.1", "6 60");
    udp6 = "";
    holder_is("::ffff:127.0.0.1", "");
    holder_is("::1", "");
}

static void lines_that_make_no_sense_are_passed_over(void) {
    udp = "\n" ROW("1", "0100007:12B7", "5", "50") ROW("1", "100007F:12B7", "5", "50")
        ROW("1", "0100007F0100007F:12B7", "5", "50") ROW("1", "0100007F", "5", "50")
            ROW("x", "0100007F:12B7", "5", "50") "  1: 0100007F:12B7 1 2 3\n" ROW("2", "0100007F:12B7", "9", "90");
    udp6 = "";
    holder_is("::ffff:127.0.0.1", "9 90");
}

/* ---------------------------------------------------------------- does rnic answer? */

static struct slot slot;
static const struct sockaddr_in6 *of;
static struct slotmsg answer_with;            /* what an answer differs by: fields that are not 0 */
static int polls, waited, queries, answer_at; /* waited: ms that were allowed */
static size_t answer_bytes;
static bool garbage;

/* A process of rnic, while it is waited for. */
static void answer_query(void) {
    struct {
        struct slotmsg m;
        char more;
    } in = {0};
    struct abstract_name from;
    struct iovec iov = {&in, answer_bytes};
    socklen_t n = sizeof from.un;
    ssize_t got = recvfrom(slot.fd, &in, sizeof in, MSG_DONTWAIT, (struct sockaddr *)&from.un, &n);
    if (got < 0)
        return;
    queries++;
    CHECK(got == sizeof in.m && in.m.magic == SLOTMSG_MAGIC && in.m.version == SLOTMSG_VERSION);
    CHECK(in.m.type == SLOTMSG_OWNER_QUERY && in.m.nonce != 0 && !memcmp(&in.m.dst, of, sizeof *of));
    CHECK(memmem(from.un.sun_path, sizeof from.un.sun_path, "rnic/1/query/", 13) != NULL);
    from.length = n;
    in.m.type = answer_with.type ? answer_with.type : SLOTMSG_OWNER_ANSWER;
    in.m.magic += answer_with.magic;
    in.m.nonce += answer_with.nonce;
    in.m.dst.sin6_addr.s6_addr[15] += answer_with.dst.sin6_addr.s6_addr[15];
    if (queries > answer_at)
        CHECK_EQ(abstract_send(&from, &iov, 1), 0);
}

int poll(struct pollfd *fds, nfds_t n, int ms) {
    polls++;
    waited += ms;
    CHECK(n == 1 && ms >= 0 && ms <= 800);
    if (garbage)
        return 1;
    answer_query();
    return ppoll(fds, n, &(struct timespec){0}, NULL);
}

static int sent;

ssize_t sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *to, socklen_t length) {
    struct iovec iov = {(void *)data, n};
    struct msghdr msg = {.msg_name = (void *)to, .msg_namelen = length, .msg_iov = &iov, .msg_iovlen = 1};
    sent++;
    return sendmsg(fd, &msg, flags);
}

static bool is_rnic(uid_t uid) {
    static struct sockaddr_in6 a;
    struct owner o = {.uid = uid, .inode = 1};
    a = at("::ffff:127.0.0.1");
    of = &a;
    polls = waited = queries = sent = 0;
    return owner_is_rnic(&a, &o, true);
}

static void name_the_slot(void) {
    static char text[512];
    CHECK_EQ(slot_claim(&slot, NULL), 0);
    (void)snprintf(text, sizeof text,
                   "Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 0 2 1 1 /run/rnic/1/slot/3\n"
                   "0: 2 0 0 2 1 1 @rnic/1/slot/1024\n0: 2 0 0 2 1 1 @rnic/1/lane/%u\n0: 2 0 0 2 1 1 @rnic/1/slot/%u\n",
                   slot.number, slot.number);
    unix_names = text;
    answer_with = (struct slotmsg){0};
    answer_bytes = sizeof(struct slotmsg);
    answer_at = 0;
    garbage = false;
}

static void who_answers_and_is_of_the_sockets_user_is_rnic(void) {
    name_the_slot();
    int before = check_descriptors();
    CHECK(is_rnic(getuid()));
    CHECK_EQ(polls, 1);
    CHECK(!is_rnic(getuid() + 1));
    int input = dup(0);
    close(0); /* which is the asker's then */
    CHECK(is_rnic(getuid()));
    CHECK_EQ(dup2(input, 0), 0);
    close(input);
    answer_at = 5; /* it was busy */
    CHECK(is_rnic(getuid()));
    CHECK_EQ(polls, 6);
    CHECK(waited >= 1500);
    answer_at = 6;
    CHECK(!is_rnic(getuid()));
    CHECK_EQ(queries, 6);
    CHECK_EQ(check_descriptors(), before);
    struct rlimit limit, none = {0};
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none.rlim_max = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool asked = is_rnic(getuid()); /* without a descriptor nobody can be asked */
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK(!asked);
    slot_release(&slot);
}

static void a_wrong_answer_is_none(void) {
    name_the_slot();
    answer_with.type = SLOTMSG_OWNER_QUERY;
    CHECK(!is_rnic(getuid()));
    answer_with = (struct slotmsg){.magic = 1};
    CHECK(!is_rnic(getuid()));
    answer_with = (struct slotmsg){.nonce = 1};
    CHECK(!is_rnic(getuid()));
    answer_with = (struct slotmsg){.dst.sin6_addr.s6_addr[15] = 1};
    CHECK(!is_rnic(getuid()));
    answer_with = (struct slotmsg){0};
    answer_bytes--;
    CHECK(!is_rnic(getuid()));
    slot_release(&slot);
}

static void nobody_keeps_us_by_answering_nonsense(void) {
    name_the_slot();
    garbage = true;
    CHECK(!is_rnic(getuid())); /* it ends */
    unix_names = "";           /* not to be read */
    garbage = false;
    answer_at = INT32_MAX;
    CHECK(!is_rnic(getuid()));
    CHECK_EQ(polls, 6);
    slot_release(&slot);
}

/* Anybody may have any number of names: then some are asked in each round, and nobody can keep the owner from being asked. */
static void names_of_strangers_are_asked_in_part(void) {
    enum { STRANGERS = 5000 };
    static char text[STRANGERS * 80];
    struct abstract_name name;
    int n = 0, rounds = 0;
    name_the_slot();
    int of_slot = slot.fd;
    abstract_name(&name, "rnic/1/listen/%016x/any4%%0", 1);
    slot.fd = abstract_open(&name);
    CHECK(slot.fd >= 0);
    for (int i = 0; i < STRANGERS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "0: 2 0 0 2 1 1 @rnic/1/listen/%016x/any6%%0\n%s", i + 2,
                      i % 4 ? "" : "0: 2 0 0 2 1 1 @rnic/1/slot/07\n0: 2 0 0 2 1 1 @rnic/1/slot/7 \n");
    CHECK(n < (int)sizeof text - 80);
    unix_names = text;
    CHECK(!is_rnic(getuid()));
    CHECK(sent > 5000 && sent <= 6 * 1024); /* all of them, within six rounds */
    (void)snprintf(text + n, sizeof text - (size_t)n, "0: 2 0 0 2 1 1 @rnic/1/listen/%016x/any4%%0\n", 1);
    for (int i = 0; i < 20; i++) {
        CHECK(is_rnic(getuid()));
        rounds += polls;
    }
    CHECK(rounds > 20); /* not all in the first */
    close(slot.fd);
    slot.fd = of_slot;
    slot_release(&slot);
}

/* ---------------------------------------------------------------- what is said */

static void said_of(const struct owner *o, const char *want) {
    struct sockaddr_in6 a = at("::ffff:127.0.0.1");
    struct rnic_err err = {0};
    CHECK_EQ(owner_fail(&a, o, &err), -EADDRINUSE);
    if (strcmp(err.text, want) != 0)
        check_fail(__FILE__, __LINE__, "not \"%s\" but \"%s\"", want, err.text);
}

static unsigned long inode_of(int fd) {
    struct stat s;
    CHECK_EQ(fstat(fd, &s), 0);
    return s.st_ino;
}

static void a_process_is_named(void) {
    char want[256], name[200] = {0};
    int long_name = memfd_create(memset(name, 'n', sizeof name - 1), MFD_CLOEXEC); /* longer than that of any socket */
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct owner o = {.uid = 12, .inode = inode_of(fd)};
    int before = check_descriptors();
    prctl(PR_SET_NAME, "a (holder) S");
    (void)snprintf(want, sizeof want,
                   "UDP port 4791 of 127.0.0.1 is held by a (holder) S (pid %d, uid 12), which does not answer as rnic "
                   "does",
                   (int)getpid());
    said_of(&o, want);
    CHECK_EQ(check_descriptors(), before);
    close(long_name);
    close(fd);
}

static void a_stopped_process_is_to_go_on(void) {
    char want[256];
    int status, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct owner o = {.uid = 12, .inode = inode_of(fd)};
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        _exit(0);
    }
    close(fd);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    (void)snprintf(
        want, sizeof want,
        "UDP port 4791 of 127.0.0.1 is held by a (holder) S (pid %d, uid 12), which is stopped: let it go on "
        "(kill -CONT %d), or end it",
        (int)pid, (int)pid);
    said_of(&o, want);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

#define NOT_SEEN(uid)                                                                                                  \
    "UDP port 4791 of 127.0.0.1 is held by the kernel, or by a process of uid " uid                                    \
    " that cannot be looked into, and that does not answer as rnic does (if it is rnic's and stopped: let it go on, "  \
    "or end it)"

/* It may end while it is looked at. */
static void what_cannot_be_read_of_a_process_is_left_out(void) {
    static const struct {
        const char *comm, *stat;
        const char *name, *state;
    } rows[] = {
        {"", "", "a program", ""},      {"\n", "1 (a) S 1", "", ""},      {"a\n", "1 (a) T 1", "a", "T"},
        {"a\n", "1 (a) t 1", "a", "t"}, {"a\n", "1 (a) T) S 1", "a", ""}, {"a\n", "1 a T 1", "a", ""},
    };
    char want[256];
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct owner o = {.uid = 12, .inode = inode_of(fd)};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int pid = (int)getpid(), n;
        check_note("row %zu", i);
        comm = rows[i].comm, stat_of = rows[i].stat;
        n = snprintf(want, sizeof want, "UDP port 4791 of 127.0.0.1 is held by %s (pid %d, uid 12), ", rows[i].name,
                     pid);
        if (*rows[i].state)
            (void)snprintf(want + n, sizeof want - (size_t)n,
                           "which is stopped: let it go on (kill -CONT %d), or end it", pid);
        else
            (void)snprintf(want + n, sizeof want - (size_t)n, "which does not answer as rnic does");
        said_of(&o, want);
    }
    comm = stat_of = NULL;
    close(fd);
}

static void what_nobody_holds_is_the_kernels_perhaps(void) {
    struct owner o = {.uid = 0, .inode = 4000000000ul, .wildcard = true};
    said_of(&o, NOT_SEEN("0"));
    rxe = true;
    said_of(&o,
            "UDP port 4791 is held by the kernel (rdma_rxe); remove its link (rdma link delete ...) or use a network "
            "namespace of its own");
    o.uid = 1;
    said_of(&o, NOT_SEEN("1"));
    o.uid = 0, o.wildcard = false;
    said_of(&o, NOT_SEEN("0"));
    rxe = false;
}

static void processes_that_hide_hold_nothing_that_is_seen(void) {
    static const char *const hidden[] = {"/fd", "/proc"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct owner o = {.uid = 7, .inode = inode_of(fd)};
    for (int i = 0; i < 2; i++) {
        no_folder = hidden[i];
        said_of(&o, NOT_SEEN("7"));
    }
    no_folder = NULL;
    close(fd);
}

int main(void) {
    live_isolate();
    RUN(an_address_has_the_socket_that_is_bound_to_it);
    RUN(a_wildcard_is_in_the_way_of_its_family_and_that_of_ipv6_of_both);
    RUN(the_first_table_goes_first_and_one_may_be_missing);
    RUN(lines_that_make_no_sense_are_passed_over);
    RUN(who_answers_and_is_of_the_sockets_user_is_rnic);
    RUN(a_wrong_answer_is_none);
    RUN(nobody_keeps_us_by_answering_nonsense);
    RUN(names_of_strangers_are_asked_in_part);
    RUN(a_process_is_named);
    RUN(a_stopped_process_is_to_go_on);
    RUN(what_cannot_be_read_of_a_process_is_left_out);
    RUN(what_nobody_holds_is_the_kernels_perhaps);
    RUN(processes_that_hide_hold_nothing_that_is_seen);
    return check_done();
}
