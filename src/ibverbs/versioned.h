/* SPDX-License-Identifier: Apache-2.0
 *
 * Symbols that have several versions (libibverbs.map says which versions there are).
 */
#ifndef RNIC_IBVERBS_VERSIONED_H
#define RNIC_IBVERBS_VERSIONED_H

/* What drivers take: libibverbs of rdma-core 34 to 56 has version 34, later ones their own.  A loader refuses a library that asks for
 * a version that is not there, whatever it takes of it.  So those of the next releases are there ahead, with all that is known: drivers
 * find no device, and call nothing.  The newest that was seen is the default: a loader finds it that knows no versions, as
 * musl's. */
#define EACH_PRIVATE_VERSION(X, name)                                                                                  \
    X(name, "@", 34)                                                                                                   \
    X(name, "@", 57) X(name, "@", 58) X(name, "@", 59) X(name, "@", 60)                                                \
    X(name, "@", 61) X(name, "@", 62) X(name, "@", 63) X(name, "@", 64) X(name, "@@", 65)                              \
    X(name, "@", 66) X(name, "@", 67) X(name, "@", 68) X(name, "@", 69) X(name, "@", 70)                               \
    X(name, "@", 71) X(name, "@", 72) X(name, "@", 73) X(name, "@", 74) X(name, "@", 75)                               \
    X(name, "@", 76) X(name, "@", 77) X(name, "@", 78) X(name, "@", 79)

/* The linker has to find the alias in the object file itself: meson.build compiles this library without LTO.  A program that
 * has these files in it, as the C tests, has no versions. */
#ifdef __PIE__
#define SYMVER(alias_name, symbol)
#else
#define SYMVER(alias_name, symbol) __asm__(".symver " #alias_name ", " symbol);
#endif
#define IN_VERSION(of, alias_name, symbol)                                                                             \
    extern __typeof__(of) alias_name __attribute__((alias(#of), visibility("default")));                               \
    SYMVER(alias_name, symbol)

#define PRIVATE_VERSION(name, at, version)                                                                             \
    IN_VERSION(name, name##_##version, #name at "IBVERBS_PRIVATE_" #version)

/* A function, or a variable, of this file under each of these versions. */
#define PRIVATE_VERSIONS(name) EACH_PRIVATE_VERSION(PRIVATE_VERSION, name)

#endif
