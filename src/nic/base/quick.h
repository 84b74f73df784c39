/* SPDX-License-Identifier: Apache-2.0
 *
 * Variables of a thread that a handler of a signal reads: to find them calls nothing, and takes one instruction.
 */
#ifndef RNIC_BASE_QUICK_H
#define RNIC_BASE_QUICK_H

#ifdef __GLIBC__ /* has room for them also when it loads a library later */
#define QUICK __attribute__((tls_model("initial-exec")))
#else
#define QUICK
#endif

#endif
