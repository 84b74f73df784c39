/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RNIC_BASE_MEMFILE_H
#define RNIC_BASE_MEMFILE_H

#include <stdbool.h>
#include <stdint.h>

/* May so many bytes of another process' file be mapped?  It is sealed against shrinking, and of ordinary pages: a hole
 * that its owner makes in these reads as zeros, while huge pages can be gone, and whoever reads there gets a SIGBUS. */
bool memfile_is_sound(int fd, uint64_t bytes);

/* ftruncate() to a length, false and errno if it fails; but beyond what files of the process may have (RLIMIT_FSIZE), the
 * system would end the process by a signal, and this is EFBIG. */
bool memfile_extend(int fd, uint64_t bytes);

#endif
