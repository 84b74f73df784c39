/* SPDX-License-Identifier: Apache-2.0
 *
 * UDP sockets as RoCE needs them.
 */
#ifndef RNIC_LINK_UDPSOCK_H
#define RNIC_LINK_UDPSOCK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

/* An unbound socket of the address's family: non-blocking, close-on-exec, never fragments (DF), and so sends an IP
 * identification that the ICRC can be computed for.  Do not connect it: that changes the identification.  -errno. */
int udpsock_open(const struct sockaddr_in6 *addr);

/* Binds it to the address; port in host byte order, 0: any. 0 or -errno. */
int udpsock_bind(int fd, const struct sockaddr_in6 *addr, uint16_t port);

uint16_t udpsock_port(int fd); /* the one it is bound to, network byte order */

/* Has the kernel tell hops and flow label, or the traffic class, of what comes in, or no longer. */
void udpsock_show_hops(int fd, bool v4, bool show);
void udpsock_show_tclass(int fd, bool v4, bool show);
/* The traffic class of what goes out. */
bool udpsock_tclass(int fd, bool v4, uint8_t tclass);

bool udpsock_set(int fd, int level, int option, int value);

#endif
