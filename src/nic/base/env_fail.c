/* SPDX-License-Identifier: Apache-2.0
 *
 * RNIC_FAIL: CALL=ERRNO (every call), CALL@N=ERRNO (the Nth alone), CALL:SHARE=ERRNO[,seed=N] (at random), with semicolons
 * between them.
 */
#include <errno.h>
#include <string.h>

#include "base/env.h"
#include "base/rng.h"
#include "base/words.h"

#define ROW(name) #name,
static const char *const calls[] = {RNIC_FAIL_VERBS(ROW) RNIC_FAIL_CM(ROW)};
#undef ROW

const char *rnic_fail_name(int call) { return call >= 0 && call < RNIC_FAIL_CALLS ? calls[call] : NULL; }

/* What verbs fail with (man errno, the man pages of libibverbs). */
#define ROW(name) {#name, name},
static const struct {
    const char *name;
    int number;
} errors[] = {ROW(EPERM) ROW(ENOENT) ROW(EINTR) ROW(EIO) ROW(ENXIO) ROW(EAGAIN) ROW(ENOMEM) ROW(EACCES) ROW(EFAULT)
                  ROW(EBUSY) ROW(EEXIST) ROW(ENODEV) ROW(EINVAL) ROW(ENFILE) ROW(EMFILE) ROW(ENOTTY) ROW(ENOSPC)
                      ROW(EROFS) ROW(ERANGE) ROW(ENOSYS) ROW(ENODATA) ROW(EPROTO) ROW(EOVERFLOW) ROW(EMSGSIZE)
                          ROW(EPROTONOSUPPORT) ROW(EOPNOTSUPP) ROW(EAFNOSUPPORT) ROW(EADDRINUSE) ROW(EADDRNOTAVAIL)
                              ROW(ENETDOWN) ROW(ENETUNREACH) ROW(ECONNABORTED) ROW(ECONNRESET) ROW(ENOBUFS) ROW(EISCONN)
                                  ROW(ENOTCONN) ROW(ETIMEDOUT) ROW(ECONNREFUSED) ROW(EHOSTUNREACH) ROW(EALREADY)
                                      ROW(EINPROGRESS) ROW(ECANCELED) ROW(EREMOTEIO)};
#undef ROW
#define ERRORS ((int)(sizeof errors / sizeof *errors))
#define MOST_ERRNO 4095

static const char *error_name(int i) { return i < ERRORS ? errors[i].name : NULL; }

static int parse_error(const char *text, int *error, struct rnic_err *err) {
    uint64_t number;
    char near[NEAR];
    if (word_number(text, &number) && number && number <= MOST_ERRNO) {
        *error = (int)number;
        return 0;
    }
    for (int i = 0; i < ERRORS; i++) {
        *error = errors[i].number;
        if (!strcmp(text, errors[i].name))
            return 0;
    }
    word_near(text, error_name, near);
    return env_wrong(ENV_FAIL, err, "there is no error %s%s", text, near);
}

static int parse_call(char *text, int *call, struct rnic_err *err) {
    char near[NEAR];
    size_t n = strlen(text);
    if (n > 3 && !strcmp(text + n - 3, "_ex"))
        text[n - 3] = '\0';
    if (!strncmp(text, "ibv_", 4))
        text += 4;
    for (*call = 0; *call < RNIC_FAIL_CALLS; ++*call) {
        if (!strcmp(text, calls[*call]))
            return 0;
    }
    word_near(text, rnic_fail_name, near);
    return env_wrong(ENV_FAIL, err, "there is no call %s%s", text, near);
}

/* Which of the calls: what stands behind their name. */
static int parse_which(char *nth, char *share, struct rnic_fail *rule, struct rnic_err *err) {
    uint64_t n = 0;
    if (nth && (!word_number(nth, &n) || !n || n > UINT32_MAX))
        return env_wrong(ENV_FAIL, err, "%s is not the number of a call: the first is 1", nth);
    rule->nth = (uint32_t)n;
    rule->ppm = 1000000;
    if (share && !strcmp(share, "1"))
        return env_wrong(ENV_FAIL, err, "a share of 1 is all calls: 1%% is one of a hundred, nothing is all");
    if (share && !word_share(share, &rule->ppm))
        return env_wrong(ENV_FAIL, err, "%s is no share of the calls: 1%% or 0.01, for example", share);
    return 0;
}

static int parse_rule(char *word, struct rnic_fail *rule, struct rnic_err *err) {
    char *error = word_cut(word, '='), *more = error ? word_cut(error, ',') : NULL;
    char *nth = word_cut(word, '@'), *share = word_cut(word, ':');
    *rule = (struct rnic_fail){.seed = 1};
    if (!error)
        return env_wrong(ENV_FAIL, err, "%s has no error, as create_cq@2=ENOMEM", word);
    if (more && (strncmp(more, "seed=", 5) || !word_number(more + 5, &rule->seed)))
        return env_wrong(ENV_FAIL, err, "behind the error can be seed=N, not %s", more);
    int rc = parse_call(word, &rule->call, err);
    if (!rc)
        rc = parse_which(nth, share, rule, err);
    return rc ? rc : parse_error(error, &rule->error, err);
}

int env_parse_fail(const char *text, struct rnic_fail rules[RNIC_ENV_FAIL], struct rnic_err *err) {
    char word[WORD];
    int n = 0, rc = 0;
    for (const char *at = text; at && !rc; n++) {
        if (!word_next(&at, ';', word))
            return env_wrong(ENV_FAIL, err, "a failure is a call and an error, as create_cq@2=ENOMEM");
        if (n == RNIC_ENV_FAIL)
            return env_wrong(ENV_FAIL, err, "there can be %d failures", n);
        rc = parse_rule(word, &rules[n], err);
    }
    return rc ? rc : n;
}

int rnic_env_fail(struct rnic_fail rules[RNIC_ENV_FAIL], struct rnic_err *err) {
    return env_parse_fail(env_value(ENV_FAIL), rules, err);
}

/* Each call is drawn by its number, so that threads do not change what another one meets. */
bool rnic_fail_hits(const struct rnic_fail *rule, uint64_t n) {
    struct rng rng;
    if (rule->nth)
        return rule->nth == n;
    rng_seed(&rng, rule->seed * 0x9E3779B97F4A7C15u + n);
    return rng_ppm(&rng, rule->ppm);
}
