/* SPDX-License-Identifier: Apache-2.0
 *
 * Which providers there are, what each has to have, and what is asked for by name.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "live.h"
#include "nic.h"

static void test_every_provider_of_the_house_has_what_callers_take_for_granted(void) {
    struct rnic_err err;
    CHECK(rnic_provider(0) == &rnic_soft);
    for (int i = 0; rnic_provider(i); i++)
        if (rnic_provider_check(rnic_provider(i), &err))
            check_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK(!rnic_provider(-1));
}

static void test_an_extension_is_found_by_its_whole_name(void) {
    struct rnic_context *ctx;
    uint32_t slot = UINT32_MAX;
    CHECK_EQ(rnic_soft.open("roce_lo", NULL, &ctx, NULL), 0);
    CHECK(ctx->provider == &rnic_soft && ctx->ops == rnic_soft.ops);
    for (const struct rnic_extension *one = rnic_soft.extensions; one->name; one++)
        CHECK(one->table && rnic_extension(ctx, one->name) == one->table);
    const struct rnic_ext_cm *cm = rnic_extension(ctx, RNIC_EXT_CM);
    CHECK_EQ(cm->slot(ctx, &slot, NULL), 0);
    CHECK(slot < 1024);
    CHECK(!rnic_extension(ctx, "rnic.cm/2"));
    CHECK(!rnic_extension(ctx, "rnic.cm"));
    CHECK_EQ(ctx->ops->close(ctx, NULL), 0);
}

static void test_a_device_is_opened_by_the_name_in_the_list(void) {
    struct rnic_context *ctx;
    struct rnic_err err = {0};
    CHECK_EQ(rnic_soft.open("lo", NULL, &ctx, &err), -ENODEV);
    CHECK(strstr(err.text, "no software RNIC has the name lo"));
    CHECK_EQ(rnic_soft.open("roce_nosuch", NULL, &ctx, &err), -ENODEV);
}

static int list_none(struct rnic_device_info *list, int max, struct rnic_err *err) {
    (void)list, (void)max, (void)err;
    return 0;
}

static struct rnic_provider others[17];
static char names[17][16];

static void test_providers_of_a_program_come_behind_until_there_is_no_room(void) {
    struct rnic_err err;
    int first = 0;
    while (rnic_provider(first))
        first++;
    for (int i = 0; i < 17; i++) {
        snprintf(names[i], sizeof names[i], "own%d", i);
        others[i] = (struct rnic_provider){names[i], list_none, rnic_soft.open, NULL, rnic_soft.ops, NULL};
        CHECK_EQ(rnic_provider_add(&others[i], &err), i < 16 ? 0 : -ENOSPC);
    }
    CHECK(strstr(err.text, "no room"));
    CHECK(rnic_provider(first) == &others[0] && rnic_provider(first + 15) == &others[15]);
    CHECK(!rnic_provider(first + 16));
    CHECK_EQ(rnic_provider_add(&others[3], &err), -EEXIST);
    CHECK(strstr(err.text, "there is a provider own3 already"));
}

/* The verb is missing: 0, or what is said of it. */
static int without(size_t verb, struct rnic_err *err) {
    struct rnic_ops ops = *rnic_soft.ops;
    struct rnic_provider provider = {"some", list_none, rnic_soft.open, NULL, &ops, NULL};
    memset((char *)&ops + verb, 0, sizeof ops.close);
    return rnic_provider_check(&provider, err);
}
#define WITHOUT(verb) without(offsetof(struct rnic_ops, verb), &err)

static void test_a_provider_may_lack_a_verb_but_not_half_of_a_pair(void) {
    struct rnic_err err;
    CHECK_EQ(WITHOUT(query_device_ex), 0);
    CHECK_EQ(WITHOUT(rereg_mr), 0);
    CHECK_EQ(WITHOUT(poll_cq), -EINVAL);
    CHECK(strstr(err.text, "provider some lacks poll_cq, which every provider has"));
    CHECK_EQ(WITHOUT(destroy_srq), -EINVAL);
    CHECK(strstr(err.text, "provider some has create_srq, but lacks destroy_srq"));
    struct rnic_provider nameless = rnic_soft;
    nameless.name = NULL;
    CHECK_EQ(rnic_provider_check(&nameless, &err), -EINVAL);
}

int main(void) {
    live_isolate();
    RUN(test_every_provider_of_the_house_has_what_callers_take_for_granted);
    RUN(test_an_extension_is_found_by_its_whole_name);
    RUN(test_a_device_is_opened_by_the_name_in_the_list);
    RUN(test_a_provider_may_lack_a_verb_but_not_half_of_a_pair);
    RUN(test_providers_of_a_program_come_behind_until_there_is_no_room);
    return check_done();
}
