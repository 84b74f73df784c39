/* SPDX-License-Identifier: Apache-2.0 */
#include "link/slot.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/fail.h"
#include "link/abstract.h"

/* Room for forwarded datagrams of 64 KiB. A unix datagram is charged to its sender; the number of datagrams that may
 * wait at one receiver is net.unix.max_dgram_qlen (10) and cannot be raised here. */
#define SLOT_BUFFER (4 << 20)

static void raise_buffers(int fd) {
    int size = SLOT_BUFFER, on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on); /* port_slot_input() asks who forwards */
}

int slot_claim(struct slot *s, struct rnic_err *err) {
    uint32_t start = 0;
    if (getrandom(&start, sizeof start, GRND_NONBLOCK) != sizeof start) {
        start = (uint32_t)getpid(); /* early at boot: any spread will do, the number is no secret */
    }
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        uint32_t number = (start + i) % SLOT_COUNT;
        struct abstract_name name;
        abstract_name(&name, SLOT_NAME, number);
        int fd = abstract_open(&name);
        if (fd == -EADDRINUSE) {
            continue;
        }
        if (fd < 0) {
            return fail(err, fd, "no unix socket for a slot: %s", strerror(-fd));
        }
        raise_buffers(fd);
        *s = (struct slot){.fd = fd, .number = number};
        return 0;
    }
    return fail(err, -EUSERS, "all %u slots of this network namespace are taken by other rnic contexts", SLOT_COUNT);
}

void slot_release(struct slot *s) {
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
}
