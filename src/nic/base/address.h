/* SPDX-License-Identifier: Apache-2.0
 *
 * Socket addresses: inside rnic every address is a sockaddr_in6, IPv4 as ::ffff:a.b.c.d; the kernel's IPv4 sockets
 * want a sockaddr_in.
 */
#ifndef RNIC_LINK_ADDRESS_H
#define RNIC_LINK_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#define ADDRESS_TEXT (INET6_ADDRSTRLEN + 12) /* an address, '%', an interface's number */

union address_native {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static inline bool address_is_v4(const struct sockaddr_in6 *a) { return IN6_IS_ADDR_V4MAPPED(&a->sin6_addr); }

/* The IP addresses are equal; ports and scopes are not looked at. */
static inline bool address_same(const struct sockaddr_in6 *a, const struct sockaddr_in6 *b) {
    return memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
}

/* The same address as a socket of its own family takes it. Returns its length. */
socklen_t address_to_native(const struct sockaddr_in6 *in, union address_native *out);

/* And back: what recvmsg wrote as msg_name. */
void address_from_native(const union address_native *in, struct sockaddr_in6 *out);

/* "192.0.2.2", "fe80::1%4"; without the port. Returns out. */
const char *address_text(const struct sockaddr_in6 *a, char out[ADDRESS_TEXT]);

#endif
