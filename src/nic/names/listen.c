/* SPDX-License-Identifier: Apache-2.0 */
#include "names/listen.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/address.h"
#include "names/lifeline.h"

#define NAME "rnic/1/listen/%016" PRIx64 "/"

void listen_name(struct abstract_name *out, uint64_t service_id, const struct sockaddr_in6 *addr) {
    char text[ADDRESS_TEXT];
    abstract_name(out, NAME "%s", service_id, address_text(addr, text));
}

void listen_any_name(struct abstract_name *out, uint64_t service_id, bool v4, int ifindex) {
    abstract_name(out, NAME "any%c%%%d", service_id, v4 ? '4' : '6', ifindex);
}

void listen_role_name(struct abstract_name *out, enum role role, int ifindex, uint32_t number) {
    static const char *const names[] = {[ROLE_GSI] = "gsi", [ROLE_LISTENS] = "listens"};
    abstract_name(out, "rnic/1/%s/%d/%" PRIu32, names[role], ifindex, number);
}

int listen_open(const struct abstract_name *name) {
    int on = 1, fd = abstract_open(name);
    if (fd >= 0 &&
        setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) { /* port_slot_input() asks who it is */
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

bool listen_taken(const struct abstract_name *name) {
    int fd = lifeline_watch(name);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0 || fd == -EAGAIN; /* so many look at it that its queue is full */
}
