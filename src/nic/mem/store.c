/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/memfile.h"
#include "base/rng.h"
#include "nic_heap.h"

#define MAGIC 0x3165726F74736E72ull /* "rnstore1", little-endian */
#define VERSION 2
#define SEALS (F_SEAL_SHRINK | F_SEAL_SEAL)
#define SEALS_READING (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define SEALED_NAME "rnic-sealed"
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif
#define POPULATED (16u << 20) /* bytes of a piece that is mapped page by page at once: later each page is a fault */
#define SHORT (1u << 20)      /* bytes of a piece that shares a mapping with others, */
#define BLOCK_MIN (4u << 20)  /* whose size doubles from here */
#define BLOCK_MAX (64u << 20) /* to here */
#define LONGEST (1ull << 47) /* bytes of one piece: a process has no more addresses */

static uint64_t whole_pages(uint64_t n) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) & ~(page - 1);
}

/* ---------------------------------------------------------------- the owner's side */

static struct store_head *head_of(const struct store *s) { return (struct store_head *)(void *)s->table; }

static const char *hint(int why) {
    return why == ENOMEM  ? "; or the process has too many mappings (sysctl vm.max_map_count)"
           : why == EFBIG ? "; the process may not have files so long (ulimit -f)"
                          : "";
}

int store_open(struct store *s, const char *netdev, int transport, uint64_t guid, struct rnic_err *err) {
    _Static_assert(STORE_TABLE == STORE_RECORDS * sizeof(struct store_record), "a table of records");
    _Static_assert(sizeof(struct store_head) == sizeof(struct store_record), "the head is the first");
    *s = (struct store){.fd = memfd_create("rnic", MFD_CLOEXEC | MFD_ALLOW_SEALING), .end = STORE_TABLE, .next = 1};
    s->taken = calloc(STORE_RECORDS, 1);
    s->serial = (uint64_t)rng_secret() << 32 | 1;
    void *table = MAP_FAILED;
    if (s->fd >= 0 && s->taken && memfile_extend(s->fd, s->end) && fcntl(s->fd, F_ADD_SEALS, SEALS) == 0)
        table = mmap(NULL, STORE_TABLE, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (table == MAP_FAILED) {
        int rc =
            fail(err, errno ? -errno : -ENOMEM, "a memory file for the device: %s%s", strerror(errno), hint(errno));
        store_close(s);
        return rc;
    }
    s->table = table;
    *head_of(s) = (struct store_head){
        .magic = MAGIC, .version = VERSION, .used = 1, .guid = guid, .transport = (uint64_t)transport};
    strncpy(head_of(s)->netdev, netdev, sizeof head_of(s)->netdev - 1);
    return 0;
}

static void close_blocks(struct store_block *b) {
    for (struct store_block *next; b; b = next) {
        next = b->next;
        munmap(b->at, b->bytes);
        free(b);
    }
}

void store_close(struct store *s) {
    if (s->table)
        munmap(s->table, STORE_TABLE);
    if (s->fd >= 0)
        close(s->fd);
    close_blocks(s->blocks);
    close_blocks(s->alone);
    free(s->taken);
    *s = (struct store){.fd = -1};
}

/* Who has the descriptor may have made the file longer; shorter it cannot become. */
static bool grow(const struct store *s, uint64_t size) {
    struct stat st;
    return memfile_extend(s->fd, size) || (errno == EPERM && !fstat(s->fd, &st) && (uint64_t)st.st_size >= size);
}

/* More of the file, mapped for itself; NULL: errno says why not. */
static uint8_t *extend(struct store *s, uint64_t bytes, uint64_t *offset) {
    void *at = MAP_FAILED;
    if (grow(s, s->end + bytes))
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, (off_t)s->end);
    if (at == MAP_FAILED)
        return NULL;
    *offset = s->end;
    s->end += bytes;
    return at;
}

/* Those in which nothing lives go, but the newest, which has room. */
static void sweep_blocks(struct store *s) {
    for (struct store_block **at = &s->blocks->next, *b; (b = *at);) {
        if (b->live) {
            at = &b->next;
            continue;
        }
        *at = b->next;
        store_discard(s, &(struct store_range){b->offset, b->bytes, b->at, true});
        free(b);
    }
}

static struct store_block *add_block(struct store *s, struct store_block **list, uint64_t bytes) {
    struct store_block *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->bytes = bytes;
    b->at = extend(s, bytes, &b->offset);
    if (!b->at) {
        free(b);
        return NULL;
    }
    b->next = *list;
    return *list = b;
}

static struct store_block *new_block(struct store *s) {
    uint64_t bytes = s->blocks ? 2 * s->blocks->bytes : BLOCK_MIN;
    struct store_block *b = add_block(s, &s->blocks, bytes < BLOCK_MAX ? bytes : BLOCK_MAX);
    if (b)
        sweep_blocks(s);
    return b;
}

/* A part of the newest block, or one for itself; NULL: there is no memory, or no room in this process. */
static uint8_t *take(struct store *s, uint64_t bytes, uint64_t *offset) {
    struct store_block *b = bytes > SHORT ? add_block(s, &s->alone, bytes) : s->blocks;
    if (bytes <= SHORT && (!b || b->bytes - b->used < bytes))
        b = new_block(s);
    if (!b)
        return NULL;
    uint8_t *at = b->at + b->used;
    *offset = b->offset + b->used;
    b->used += bytes;
    b->live++;
    return at;
}

int store_alloc(struct store *s, uint64_t length, uint64_t *offset, uint8_t **addr, struct rnic_err *err) {
    if (length > LONGEST)
        return fail(err, -ENOMEM, "%llu bytes: a process has no room for them", (unsigned long long)length);
    *addr = take(s, whole_pages(length), offset);
    if (*addr)
        return 0;
    return fail(err, -errno, "a memory file of %llu bytes: %s%s", (unsigned long long)length, strerror(errno),
                hint(errno));
}

/* What leads to the block of an address, or to the end of the list. */
static struct store_block **block_of(struct store_block **at, const uint8_t *addr) {
    while (*at && !(addr >= (*at)->at && addr < (*at)->at + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

bool store_find(struct store *s, const uint8_t *addr, uint64_t length, uint64_t *offset) {
    const struct store_block *b = *block_of(&s->blocks, addr);
    if (!b)
        b = *block_of(&s->alone, addr);
    if (!b || length > b->bytes - (uint64_t)(addr - b->at))
        return false;
    *offset = b->offset + (uint64_t)(addr - b->at);
    return true;
}

struct store_range store_free(struct store *s, uint64_t offset, uint64_t length, uint8_t *addr) {
    bool is_alone = whole_pages(length) > SHORT;
    struct store_block **at = block_of(is_alone ? &s->alone : &s->blocks, addr), *b = *at;
    if (--b->live || b == s->blocks)
        return (struct store_range){offset, whole_pages(length), addr, false};
    struct store_range all = {b->offset, b->bytes, b->at, true};
    *at = b->next;
    free(b);
    return all;
}

void store_discard(const struct store *s, const struct store_range *r) {
    if (r->unmaps)
        munmap(r->at, r->bytes);
    fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r->offset, (off_t)r->bytes);
}

/* ---------------------------------------------------------------- files of their own */

/* The seal leaves the mapping that is there as it is, and allows no other that can be written; nor write(2). */
static uint8_t *map_and_seal(int fd, uint64_t bytes) {
    void *at = MAP_FAILED;
    if (memfile_extend(fd, bytes))
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED || fcntl(fd, F_ADD_SEALS, SEALS_READING) == 0)
        return at == MAP_FAILED ? NULL : at;
    munmap(at, bytes);
    return NULL;
}

int store_alloc_sealed(struct store *s, uint64_t length, int *fd, uint64_t *inode, uint8_t **addr) {
    struct stat st;
    if (s->nsealed == STORE_SEALED_MAX || length > LONGEST)
        return -ENOSPC;
    *fd = memfd_create(SEALED_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    *addr = *fd < 0 || fstat(*fd, &st) ? NULL : map_and_seal(*fd, whole_pages(length));
    if (*addr) {
        *inode = st.st_ino;
        s->sealed[s->nsealed++] = *fd;
        return 0;
    }
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return -ENOSPC;
}

void store_free_sealed(struct store *s, int fd, uint64_t length, uint8_t *addr) {
    int i = 0;
    while (s->sealed[i] != fd)
        i++;
    s->sealed[i] = s->sealed[--s->nsealed];
    munmap(addr, whole_pages(length));
    close(fd);
}

void store_abandon(struct store *s) {
    for (int i = 0; i < s->nsealed; i++)
        close(s->sealed[i]);
    close(s->fd);
}

/* ---------------------------------------------------------------- the table */

void store_hide(struct store *s, int record) {
    if (record >= 0)
        __atomic_store_n(&s->table[record].serial, 0, __ATOMIC_SEQ_CST);
}

void store_show(struct store *s, int record) {
    if (record < 0)
        return;
    __atomic_store_n(&s->table[record].serial, ++s->serial, __ATOMIC_RELEASE);
    __atomic_store_n(&head_of(s)->changes, s->serial, __ATOMIC_RELEASE);
}

int store_publish(struct store *s, const struct store_record *what) {
    while (s->next < STORE_RECORDS && s->taken[s->next])
        s->next++;
    if (s->next == STORE_RECORDS)
        return -1;
    uint32_t at = s->next++;
    s->taken[at] = 1;
    struct store_record *record = &s->table[at];
    /* Whoever had it is seen to be withdrawn before anything of this is seen. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    *record = *what;
    record->serial = 0;
    if (head_of(s)->used <= at)
        __atomic_store_n(&head_of(s)->used, at + 1, __ATOMIC_RELEASE);
    store_show(s, (int)at);
    return (int)at;
}

void store_withdraw(struct store *s, int record) {
    if (record < 0)
        return;
    store_hide(s, record);
    s->taken[record] = 0;
    if ((uint32_t)record < s->next)
        s->next = (uint32_t)record;
}

/* ---------------------------------------------------------------- the importer's side */

/* Reads once; what is checked is what is used. */
static void copy_head(struct store_head *out, const struct store_record *table) {
    memcpy(out, table, sizeof *out);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    out->used = out->used < STORE_RECORDS ? out->used : STORE_RECORDS;
    out->netdev[sizeof out->netdev - 1] = 0;
}

int peer_open(struct peer *p, int fd, struct rnic_err *err) {
    *p = (struct peer){.fd = -1};
    if (fcntl(fd, F_GETFD) < 0)
        return fail(err, -EBADF, "descriptor %d is not open", fd);
    if (!memfile_is_sound(fd, STORE_TABLE))
        return fail(err, -EINVAL, "descriptor %d is not the cmd_fd of a context, nor a copy of one", fd);
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (p->fd < 0)
        return fail(err, -errno, "descriptor %d: %s", fd, strerror(errno));
    void *table = mmap(NULL, STORE_TABLE, PROT_READ, MAP_SHARED, p->fd, 0);
    if (table != MAP_FAILED) {
        p->table = table;
        copy_head(&p->head, p->table);
    }
    if (table != MAP_FAILED && p->head.magic == MAGIC && p->head.version == VERSION)
        return 0;
    peer_close(p);
    return fail(err, -EINVAL, "descriptor %d is not the cmd_fd of a context of this version of rnic", fd);
}

void peer_close(struct peer *p) {
    if (p->table)
        munmap((void *)(uintptr_t)p->table, STORE_TABLE);
    if (p->fd >= 0)
        close(p->fd);
    *p = (struct peer){.fd = -1};
}

/* The bytes that it names lie in the file, behind the table. */
static bool is_sound(const struct peer *p, const struct store_record *r) {
    struct stat st;
    if (r->kind == STORE_PD || r->kind == STORE_QP)
        return true;
    if (r->length == 0 || r->length > LONGEST)
        return false;
    if (r->kind == STORE_ORDINARY)
        return r->offset <= LONGEST && r->heap <= INT32_MAX && r->heap_offset <= LONGEST;
    if (r->kind == STORE_SEALED)
        return r->offset <= INT32_MAX;
    if (fstat(p->fd, &st))
        return false;
    uint64_t size = (uint64_t)st.st_size;
    return r->offset >= STORE_TABLE && r->offset <= size && r->length <= size - r->offset;
}

static bool copy_record(const struct store_record *from, struct store_record *out) {
    uint64_t serial = __atomic_load_n(&from->serial, __ATOMIC_ACQUIRE);
    memcpy(out, from, sizeof *out);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    out->serial = serial;
    return serial && __atomic_load_n(&from->serial, __ATOMIC_ACQUIRE) == serial;
}

/* value: what of the record is asked for. */
static int find(const struct peer *p, int kind, size_t value, uint32_t is_equal_to, struct store_record *out,
                const uint64_t **is) {
    struct store_head head;
    copy_head(&head, p->table);
    for (uint32_t i = 1; i < head.used; i++) {
        const struct store_record *record = &p->table[i];
        if (!copy_record(record, out) || out->kind != (uint32_t)kind ||
            *(const uint32_t *)(const void *)((const char *)out + value) != is_equal_to)
            continue;
        *is = &record->serial;
        return is_sound(p, out) ? 0 : -EINVAL;
    }
    return -ENOENT;
}

int peer_find(const struct peer *p, int kind, uint32_t handle, struct store_record *out, const uint64_t **is,
              struct rnic_err *err) {
    int rc = find(p, kind, offsetof(struct store_record, handle), handle, out, is);
    return rc == -EINVAL ? fail(err, rc, "handle %u: what the other process says of it cannot be", handle) : rc;
}

int peer_find_key(const struct peer *p, uint32_t key, struct store_record *out, const uint64_t **is) {
    int rc = find(p, STORE_MR, offsetof(struct store_record, key), key, out, is);
    for (int kind = STORE_ORDINARY; rc == -ENOENT && kind <= STORE_SEALED; kind++)
        rc = find(p, kind, offsetof(struct store_record, key), key, out, is);
    return rc;
}

uint64_t peer_changes(const struct peer *p) {
    return __atomic_load_n(&((const struct store_head *)(const void *)p->table)->changes, __ATOMIC_ACQUIRE);
}

/* Where its bytes lie in the file that is mapped. */
static uint64_t place_of(const struct store_record *record) {
    return record->kind == STORE_SEALED ? 0 : record->kind == STORE_ORDINARY ? record->heap_offset : record->offset;
}

/* Bytes of its first page that lie before it. */
static uint64_t before(const struct store_record *record) { return place_of(record) % (uint64_t)sysconf(_SC_PAGESIZE); }

/* The very file of the record: memory files of all processes of a system are of one device, which this one's own is of. */
static bool is_file_of(const struct peer *p, const struct store_record *record, int fd) {
    struct stat is, table;
    return fstat(fd, &is) == 0 && fstat(p->fd, &table) == 0 && S_ISREG(is.st_mode) && is.st_dev == table.st_dev &&
           is.st_ino == record->inode;
}

/* What the process has open by that number; -1: that is not the record's memory, of this name.  It is looked at before it is
 * opened: opening a device may do something. */
static int open_of(const struct peer *p, const struct store_record *record, int fd, const char *memfd, int flags) {
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)p->pid, fd);
    int found = open(path, O_PATH | O_CLOEXEC), opened = -1;
    if (found < 0)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", found);
    ssize_t n = readlink(path, name, sizeof name);
    bool named = n >= (ssize_t)strlen(memfd) && !memcmp(name, memfd, strlen(memfd));
    if (named && is_file_of(p, record, found))
        opened = open(path, flags | O_CLOEXEC);
    close(found);
    return opened;
}

/* The file of the record: the peer's own, or one that is opened, which is to be closed.  -1: there is none */
static int open_for(const struct peer *p, const struct store_record *record, bool writable) {
    if (record->kind == STORE_SEALED) /* of process 0 there is none */
        return writable ? -1 : open_of(p, record, (int)record->offset, "/memfd:" SEALED_NAME, O_RDONLY);
    if (record->kind == STORE_MR || record->kind == STORE_DM)
        return p->fd;
    int flags = writable ? O_RDWR : O_RDONLY;
    return record->heap ? open_of(p, record, (int)record->heap - 1, "/memfd:" RNIC_HEAP_NAME, flags) : -1;
}

int peer_map(const struct peer *p, const struct store_record *record, bool writable, uint8_t **addr,
             struct rnic_err *err) {
    uint64_t skip = before(record), place = place_of(record) - skip, length = skip + record->length;
    int fd = open_for(p, record, writable), populates = record->length <= POPULATED ? MAP_POPULATE : 0;
    void *at = MAP_FAILED;
    errno = EACCES;
    if (fd >= 0 && (fd == p->fd || memfile_is_sound(fd, place + length)))
        at = mmap(NULL, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED | populates, fd, (off_t)place);
    int rc =
        at == MAP_FAILED ? fail(err, -errno, "the other process' memory cannot be mapped: %s", strerror(errno)) : 0;
    if (fd >= 0 && fd != p->fd)
        close(fd);
    if (!rc)
        *addr = (uint8_t *)at + skip;
    return rc;
}

void peer_unmap(const struct store_record *record, uint8_t *addr) {
    munmap(addr - before(record), before(record) + record->length);
}
