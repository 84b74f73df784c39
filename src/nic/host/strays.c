/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets for processes and services that nobody has: looking for the owner takes a system call or two, and answering
 * one more.  Somebody who sends nothing else would have most of the processor, and what live queue pairs are sent would be
 * lost meanwhile.
 *
 * So there are so many looks in vain a second, and so many answers.  Beyond that, what a look in vain was for counts as
 * nobody's for a moment, without another one.  Whoever comes in this moment loses packets as any wire does, and only while
 * it is flooded.
 */
#include "base/allowance.h"
#include "host/host.h"

#define EACH_NS 500000ull     /* 2,000 a second in the long run */
#define AT_ONCE 256           /* of which so many may come together, as the clients of a server that has gone do */
#define MOMENT_NS 50000000ull /* a process is some milliseconds old before somebody knows its numbers */

static bool take(struct allowance *of, uint64_t now) {
    bool may = allowance_has(of, EACH_NS, AT_ONCE, now);
    if (may)
        allowance_pay(of, EACH_NS, 1, now);
    return may;
}

bool strays_may_answer(struct host *host, uint64_t now) { return take(&host->strays.answers, now); }

bool strays_no_slot(const struct host *host, uint32_t slot, uint64_t now) {
    return now < host->strays.no_slot_until[slot % SLOT_COUNT];
}

void strays_missed_slot(struct host *host, uint32_t slot, uint64_t now) {
    if (!take(&host->strays.looks, now))
        host->strays.no_slot_until[slot % SLOT_COUNT] = now + MOMENT_NS;
}

/* Many names are looked for at once, mostly in vain: never twice in a moment. */
bool strays_no_role(const struct host *host, enum role role, uint32_t number, uint64_t now) {
    return now < host->strays.no_role_until[role][number];
}

void strays_missed_role(struct host *host, enum role role, uint32_t number, uint64_t now) {
    host->strays.no_role_until[role][number] = now + MOMENT_NS;
}

bool strays_may_copy(const struct host *host, uint64_t now) {
    return allowance_has(&host->strays.copies, EACH_NS, AT_ONCE, now);
}

void strays_copied(struct host *host, uint32_t copies, uint64_t now) {
    allowance_pay(&host->strays.copies, EACH_NS, copies, now);
}

static uint32_t place_of(const struct stray_name *name) {
    uint64_t key = name->service_id ^ (uintptr_t)name->port ^ (uint64_t)name->scope << 20;
    return (uint32_t)(key * 0x9E3779B97F4A7C15ull >> 32) % STRAY_NAMES;
}

bool strays_no_name(const struct host *host, const struct stray_name *name, uint64_t now) {
    const struct stray_name *known = &host->strays.names[place_of(name)];
    return now < known->until && known->service_id == name->service_id && known->port == name->port &&
           known->scope == name->scope;
}

void strays_missed_name(struct host *host, const struct stray_name *name, uint64_t now) {
    if (take(&host->strays.looks, now))
        return;
    struct stray_name *known = &host->strays.names[place_of(name)];
    *known = *name;
    known->until = now + MOMENT_NS;
}
