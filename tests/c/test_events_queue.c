/* SPDX-License-Identifier: Apache-2.0
 *
 * The queue of asynchronous events of a device for which no descriptor is left: there is nothing to free afterwards.
 */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "queue/events.h"

static void test_without_a_descriptor_there_is_no_queue(void) {
    static struct event_queue q;
    struct rlimit before, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ(event_queue_init(&q), -EMFILE);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK(!q.ring); /* as device.c sees whether there is one */
}

int main(void) {
    RUN(test_without_a_descriptor_there_is_no_queue);
    return check_done();
}
