/* SPDX-License-Identifier: Apache-2.0
 *
 * dlopen() of libibverbs.
 *
 * `rnic run` loads rnic's libibverbs.so.1 ahead of all other libraries.  So the dynamic loader finds it by that name, and
 * binds the functions of libibverbs there, whichever libibverbs a library is linked with.  But dlopen() by another name (the
 * one for compilers, a path, or one with a hash, as wheels of Python have) loads the file of this name, and dlsym() of this
 * file finds functions that know none of rnic's devices.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "preload.h"

#define STEM "libibverbs"

/* Whether a file name is "libibverbs.so", "libibverbs.so.1.14.44.0" or "libibverbs-1de1263b.so.1.14.48.0". */
static bool is_verbs(const char *name) {
    if (strncmp(name, STEM, sizeof STEM - 1))
        return false;
    name += sizeof STEM - 1;
    if (*name == '-')
        name += 1 + strspn(name + 1, "0123456789abcdef");
    return !strncmp(name, ".so", 3) && (!name[3] || name[3] == '.');
}

static const char *led(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path;
    return name && is_verbs(name) ? STEM ".so.1" : path;
}

/* The loader looks where the library that calls says (DT_RUNPATH), and takes the return address for that library's.  So this
 * has to be a jump, as it is when the compiler optimises. */
EXPORT void *dlopen(const char *path, int mode) { return NEXT(dlopen)(led(path), mode); }
