/* SPDX-License-Identifier: Apache-2.0
 *
 * Since when the host has its addresses: what processes that read the addresses at different times agree on.
 */
#ifndef RNIC_NET_AGES_H
#define RNIC_NET_AGES_H

#include <stdint.h>

#include "nic.h"

struct ages {
    struct age *list;
    int n;
};

/* Reads all of them; none where the kernel does not tell. */
void ages_read(struct ages *ages);
void ages_free(struct ages *ages);
/* When the interface was given the address: hundredths of a second since the host was started, 0 if that is not known. */
uint32_t ages_of(const struct ages *ages, int ifindex, const union rnic_gid *gid);

#endif
