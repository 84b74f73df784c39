/* SPDX-License-Identifier: Apache-2.0 */
#include "link/udp/owner.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/address.h"
#include "base/fail.h"
#include "link/udp/port.h"
#include "names/abstract.h"
#include "names/slot.h"
#include "names/slotmsg.h"

#define QUERY_ROUNDS 6    /* each waits twice as long as the one before: an owner on a busy machine answers late */
#define QUERY_FIRST_MS 25
#define DOORS_AT_ONCE 1024

/* ---------------------------------------------------------------- the table of sockets */

/* /proc/net/udp prints each 32-bit word of an address as the host reads it: 127.0.0.1 is 0100007F on x86. */
static bool parse_address(const char *hex, struct in6_addr *out) {
    size_t words = strlen(hex) / 8;
    if (words != 1 && words != 4) {
        return false;
    }
    uint32_t w[4] = {0, 0, htonl(0xFFFF), 0};
    for (size_t i = 0; i < words; i++) {
        char digits[9] = {0};
        memcpy(digits, hex + 8 * i, 8);
        w[words == 1 ? 3 : i] = (uint32_t)strtoul(digits, NULL, 16);
    }
    memcpy(out, w, sizeof w);
    return true;
}

static bool is_wildcard(const struct in6_addr *a) {
    static const struct in6_addr any4 = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0, 0, 0}}};
    return IN6_IS_ADDR_UNSPECIFIED(a) || memcmp(a, &any4, sizeof any4) == 0;
}

/* An IPv4 wildcard is not in the way of an IPv6 address; an IPv6 one is in the way of both. */
static bool in_the_way(const struct in6_addr *row, const struct sockaddr_in6 *addr) {
    if (is_wildcard(row)) {
        return address_is_v4(addr) || IN6_IS_ADDR_UNSPECIFIED(row);
    }
    return memcmp(row, &addr->sin6_addr, sizeof *row) == 0;
}

/* One line of the table: local address and port, ..., uid, timeout, inode. */
static bool parse_row(const char *line, const struct sockaddr_in6 *addr, struct owner *out) {
    char hex[33];
    unsigned port, uid;
    unsigned long inode;
    struct in6_addr local;
    if (sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %u %*s %lu", hex, &port, &uid, &inode) != 4) {
        return false;
    }
    if (port != ROCE_UDP_PORT || !parse_address(hex, &local) || !in_the_way(&local, addr)) {
        return false;
    }
    *out = (struct owner){.uid = uid, .inode = inode, .wildcard = is_wildcard(&local)};
    return true;
}

static bool find_in(const char *path, const struct sockaddr_in6 *addr, struct owner *out) {
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        return false;
    }
    char line[512];
    bool found = false;
    while (!found && fgets(line, sizeof line, f) != NULL) {
        found = parse_row(line, addr, out);
    }
    fclose(f);
    return found;
}

int owner_find(const struct sockaddr_in6 *addr, struct owner *out) {
    if (address_is_v4(addr) && find_in("/proc/net/udp", addr, out)) {
        return 0;
    }
    return find_in("/proc/net/udp6", addr, out) ? 0 : -ENOENT;
}

/* ---------------------------------------------------------------- asking the slots */

static void send_query(int fd, const struct sockaddr_in6 *addr, uint64_t nonce, const char *to) {
    struct slotmsg msg = {
        .magic = SLOTMSG_MAGIC, .version = SLOTMSG_VERSION, .type = SLOTMSG_OWNER_QUERY, .nonce = nonce, .dst = *addr};
    struct abstract_name name;
    abstract_name(&name, "%s", to);
    sendto(fd, &msg, sizeof msg, MSG_NOSIGNAL, (struct sockaddr *)&name.un, name.length); /* a lost one is sent again */
}

/* Contexts have slots, of which there are so many. */
static bool is_slot(const char *name) {
    char same[32];
    unsigned slot;
    if (sscanf(name, SLOT_NAME, &slot) != 1 || slot >= SLOT_COUNT) {
        return false;
    }
    snprintf(same, sizeof same, SLOT_NAME, slot);
    return strcmp(name, same) == 0;
}

/* Whoever listens at all addresses of the host has their sockets, too, and no context yet.  Anybody may have any number of
 * such names. */
static bool is_door(const char *name) {
    int end = 0;
    (void)sscanf(name, "rnic/1/listen/%*16[0-9a-f]/any%*1[46]%%0%n", &end);
    return end > 0 && name[end] == '\0';
}

/* One question to all, in rounds. */
struct query {
    int fd;
    const struct sockaddr_in6 *addr;
    uint64_t nonce;
    uid_t owner;
    unsigned round;
    unsigned doors; /* that were there in the round before */
};

/* Takes one answer off the socket: is it the owner's? */
static bool read_answer(const struct query *q) {
    struct slotmsg msg;
    union abstract_control control;
    struct iovec iov = {&msg, sizeof msg};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    uid_t uid;
    if (recvmsg(q->fd, &mh, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof msg || msg.magic != SLOTMSG_MAGIC) {
        return false;
    }
    return msg.type == SLOTMSG_OWNER_ANSWER && msg.nonce == q->nonce && address_same(&msg.dst, q->addr) &&
           abstract_sender(&mh, &uid) && uid == q->owner;
}

/* Of more doors than are asked in a round, those of each round are others, and nobody knows which. */
static bool has_turn(const struct query *q, unsigned door) {
    uint64_t turns = q->doors / DOORS_AT_ONCE + 1;
    return (door + q->nonce + q->round) % turns == 0;
}

static int64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Asks who is named, and looks meanwhile whether the owner has answered: the kernel keeps few answers, and strangers may give
 * some. */
static bool query_all(struct query *q, int64_t until) {
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL) {
        return false;
    }
    char line[512];
    bool found = false;
    unsigned doors = 0, asked = 0;
    while (!found && clock_ms() <= until && fgets(line, sizeof line, f) != NULL) {
        const char *at = strchr(line, '@');
        line[strcspn(line, "\n")] = '\0';
        if (at == NULL) {
            continue;
        }
        bool door = is_door(at + 1) && has_turn(q, doors++) && asked < DOORS_AT_ONCE;
        if (door || is_slot(at + 1)) {
            asked += door;
            send_query(q->fd, q->addr, q->nonce, at + 1);
            found = read_answer(q);
        }
    }
    fclose(f);
    q->doors = doors;
    return found;
}

/* Looks at what comes until the owner's answer is there, or the time is over, however many wrong answers come. */
static bool await_answer(const struct query *q, int64_t until) {
    struct pollfd pfd = {.fd = q->fd, .events = POLLIN};
    bool found = false;
    int64_t left;
    do { /* once at least: what lies there has come in time */
        left = until - clock_ms();
        if (poll(&pfd, 1, left > 0 ? (int)left : 0) != 1) {
            break;
        }
        found = read_answer(q);
    } while (!found && left >= 0);
    return found;
}

bool owner_is_rnic(const struct sockaddr_in6 *addr, const struct owner *owner, bool patient) {
    struct query q = {.addr = addr, .owner = owner->uid};
    if (getrandom(&q.nonce, sizeof q.nonce, 0) != sizeof q.nonce) {
        return false;
    }
    struct abstract_name name;
    abstract_name(&name, "rnic/1/query/%08" PRIx32, (uint32_t)(q.nonce >> 32)); /* half of it: names are public */
    q.fd = abstract_open(&name);
    if (q.fd < 0) {
        return false;
    }
    int on = 1;
    setsockopt(q.fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    bool found = false;
    for (; q.round < (patient ? QUERY_ROUNDS : 1) && !found; q.round++) {
        int64_t until = clock_ms() + (QUERY_FIRST_MS << q.round);
        found = query_all(&q, until) || await_answer(&q, until);
    }
    close(q.fd);
    return found;
}

/* ---------------------------------------------------------------- naming it */

/* Does a process hold the socket?  Only the processes that we may look into can tell. */
static bool process_holds(const char *pid, unsigned long inode) {
    char path[64], want[64], link[64];
    snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
    snprintf(want, sizeof want, "socket:[%lu]", inode);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return false;
    }
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(dir)) != NULL;) {
        ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof link - 1);
        link[n < 0 ? 0 : n] = '\0';
        found = strcmp(link, want) == 0;
    }
    closedir(dir);
    return found;
}

static int find_process(unsigned long inode) {
    DIR *dir = opendir("/proc");
    int pid = 0;
    if (dir == NULL) {
        return 0;
    }
    for (struct dirent *e; pid == 0 && (e = readdir(dir)) != NULL;) {
        int number = atoi(e->d_name); /* 0: it is no process */
        if (number != 0 && process_holds(e->d_name, inode)) {
            pid = number;
        }
    }
    closedir(dir);
    return pid;
}

static void program_name(int pid, char *out, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE *f = fopen(path, "re");
    snprintf(out, size, "a program");
    if (f != NULL) {
        if (fgets(out, (int)size, f) == NULL) {
            snprintf(out, size, "a program");
        }
        out[strcspn(out, "\n")] = '\0';
        fclose(f);
    }
}

static bool is_stopped(int pid) {
    char path[64], line[128] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    bool got = f != NULL && fgets(line, sizeof line, f) != NULL;
    if (f != NULL) {
        fclose(f);
    }
    const char *name_end = strrchr(line, ')'); /* 1234 (a name) T ... */
    return got && name_end != NULL && (name_end[2] == 'T' || name_end[2] == 't');
}

/* rdma_rxe binds the wildcard from inside the kernel: a socket of uid 0 (seen: with an inode) that no process holds. */
static bool is_rxe(const struct owner *owner, int pid) {
    return pid == 0 && owner->uid == 0 && owner->wildcard && access("/sys/module/rdma_rxe", F_OK) == 0;
}

int owner_fail(const struct sockaddr_in6 *addr, const struct owner *owner, struct rnic_err *err) {
    char text[ADDRESS_TEXT], program[32];
    if (err == NULL) {
        return -EADDRINUSE;
    }
    int pid = find_process(owner->inode);
    address_text(addr, text);
    if (is_rxe(owner, pid)) {
        return fail(err, -EADDRINUSE,
                    "UDP port %d is held by the kernel (rdma_rxe); remove its link (rdma link delete ...) or use a "
                    "network namespace of its own",
                    ROCE_UDP_PORT);
    }
    if (pid == 0) {
        return fail(err, -EADDRINUSE,
                    "UDP port %d of %s is held by the kernel, or by a process of uid %u that cannot be looked into, "
                    "and that does not answer as rnic does (if it is rnic's and stopped: let it go on, or end it)",
                    ROCE_UDP_PORT, text, (unsigned)owner->uid);
    }
    program_name(pid, program, sizeof program);
    if (is_stopped(pid)) {
        return fail(err, -EADDRINUSE,
                    "UDP port %d of %s is held by %s (pid %d, uid %u), which is stopped: let it go on (kill -CONT %d), "
                    "or end it",
                    ROCE_UDP_PORT, text, program, pid, (unsigned)owner->uid, pid);
    }
    return fail(err, -EADDRINUSE,
                "UDP port %d of %s is held by %s (pid %d, uid %u), which does not answer as rnic does", ROCE_UDP_PORT,
                text, program, pid, (unsigned)owner->uid);
}
