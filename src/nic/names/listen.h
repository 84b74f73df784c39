/* SPDX-License-Identifier: Apache-2.0
 *
 * Who listens for a service of the communication manager: names of abstract unix sockets, as slots are, that live in
 * the network namespace and go with their process.  A request that comes to any process is handed to the name's owner,
 * over the socket, as a forwarded packet (port_hand_on, port_slot_input).
 *
 *     rnic/1/listen/<service id, 16 hex digits>/<address>       of one address
 *     rnic/1/listen/<service id>/any4%<ifindex>, any6%<ifindex>     of all of a network device
 *     rnic/1/listen/<service id>/any4%0, any6%0                     of all of the host, without a context (rdmacm/ibcm/door.py)
 *
 * And by names of the same kind contexts say what they are to others, whatever service or communication id is asked for;
 * each takes the lowest number that is free, so that few names have to be tried:
 *
 *     rnic/1/gsi/<ifindex>/<number>         one that has a queue pair 1
 *     rnic/1/listens/<ifindex>/<number>     one that has listeners
 */
#ifndef RNIC_LINK_LISTEN_H
#define RNIC_LINK_LISTEN_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "names/abstract.h"

void listen_name(struct abstract_name *out, uint64_t service_id, const struct sockaddr_in6 *addr);
void listen_any_name(struct abstract_name *out, uint64_t service_id, bool v4, int ifindex); /* 0: of all of them */

enum role { ROLE_GSI, ROLE_LISTENS, ROLES };
#define ROLE_NUMBERS 64u /* each of which somebody may look for in vain */
void listen_role_name(struct abstract_name *out, enum role role, int ifindex, uint32_t number);

/* Takes a name. The socket, or -errno: -EADDRINUSE. */
int listen_open(const struct abstract_name *name);
/* Does somebody have it, to listen or to hold it?  Both have its lifeline. */
bool listen_taken(const struct abstract_name *name);

#endif
