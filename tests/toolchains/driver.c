/* SPDX-License-Identifier: Apache-2.0
 *
 * driver.c: 0, if the functions are there that drivers of rdma-core take from libibverbs.
 */
#include <dlfcn.h>
#include <stdio.h>

static const char *const names[] = {"ibv_cmd_create_qp", "ibv_query_gid_type", "__verbs_log",
                                    "verbs_register_driver_34", "verbs_register_driver_65"};

int main(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (!library || !dlsym(library, names[i])) {
            puts(dlerror());
            return 1;
        }
    }
    return 0;
}
