/* SPDX-License-Identifier: Apache-2.0
 *
 * What a FLUSH makes sure of (IBA annex A19): bytes that others see, and bytes that outlive a power failure.
 */
#ifndef RNIC_MEM_PERSIST_H
#define RNIC_MEM_PERSIST_H

#include "nic.h"

/* Can the range be made persistent?  Only memory that is a file's on a disk, mapped shared, can: msync writes it there.
 * 0, or -EOPNOTSUPP with what it is instead. */
int mem_can_persist(const void *addr, uint64_t length, struct rnic_err *err);

/* All bytes written before are seen by every other thread (GLOBAL), or have reached the disk (PERSISTENT; that waits for
 * the disk). type: enum rnic_placement_type. 0 or -errno */
int mem_flush(uint8_t *at, uint64_t length, uint32_t type);

#endif
