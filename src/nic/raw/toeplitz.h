/* SPDX-License-Identifier: Apache-2.0
 *
 * The hash of receive side scaling.
 */
#ifndef RNIC_RAW_TOEPLITZ_H
#define RNIC_RAW_TOEPLITZ_H

#include <stdint.h>

#define TOEPLITZ_KEY_BYTES 40

/* n is at most TOEPLITZ_KEY_BYTES - 4: addresses and ports of IPv6. */
uint32_t toeplitz(const uint8_t key[TOEPLITZ_KEY_BYTES], const uint8_t *bytes, uint32_t n);

#endif
