/* SPDX-License-Identifier: Apache-2.0
 *
 * Who holds UDP 4791 on an address that could not be bound: another rnic (of another user), the kernel, a program.
 */
#ifndef RNIC_LINK_OWNER_H
#define RNIC_LINK_OWNER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "nic.h"

struct owner {
    uid_t uid;           /* of the socket */
    unsigned long inode; /* of the socket, as /proc/net/udp gives it */
    bool wildcard;       /* bound to no address */
};

/* Reads /proc/net/udp and udp6: the socket that is in the way of addr:4791. 0, or -ENOENT. */
int owner_find(const struct sockaddr_in6 *addr, struct owner *out);

/* Asks every other slot whether it owns the address, and waits for the one that does and whose uid is the socket's: up to 1.6 s,
 * or 25 ms if it is not to be patient.  Blocks; the answer comes to a socket of its own. */
bool owner_is_rnic(const struct sockaddr_in6 *addr, const struct owner *owner, bool patient);

/* Formats who it is into *err. Returns -EADDRINUSE. */
int owner_fail(const struct sockaddr_in6 *addr, const struct owner *owner, struct rnic_err *err);

#endif
