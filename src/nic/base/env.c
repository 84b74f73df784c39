/* SPDX-License-Identifier: Apache-2.0
 *
 * env.c: the variables of nic_env.h, and what their values mean.
 */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

#define ROW(n, values, otherwise, text) {"RNIC_" #n, values, otherwise, text},
static const struct rnic_env_row rows[] = {RNIC_ENV_VARS(ROW)};
#undef ROW

#define NUMBER(n, values, otherwise, text) n,
enum variable { RNIC_ENV_VARS(NUMBER) };
#undef NUMBER

const struct rnic_env_row *rnic_env_row(int i) {
    return i >= 0 && i < (int)(sizeof rows / sizeof *rows) ? &rows[i] : NULL;
}

/* NULL for a variable that is not set, or empty. */
static const char *value_of(enum variable which) {
    const char *text = getenv(rows[which].name);
    return text && *text ? text : NULL;
}

bool rnic_env_verbs_debug(void) {
    const char *text = value_of(VERBS_DEBUG);
    return text && strcmp(text, "0") != 0;
}

const char *rnic_env_device(void) { return value_of(DEVICE); }

/* A value as a message shows it: on one line, and not longer than leaves room for the rest. */
#define SHOWN 64
static const char *shown(const char *text, char out[SHOWN]) {
    size_t n = 0;
    for (; text[n] && n < SHOWN - 4; n++)
        out[n] = iscntrl((unsigned char)text[n]) ? '?' : text[n];
    strcpy(out + n, text[n] ? "..." : "");
    return out;
}

int rnic_env_local(struct rnic_err *err) {
    const char *text = value_of(LOCAL);
    char quoted[SHOWN];
    if (!text || !strcmp(text, "on"))
        return 1;
    if (!strcmp(text, "off"))
        return 0;
    return fail(err, -EINVAL, "%s is '%s', neither on nor off", rows[LOCAL].name, shown(text, quoted));
}

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

int rnic_env_pkeys(uint16_t *pkeys, int max, struct rnic_err *err) {
    const char *text = value_of(PKEYS), *at = text;
    char quoted[SHOWN];
    unsigned long key;
    int n = 0;
    for (; at; at = *at ? at + 1 : NULL, n++) {
        at = number(at, &key);
        if (!at)
            return fail(err, -EINVAL, "%s is '%s', not numbers with commas between them", rows[PKEYS].name,
                        shown(text, quoted));
        if (key > UINT16_MAX)
            return fail(err, -EINVAL, "P_Key 0x%lx does not have 16 bits", key);
        if (n < max)
            pkeys[n] = (uint16_t)key;
    }
    return n > max ? fail(err, -EINVAL, "%d P_Keys do not fit the table", n) : n;
}
