/* SPDX-License-Identifier: Apache-2.0
 *
 * What came true of $RNIC_FAULT and $RNIC_FAIL (rnic_env_met() of nic_env.h), for `rnic run` to say when its program has
 * ended.
 */
#ifndef RNIC_BASE_TALLY_H
#define RNIC_BASE_TALLY_H

struct rnic_counters;

/* A fault came true: counts it in the device's counters, too.  counter: one of the fault_* of enum rnic_counter. */
void tally_fault(struct rnic_counters *cnt, int counter);

#endif
