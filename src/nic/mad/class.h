/* SPDX-License-Identifier: Apache-2.0
 *
 * A management class (IBA 13.4.4) whose messages say themselves whose they are.  A further one is a file with such a row,
 * and its place in the table of mads.c.
 */
#ifndef RNIC_MAD_CLASS_H
#define RNIC_MAD_CLASS_H

#include "mad/mads.h"
#include "wire/mad.h"

struct mad_class {
    uint8_t number;
    /* It makes so much work that a source may send only so many.  NULL: none does. */
    bool (*asks)(const uint8_t mad[MAD_BYTES]);
    /* True: it is another process' and was handed on, or nobody's and was answered. */
    bool (*elsewhere)(struct mads *mads, const struct mad_message *m);
};

extern const struct mad_class cm_class; /* cm.c */

/* send.c: to whoever has sent m. */
void mads_answer(struct mads *mads, const struct mad_message *m, uint16_t pkey, const uint8_t mad[MAD_BYTES]);

#endif
