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

/* others.c. hand_on: to the process that has the name.  to_one: a message that does not say whose it is, to any context with
 * a queue pair 1, if this one has none.  to_listeners: to all that may have got a request; OURS: this one may, too, and
 * has not got it that way */
enum found { NOBODY, OURS, HANDED_ON };
enum found mads_hand_on(struct host *host, const struct abstract_name *to, const struct mad_message *m);
enum found mads_to_one(struct mads *mads, const struct mad_message *m);
enum found mads_to_listeners(struct mads *mads, const struct mad_message *m);

/* send.c: to whoever has sent m. */
void mads_answer(struct mads *mads, const struct mad_message *m, uint16_t pkey, const uint8_t mad[MAD_BYTES]);

#endif
