/* SPDX-License-Identifier: Apache-2.0
 *
 * env.c: the variables of nic_env.h, and what their values mean.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/fail.h"

#define ROW(n, values, otherwise, text) {"RNIC_" #n, values, otherwise, text},
static const struct rnic_env_row rows[] = {RNIC_ENV_VARS(ROW)};
#undef ROW

const struct rnic_env_row *rnic_env_row(int i) {
    return i >= 0 && i < (int)(sizeof rows / sizeof *rows) ? &rows[i] : NULL;
}

const char *env_value(enum env_variable which) {
    const char *text = getenv(rows[which].name);
    return text && *text ? text : NULL;
}

int env_wrong(enum env_variable which, struct rnic_err *err, const char *fmt, ...) {
    char why[sizeof err->text - 32];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    for (char *at = why; *at; at++)
        *at = (char)(iscntrl((unsigned char)*at) ? '?' : *at);
    return fail(err, -EINVAL, "%s: %s", rows[which].name, why);
}

bool rnic_env_verbs_debug(void) {
    const char *text = env_value(ENV_VERBS_DEBUG);
    return text && strcmp(text, "0") != 0;
}

const char *rnic_env_device(void) { return env_value(ENV_DEVICE); }

/* A value as a message shows it: on one line, and not longer than leaves room for the rest. */
#define SHOWN 64
static const char *shown(const char *text, char out[SHOWN]) {
    size_t n = 0;
    for (; text[n] && n < SHOWN - 4; n++)
        out[n] = iscntrl((unsigned char)text[n]) ? '?' : text[n];
    strcpy(out + n, text[n] ? "..." : "");
    return out;
}

/* 1 for on, as where nothing is said. */
static int parse_on(enum env_variable which, const char *text, struct rnic_err *err) {
    char quoted[SHOWN];
    if (!text || !strcmp(text, "on"))
        return 1;
    if (!strcmp(text, "off"))
        return 0;
    return fail(err, -EINVAL, "%s is '%s', neither on nor off", rows[which].name, shown(text, quoted));
}

int rnic_env_local(struct rnic_err *err) { return parse_on(ENV_LOCAL, env_value(ENV_LOCAL), err); }
int rnic_env_mpa_crc(struct rnic_err *err) { return parse_on(ENV_MPA_CRC, env_value(ENV_MPA_CRC), err); }

/* A number, decimal or with 0x, and spaces around it: what is behind it, or NULL if it is none.  010 is neither. */
static const char *number(const char *text, unsigned long *value) {
    while (isspace((unsigned char)*text))
        text++;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    char *end;
    if (hex ? !isxdigit((unsigned char)text[2]) : !isdigit((unsigned char)text[0]))
        return NULL;
    if (text[0] == '0' && isdigit((unsigned char)text[1]))
        return NULL;
    *value = strtoul(text, &end, hex ? 16 : 10);
    while (isspace((unsigned char)*end))
        end++;
    return *end == ',' || !*end ? end : NULL;
}

static int parse_pkeys(const char *text, uint16_t *pkeys, int max, struct rnic_err *err) {
    const char *at = text;
    char quoted[SHOWN];
    unsigned long key;
    int n = 0;
    for (; at; at = *at ? at + 1 : NULL, n++) {
        at = number(at, &key);
        if (!at)
            return fail(err, -EINVAL, "%s is '%s', not numbers with commas between them", rows[ENV_PKEYS].name,
                        shown(text, quoted));
        if (key > UINT16_MAX)
            return fail(err, -EINVAL, "P_Key 0x%lx does not have 16 bits", key);
        if (n < max)
            pkeys[n] = (uint16_t)key;
    }
    return n > max ? fail(err, -EINVAL, "%d P_Keys do not fit the table", n) : n;
}

int rnic_env_pkeys(uint16_t *pkeys, int max, struct rnic_err *err) {
    return parse_pkeys(env_value(ENV_PKEYS), pkeys, max, err);
}

/* ---------------------------------------------------------------- values that are not the environment's yet */

#define MOST_PKEYS 256 /* how many of them a port takes is the device's to say */

/* Room for the meaning of any value; limits are those of a device that has room for all. */
union meaning {
    struct rnic_fault fault;
    struct rnic_env_event events[RNIC_ENV_EVENTS];
    struct rnic_fail fail[RNIC_ENV_FAIL];
    struct rnic_env_name names[RNIC_ENV_DEVICES];
    char devices[RNIC_ENV_DEVICES][32];
    struct rnic_rate rate;
    struct rnic_device_attr attr;
    uint16_t pkeys[MOST_PKEYS];
};

static int check_limits(const char *value, struct rnic_device_attr *attr, struct rnic_err *err) {
#define LARGEST(name) attr->name = INT_MAX;
    RNIC_LIMITS(LARGEST)
#undef LARGEST
    return env_parse_limits(value, attr, err);
}

int rnic_env_check(const char *name, const char *value, struct rnic_err *err) {
    union meaning m;
    int which = 0, rc = 0;
    while (rnic_env_row(which) && strcmp(rnic_env_row(which)->name, name))
        which++;
    switch (which) {
    case ENV_FAULT:
        rc = env_parse_fault(value, &m.fault, err);
        break;
    case ENV_EVENTS:
        rc = env_parse_events(value, m.events, err);
        break;
    case ENV_FAIL:
        rc = env_parse_fail(value, m.fail, err);
        break;
    case ENV_NAMES:
        rc = env_parse_names(value, m.names, err);
        break;
    case ENV_DEVICES:
        rc = env_parse_devices(value, m.devices, err);
        break;
    case ENV_TRANSPORT:
        rc = env_parse_transport(value, err);
        break;
    case ENV_RATE:
        rc = env_parse_rate(value, &m.rate, err);
        break;
    case ENV_LIMITS:
        rc = check_limits(value, &m.attr, err);
        break;
    case ENV_LOCAL:
    case ENV_MPA_CRC:
        rc = parse_on(which, value, err);
        break;
    case ENV_PKEYS:
        rc = parse_pkeys(value, m.pkeys, MOST_PKEYS, err);
        break;
    default: /* any text, or what its reader says */
        break;
    }
    return rc < 0 ? rc : 0;
}
