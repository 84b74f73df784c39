/* SPDX-License-Identifier: Apache-2.0
 *
 * The environment as nic_env.h reads it: what is not set or empty, what is set, what means nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "nic.h"

#define KEYS 4
#define VARIABLES 13

static struct rnic_err err;

static void says(const char *text) {
    check_note("it says: %s", err.text);
    CHECK(strstr(err.text, text) != NULL);
}

static void every_variable_is_told_of(void) {
    for (int i = 0; i < VARIABLES; i++) {
        const struct rnic_env_row *row = rnic_env_row(i);
        CHECK(row && !strncmp(row->name, "RNIC_", 5) && *row->values && *row->otherwise && *row->text);
    }
    CHECK(!rnic_env_row(VARIABLES) && !rnic_env_row(-1));
}

static void a_device_is_named_or_not(void) {
    unsetenv("RNIC_DEVICE");
    CHECK(!rnic_env_device());
    setenv("RNIC_DEVICE", "", 1);
    CHECK(!rnic_env_device());
    setenv("RNIC_DEVICE", "roce_eth0", 1);
    CHECK(!strcmp(rnic_env_device(), "roce_eth0"));
}

static void verbs_debug_is_any_value_but_0(void) {
    unsetenv("RNIC_VERBS_DEBUG");
    CHECK(!rnic_env_verbs_debug());
    setenv("RNIC_VERBS_DEBUG", "0", 1);
    CHECK(!rnic_env_verbs_debug());
    setenv("RNIC_VERBS_DEBUG", "1", 1);
    CHECK(rnic_env_verbs_debug());
}

static void local_is_on_or_off(void) {
    static const struct {
        const char *text;
        int is;
    } rows[] = {{"", 1}, {"on", 1}, {"off", 0}, {"yes", -EINVAL}, {"ON", -EINVAL}, {"off ", -EINVAL}};
    unsetenv("RNIC_LOCAL");
    CHECK_EQ(rnic_env_local(&err), 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("%s", rows[i].text);
        setenv("RNIC_LOCAL", rows[i].text, 1);
        CHECK_EQ(rnic_env_local(&err), rows[i].is);
        CHECK_EQ(rnic_env_local(NULL), rows[i].is);
    }
    setenv("RNIC_LOCAL", "yes", 1);
    rnic_env_local(&err);
    says("RNIC_LOCAL is 'yes', neither on nor off");
    setenv("RNIC_LOCAL", "off\nand on", 1);
    rnic_env_local(&err);
    says("RNIC_LOCAL is 'off?and on', neither on nor off");
    setenv("RNIC_LOCAL", "0123456789012345678901234567890123456789012345678901234567890123456789", 1);
    rnic_env_local(&err);
    says("RNIC_LOCAL is '012345678901234567890123456789012345678901234567890123456789...', neither on nor off");
}

static void pkeys_are_numbers(void) {
    static const struct {
        const char *text;
        int n;
        uint16_t keys[KEYS];
    } rows[] = {
        {"", 0, {0}},
        {"0xffff", 1, {0xFFFF}},
        {"0xffff, 32769", 2, {0xFFFF, 0x8001}},
        {" 0X8001 ,0,1\t,2", 4, {0x8001, 0, 1, 2}},
    };
    uint16_t keys[KEYS];
    unsetenv("RNIC_PKEYS");
    CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("%s", rows[i].text);
        setenv("RNIC_PKEYS", rows[i].text, 1);
        CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), rows[i].n);
        CHECK(!memcmp(keys, rows[i].keys, (size_t)rows[i].n * sizeof *keys));
    }
}

static void other_pkeys_are_refused(void) {
    static const char *const texts[] = {"all of them", ",", "1,", ",1", "1 2", "0x", "0xg", "010", "-1", "1;2", " "};
    uint16_t keys[KEYS];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_note("%s", texts[i]);
        setenv("RNIC_PKEYS", texts[i], 1);
        CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), -EINVAL);
        says("not numbers with commas between them");
    }
    setenv("RNIC_PKEYS", "1,0x10000", 1);
    CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), -EINVAL);
    says("P_Key 0x10000 does not have 16 bits");
    setenv("RNIC_PKEYS", "99999999999999999999999", 1);
    CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), -EINVAL);
    setenv("RNIC_PKEYS", "1,2,3,4,5", 1);
    CHECK_EQ(rnic_env_pkeys(keys, KEYS, &err), -EINVAL);
    says("5 P_Keys do not fit the table");
}

static void a_value_is_checked_before_anybody_has_it(void) {
    static const struct {
        const char *name, *value, *says; /* NULL: it is right */
    } rows[] = {
        {"RNIC_LOCAL", "on", NULL},
        {"RNIC_LOCAL", "maybe", "neither on nor off"},
        {"RNIC_MPA_CRC", "off", NULL},
        {"RNIC_MPA_CRC", "0", "RNIC_MPA_CRC is '0', neither on nor off"},
        {"RNIC_FAULT", "loss=1%, delay = .5,delay_s=2ms,seed=18446744073709551", "there is no fault delay"},
        {"RNIC_FAULT", "loss=1%,delay=.5,delay_s=2ms,reorder_gap=1,seed=1844674407370955161", NULL},
        {"RNIC_FAULT", "reorder_gap=0", "reorder_gap is a number from 1 on, not 0"},
        {"RNIC_FAIL", "ibv_reg_mr_ex:.5=EIO,seed=2; rdma_connect=110", NULL},
        {"RNIC_FAIL", "reg_mr=4096", "there is no error 4096"},
        {"RNIC_FAIL", "reg_mr=EIO;", "a failure is a call and an error"},
        {"RNIC_EVENTS", "port_down@.5ms, a:port_active@1", NULL},
        {"RNIC_EVENTS", "port_down@1h", "1h is no time"},
        {"RNIC_NAMES", "a=lo,b=lo", NULL},
        {"RNIC_NAMES", "a=lo:iwarp, b=lo:roce", NULL},
        {"RNIC_NAMES", "a=lo:ib", "behind an interface stands :roce or :iwarp, not :ib"},
        {"RNIC_NAMES", "a=:iwarp", "a name stands before its network interface"},
        {"RNIC_TRANSPORT", "iwarp", NULL},
        {"RNIC_TRANSPORT", "roce", NULL},
        {"RNIC_TRANSPORT", "ib", "RNIC_TRANSPORT: ib is neither roce nor iwarp"},
        {"RNIC_NAMES", "a name that is longer than any can be=lo", "cannot be the name"},
        {"RNIC_NAMES", "a=interface_of_17_", "a name stands before its network interface"},
        {"RNIC_DEVICES", "a, b", NULL},
        {"RNIC_DEVICES", "a,,b", "names of devices stand"},
        {"RNIC_RATE", "2.5g", NULL},
        {"RNIC_RATE", "1g", "the slowest is 2.5g"},
        {"RNIC_LIMITS", "max_qp=1,max_sge=2", NULL},
        {"RNIC_LIMITS", "max_qp=0", "max_qp is 0; allowed are 1 to"},
        {"RNIC_DEVICE", "anything", NULL},
        {"RNIC_OF_OTHERS", "anything", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_note("%s=%s", rows[i].name, rows[i].value);
        CHECK_EQ(rnic_env_check(rows[i].name, rows[i].value, &err), rows[i].says ? -EINVAL : 0);
        if (rows[i].says)
            says(rows[i].says);
    }
}

/* Many parts, long ones, none: whoever writes variables is not hostile, but may be a machine. */
static void values_that_nobody_expects_do_no_harm(void) {
    static const char *const parts[] = {"=", ",", ";", "@", ":", "a=lo,", "port_down,", "reg_mr=EIO;", "loss=1,", "x"};
    char text[4096];
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        for (size_t n = 0; n + strlen(parts[part]) < sizeof text - 1; n += strlen(parts[part]))
            strcpy(text + n, parts[part]);
        for (int i = 0; i < VARIABLES; i++)
            rnic_env_check(rnic_env_row(i)->name, text, &err);
    }
}

static void calls_fail_by_number_or_by_chance(void) {
    struct rnic_fail rules[RNIC_ENV_FAIL];
    setenv("RNIC_FAIL", "create_cq@2=ENOMEM;reg_mr:10%=EAGAIN,seed=3;create_qp_ex=5", 1);
    CHECK_EQ(rnic_env_fail(rules, &err), 3);
    CHECK(!strcmp(rnic_fail_name(rules[0].call), "create_cq") && rules[0].error == ENOMEM);
    CHECK(!rnic_fail_hits(&rules[0], 1) && rnic_fail_hits(&rules[0], 2) && !rnic_fail_hits(&rules[0], 3));
    int hits = 0;
    for (uint64_t n = 1; n <= 10000; n++)
        hits += rnic_fail_hits(&rules[1], n);
    CHECK(hits > 800 && hits < 1200);
    CHECK_EQ(rules[2].call, RNIC_FAIL_create_qp);
    CHECK(rules[2].error == 5 && rnic_fail_hits(&rules[2], 1) && rnic_fail_hits(&rules[2], 99));
    CHECK(!rnic_fail_name(RNIC_FAIL_CALLS) && !rnic_fail_name(-1));
}

static void limits_and_rates_change_what_there_is(void) {
    struct rnic_device_attr attr = {.max_qp = 9, .max_cqe = 9, .max_inline_data = 9};
    struct rnic_rate rate = {7, 7};
    unsetenv("RNIC_LIMITS");
    unsetenv("RNIC_RATE");
    CHECK(!rnic_env_limits(&attr, &err) && attr.max_qp == 9);
    CHECK(!rnic_env_rate(&rate, &err) && rate.speed == 7);
    setenv("RNIC_LIMITS", "max_qp=4,max_inline_data=9", 1);
    setenv("RNIC_RATE", "400g", 1);
    CHECK(!rnic_env_limits(&attr, &err) && attr.max_qp == 4 && attr.max_cqe == 9 && attr.max_inline_data == 9);
    CHECK(!rnic_env_rate(&rate, &err) && rate.speed == 128 && rate.width == 2);
    setenv("RNIC_LIMITS", "max_cqe=10", 1);
    CHECK_EQ(rnic_env_limits(&attr, &err), -EINVAL);
    says("max_cqe is 10; allowed are 1 to 9");
}

static void events_are_in_the_order_of_their_times(void) {
    struct rnic_env_event events[RNIC_ENV_EVENTS];
    setenv("RNIC_EVENTS", "port_active@2s,dev:port_down@1500ms,device_fatal", 1);
    CHECK_EQ(rnic_env_events(events, &err), 3);
    CHECK(events[0].event_type == RNIC_EVENT_DEVICE_FATAL && events[0].after_ns == 0 && !*events[0].device);
    CHECK(events[1].event_type == RNIC_EVENT_PORT_ERR && events[1].after_ns == 1500000000 &&
          !strcmp(events[1].device, "dev"));
    CHECK(events[2].event_type == RNIC_EVENT_PORT_ACTIVE && events[2].after_ns == 2000000000);
}

int main(void) {
    RUN(every_variable_is_told_of);
    RUN(a_device_is_named_or_not);
    RUN(verbs_debug_is_any_value_but_0);
    RUN(local_is_on_or_off);
    RUN(pkeys_are_numbers);
    RUN(other_pkeys_are_refused);
    RUN(a_value_is_checked_before_anybody_has_it);
    RUN(values_that_nobody_expects_do_no_harm);
    RUN(calls_fail_by_number_or_by_chance);
    RUN(limits_and_rates_change_what_there_is);
    RUN(events_are_in_the_order_of_their_times);
    return check_done();
}
