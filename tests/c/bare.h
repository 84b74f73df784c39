/* SPDX-License-Identifier: Apache-2.0
 *
 * A device without threads and sockets, for tests of what comes in: it has a slot, room for queue pairs, one address
 * (127.0.0.1) and the default partition key.
 */
#ifndef RNIC_TESTS_BARE_H
#define RNIC_TESTS_BARE_H

#include "dev/dev.h"

struct dev *bare_open(void);
void bare_close(struct dev *dev);
struct sockaddr_in6 bare_address(const char *text, uint16_t port); /* IPv6, or "::ffff:127.0.0.1" */

#endif
