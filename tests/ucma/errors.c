/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.c: looks for two libraries that are not there, calls a function that librnic_preload.so stands in front of, and says
 * what the error was.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    void *first = dlopen("no_such_library.so.2", RTLD_NOW), *second = dlopen("no_such_library.so.1", RTLD_NOW);
    int denied = access("/", R_OK);
    const char *text = dlerror();
    puts(text ? text : "no error");
    return first || second || denied || !text;
}
