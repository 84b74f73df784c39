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

static struct rnic_err err;

static void says(const char *text) {
    check_note("it says: %s", err.text);
    CHECK(strstr(err.text, text) != NULL);
}

static void every_variable_is_told_of(void) {
    for (int i = 0; i < 4; i++) {
        const struct rnic_env_row *row = rnic_env_row(i);
        CHECK(row && !strncmp(row->name, "RNIC_", 5) && *row->values && *row->otherwise && *row->text);
    }
    CHECK(!rnic_env_row(4) && !rnic_env_row(-1));
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

int main(void) {
    RUN(every_variable_is_told_of);
    RUN(a_device_is_named_or_not);
    RUN(verbs_debug_is_any_value_but_0);
    RUN(local_is_on_or_off);
    RUN(pkeys_are_numbers);
    RUN(other_pkeys_are_refused);
    return check_done();
}
