/* SPDX-License-Identifier: Apache-2.0 */
#include "raw/toeplitz.h"

#include "base/bytes.h"

/* Every bit of the input that is set adds the 32 bits of the key that begin at its place. */
uint32_t toeplitz(const uint8_t key[TOEPLITZ_KEY_BYTES], const uint8_t *bytes, uint32_t n) {
    uint32_t hash = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t window = (uint64_t)get_be32(key + i) << 8 | key[i + 4];
        for (int bit = 7; bit >= 0; bit--) {
            if (bytes[i] >> bit & 1)
                hash ^= (uint32_t)(window >> (bit + 1));
        }
    }
    return hash;
}
