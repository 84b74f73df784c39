/* SPDX-License-Identifier: Apache-2.0
 *
 * RNIC_FAULT: the fields of rnic.Faults, as the Python API has them.
 */
#include <stddef.h>
#include <string.h>

#include "base/env.h"
#include "base/words.h"

static const struct field {
    const char *name;
    size_t at;           /* of a share, in struct rnic_fault; 0: none */
    const char *allowed; /* in words, of what is no share */
} fields[] = {
    {"loss", offsetof(struct rnic_fault, loss), NULL},
    {"duplicate", offsetof(struct rnic_fault, duplicate), NULL},
    {"reorder", offsetof(struct rnic_fault, reorder), NULL},
    {"delay", offsetof(struct rnic_fault, delay), NULL},
    {"flip", offsetof(struct rnic_fault, flip), NULL},
    {"mark", offsetof(struct rnic_fault, mark), NULL},
    {"reset", offsetof(struct rnic_fault, reset), NULL},
    {"stall", offsetof(struct rnic_fault, stall), NULL},
    {"flip_header", offsetof(struct rnic_fault, flip_header), NULL},
    {"chunk", 0, "a number of bytes from 1 on"},
    {"seed", 0, "a number"},
    {"reorder_gap", 0, "a number from 1 on"},
    {"delay_s", 0, "a time such as 0.01 or 10ms"},
    {"reset_after", 0, "a number of bytes"},
    {"stall_after", 0, "a number of bytes"},
};
#define FIELDS ((int)(sizeof fields / sizeof *fields))

static const char *field_name(int i) { return i < FIELDS ? fields[i].name : NULL; }

static int unknown(const char *name, struct rnic_err *err) {
    char known[NEAR];
    word_near(name, field_name, known);
    return env_wrong(ENV_FAULT, err, "there is no fault %s%s", name, known);
}

static bool set_number(struct rnic_fault *fault, const char *name, const char *value) {
    uint64_t number;
    if (!strcmp(name, "delay_s"))
        return word_time(value, &fault->delay_ns);
    if (!word_number(value, &number))
        return false;
    if (!strcmp(name, "seed"))
        return fault->seed = number, true;
    if (!strcmp(name, "reset_after"))
        return fault->reset_after = number, true;
    if (!strcmp(name, "stall_after"))
        return fault->stall_after = number, true;
    if (!number || number > UINT32_MAX)
        return false;
    *(!strcmp(name, "chunk") ? &fault->chunk : &fault->reorder_gap) = (uint32_t)number;
    return true;
}

static int set_field(struct rnic_fault *fault, const char *name, const char *value, struct rnic_err *err) {
    for (int i = 0; i < FIELDS; i++) {
        uint32_t ppm;
        if (strcmp(name, fields[i].name))
            continue;
        if (!fields[i].at)
            return set_number(fault, name, value)
                       ? 0
                       : env_wrong(ENV_FAULT, err, "%s is %s, not %s", name, fields[i].allowed, value);
        if (!word_share(value, &ppm))
            return env_wrong(ENV_FAULT, err, "%s is a probability between 0 and 1, not %s", name, value);
        memcpy((char *)fault + fields[i].at, &ppm, sizeof ppm);
        return 0;
    }
    return unknown(name, err);
}

int env_parse_fault(const char *text, struct rnic_fault *fault, struct rnic_err *err) {
    *fault = (struct rnic_fault){.seed = 1, .reorder_gap = 3, .delay_ns = 1000000};
    char word[WORD];
    int rc = 0;
    for (const char *at = text; at && !rc;) {
        if (!word_next(&at, ',', word))
            return env_wrong(ENV_FAULT, err, "a fault is a name and a value, as loss=0.01");
        char *value = word_cut(word, '=');
        rc = value ? set_field(fault, word, value, err)
                   : env_wrong(ENV_FAULT, err, "%s has no value, as loss=0.01", word);
    }
    return rc ? rc : text != NULL;
}

int rnic_env_fault(struct rnic_fault *fault, struct rnic_err *err) {
    return env_parse_fault(env_value(ENV_FAULT), fault, err);
}
