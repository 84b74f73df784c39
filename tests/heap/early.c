/* SPDX-License-Identifier: Apache-2.0
 *
 * early.c: handlers of forks that are registered ahead of those of librnic_heap.so, as where another library is the first.
 */
#include <pthread.h>

void early_prepare(void);
void early_in_parent(void);
void early_in_child(void);

__attribute__((constructor)) static void prepare_for_forks(void) {
    pthread_atfork(early_prepare, early_in_parent, early_in_child);
}
