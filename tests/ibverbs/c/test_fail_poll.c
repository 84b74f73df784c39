/* SPDX-License-Identifier: Apache-2.0
 *
 * $RNIC_FAIL makes the start of an extended poll fail, as any other call: that one alone.
 */
#include "check.h"
#include "lib.h"

static void test_the_second_start_of_a_poll_fails(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_cq_init_attr_ex attr = {.cqe = 4};
    struct ibv_poll_cq_attr poll = {0};
    CHECK(list && list[0]);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    CHECK(cq);
    CHECK_EQ(ibv_start_poll(cq, &poll), ENOENT);
    CHECK_EQ(ibv_start_poll(cq, &poll), EIO);
    CHECK_EQ(ibv_start_poll(cq, &poll), ENOENT);
    CHECK_EQ(ibv_next_poll(cq), ENOENT);
    CHECK_EQ(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 0, NULL), 0);
    CHECK_EQ(ibv_close_device(context), 0);
}

int main(void) {
    setenv("RNIC_FAIL", "start_poll@2=EIO", 1);
    RUN(test_the_second_start_of_a_poll_fails);
    return check_done();
}
