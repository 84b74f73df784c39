/* SPDX-License-Identifier: Apache-2.0 */
#include "names/slot.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fail.h"
#include "names/abstract.h"

/* Room for forwarded datagrams of 64 KiB. A unix datagram is charged to its sender; the number of datagrams that may
 * wait at one receiver is net.unix.max_dgram_qlen (10) and cannot be raised here. */
#define SLOT_BUFFER (4 << 20)

static void raise_buffers(int fd) {
    int size = SLOT_BUFFER, on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on); /* port_slot_input() asks who forwards */
}

/* Both names or none: who watches the slot's owner shall not hear from somebody else. */
static int claim(struct slot *s, uint32_t number) {
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, number);
    *s = (struct slot){.fd = abstract_open(&name), .number = number, .life.fd = -1};
    if (s->fd < 0) {
        return s->fd;
    }
    int rc = lifeline_open(&s->life, &name);
    if (rc != 0) {
        slot_release(s);
    }
    return rc;
}

int slot_claim(struct slot *s, struct rnic_err *err) {
    uint32_t start = 0;
    if (getrandom(&start, sizeof start, GRND_NONBLOCK) != sizeof start) {
        start = (uint32_t)getpid(); /* early at boot: any spread will do, the number is no secret */
    }
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        int rc = claim(s, (start + i) % SLOT_COUNT);
        if (rc == 0) {
            raise_buffers(s->fd);
            return 0;
        }
        if (rc != -EADDRINUSE) {
            return fail(err, rc, "no unix socket for a slot: %s", strerror(-rc));
        }
    }
    return fail(err, -EUSERS,
                "all %u slots of this network namespace are taken by other rnic contexts (ss -xlp shows whose sockets "
                "@rnic/1/slot/... are): close some, or use a network namespace of your own",
                SLOT_COUNT);
}

void slot_release(struct slot *s) {
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
    lifeline_close(&s->life);
}

int slot_watch(uint32_t number) {
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, number);
    return lifeline_watch(&name);
}

bool slot_taken(uint32_t number) {
    struct abstract_name name;
    abstract_name(&name, SLOT_NAME, number);
    int fd = lifeline_watch(&name);
    if (fd >= 0) {
        close(fd);
    }
    return fd != -ECONNREFUSED;
}
