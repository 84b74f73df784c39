/* SPDX-License-Identifier: Apache-2.0
 *
 * IP multicast for RoCE: a further UDP socket for each group, bound to its address and port 4791.  Every process that
 * has one gets its own copy of what comes.
 */
#ifndef RNIC_LINK_GROUP_H
#define RNIC_LINK_GROUP_H

#include <netinet/in.h>
#include <stdbool.h>

bool group_is_multicast(const struct in6_addr *addr); /* IPv4 mapped */

/* A socket that receives what is sent to the group on that network device. -errno. */
int group_open(const struct sockaddr_in6 *group, int ifindex);

/* Makes multicast that the socket sends leave by that device, come back to this host, and go as far as unicast does. */
int group_send_by(int fd, bool v4, int ifindex);

/* Does the kernel have a way for what is sent from that address to the group? 0 or -errno (-ENETUNREACH). */
int group_reach(const struct sockaddr_in6 *from, const struct sockaddr_in6 *group, int ifindex);

#endif
