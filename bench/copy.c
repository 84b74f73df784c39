/* SPDX-License-Identifier: Apache-2.0
 *
 * memcpy, what a WRITE or READ of this host's memory comes down to: from one buffer to another over and over, as the
 * streams of native.c do, in shared memory with small pages, as alloc_mr's is.
 *
 *   copy size=65536 [seconds=0.4]
 */
#include <sys/mman.h>

#include "loops.h"

static uint8_t *buffer(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (at == MAP_FAILED) {
        perror("copy: mmap");
        exit(1);
    }
    return at;
}

int main(int argc, char **argv) {
    (void)argc;
    size_t size = option_number(argv, "size", 65536);
    uint8_t *from = buffer(size), *to = buffer(size);
    uint64_t copies = 0, start = now_ns(), warm = start + option_ns(argv, "seconds", "0.4") / 8, now = start;
    uint64_t until = warm + option_ns(argv, "seconds", "0.4");
    while (now < until) {
        memcpy(to, from, size);
        __asm__ volatile("" : : "r"(to) : "memory");
        now = now_ns();
        if (now < warm)
            start = now;
        else
            copies++;
    }
    printf("{\"gbytes_per_s\": %.4f}\n", (double)copies * (double)size / (double)(now - start));
}
