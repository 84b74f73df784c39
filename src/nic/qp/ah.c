/* SPDX-License-Identifier: Apache-2.0 */
#include "qp/ah.h"

#include <stdlib.h>

/* Its datagrams may have gone by another link meanwhile. */
static void drop_ah(struct nic *nic, struct ah *ah) {
    ah->way.link = nic->wire;
    way_release(&ah->way);
    free(ah);
}

void ah_reap(struct nic *nic) {
    for (struct ah **at = &nic->dying_ahs, *ah; (ah = *at);) {
        if (atomic_load(&ah->head.users)) {
            at = &ah->next;
            continue;
        }
        *at = ah->next;
        drop_ah(nic, ah);
    }
}

void ah_destroy(struct nic *nic, struct ah *ah) {
    ah_drop(&ah->head);
    ah->next = nic->dying_ahs;
    nic->dying_ahs = ah;
    ah_reap(nic);
}

void ah_free_all(struct nic *nic) {
    for (struct ah *ah = nic->dying_ahs, *next; ah; ah = next) {
        next = ah->next;
        free(ah);
    }
}
