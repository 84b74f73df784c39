/* SPDX-License-Identifier: Apache-2.0
 *
 * What a program finds: RNIC_NAMES, RNIC_DEVICES, RNIC_TRANSPORT, RNIC_RATE, RNIC_LIMITS.
 */
#include <stddef.h>
#include <string.h>

#include "base/env.h"
#include "base/words.h"

/* ---------------------------------------------------------------- transports */

/* -1: it is none. */
static int transport_of(const char *word) {
    static const struct {
        const char *name;
        int transport;
    } rows[] = {{"roce", RNIC_TRANSPORT_IB}, {"iwarp", RNIC_TRANSPORT_IWARP}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!strcmp(word, rows[i].name))
            return rows[i].transport;
    }
    return RNIC_TRANSPORT_UNKNOWN;
}

int env_parse_transport(const char *text, struct rnic_err *err) {
    int transport = transport_of(text ? text : "roce");
    return transport == RNIC_TRANSPORT_UNKNOWN ? env_wrong(ENV_TRANSPORT, err, "%.40s is neither roce nor iwarp", text)
                                               : transport;
}

int rnic_env_transport(struct rnic_err *err) { return env_parse_transport(env_value(ENV_TRANSPORT), err); }

/* ---------------------------------------------------------------- names */

/* Names are those of files in sysfs, too. */
static bool may_be_name(const char *text) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    return text[0] && text[0] != '.' && strspn(text, allowed) == strlen(text);
}

/* eth0, or eth0:iwarp; a ':' is in no interface's name. */
static int parse_place(char *place, struct rnic_env_name *name, struct rnic_err *err) {
    char *transport = place ? word_cut(place, ':') : NULL;
    if (!place || !*place || !word_copy(name->netdev, sizeof name->netdev, place))
        return env_wrong(ENV_NAMES, err, "a name stands before its network interface, as mlx5_0=eth0");
    name->transport = transport_of(transport ? transport : "roce");
    return name->transport == RNIC_TRANSPORT_UNKNOWN
               ? env_wrong(ENV_NAMES, err, "behind an interface stands :roce or :iwarp, not :%s", transport)
               : 0;
}

static int parse_name(char *word, struct rnic_env_name *name, struct rnic_err *err) {
    int rc = parse_place(word_cut(word, '='), name, err);
    if (!rc && (!may_be_name(word) || !word_copy(name->device, sizeof name->device, word)))
        rc = env_wrong(ENV_NAMES, err, "%s cannot be the name of a device", word);
    return rc;
}

int env_parse_names(const char *text, struct rnic_env_name names[RNIC_ENV_DEVICES], struct rnic_err *err) {
    char word[WORD];
    int n = 0, rc = 0;
    for (const char *at = text; at; n++) {
        if (!word_next(&at, ',', word))
            *word = '\0';
        rc = n < RNIC_ENV_DEVICES ? parse_name(word, &names[n], err)
                                  : env_wrong(ENV_NAMES, err, "there can be %d names", n);
        for (int i = 0; i < n && !rc; i++) {
            if (!strcmp(names[i].device, word))
                rc = env_wrong(ENV_NAMES, err, "two devices have the name %s", word);
        }
        if (rc)
            return rc;
    }
    return n;
}

int rnic_env_names(struct rnic_env_name names[RNIC_ENV_DEVICES], struct rnic_err *err) {
    return env_parse_names(env_value(ENV_NAMES), names, err);
}

int env_parse_devices(const char *text, char names[RNIC_ENV_DEVICES][32], struct rnic_err *err) {
    char word[WORD];
    int n = 0;
    for (const char *at = text; at; n++) {
        if (n == RNIC_ENV_DEVICES)
            return env_wrong(ENV_DEVICES, err, "there can be %d names", n);
        if (!word_next(&at, ',', word) || !word_copy(names[n], sizeof names[n], word))
            return env_wrong(ENV_DEVICES, err, "names of devices stand with commas between them");
    }
    return n;
}

int rnic_env_devices(char names[RNIC_ENV_DEVICES][32], struct rnic_err *err) {
    return env_parse_devices(env_value(ENV_DEVICES), names, err);
}

/* ---------------------------------------------------------------- the port's rate */

/* What Ethernet has: Gbit/s, and the speed of a lane and the number of lanes (IBA 14.2.5.6) that make it. */
enum { SDR = 1, DDR = 2, QDR = 4, FDR = 16, EDR = 32, HDR = 64, NDR = 128 };
enum { X1 = 1, X4 = 2, X8 = 4 };
static const struct {
    double gbits;
    struct rnic_rate rate;
} rates[] = {{2.5, {SDR, X1}}, {5, {DDR, X1}},   {10, {QDR, X1}}, {14, {FDR, X1}}, {20, {DDR, X4}},
             {25, {EDR, X1}},  {40, {QDR, X4}},  {50, {HDR, X1}}, {56, {FDR, X4}}, {100, {EDR, X4}},
             {200, {HDR, X4}}, {400, {NDR, X4}}, {800, {NDR, X8}}};
#define RATES ((int)(sizeof rates / sizeof *rates))

static int no_rate(double gbits, struct rnic_err *err) {
    int above = 0;
    while (above < RATES && rates[above].gbits < gbits)
        above++;
    if (!above || above == RATES)
        return env_wrong(ENV_RATE, err, "no port has %gg; the %s is %gg", gbits, above ? "fastest" : "slowest",
                         rates[above ? RATES - 1 : 0].gbits);
    return env_wrong(ENV_RATE, err, "no port has %gg; there are %gg and %gg", gbits, rates[above - 1].gbits,
                     rates[above].gbits);
}

int env_parse_rate(const char *text, struct rnic_rate *rate, struct rnic_err *err) {
    const char *unit;
    double gbits;
    if (!text)
        return 0;
    if (!word_decimal(text, &gbits, &unit) || (strcmp(unit, "g") && strcmp(unit, "G")))
        return env_wrong(ENV_RATE, err, "%.40s is no rate: 100g, for example", text);
    for (int i = 0; i < RATES; i++) {
        *rate = rates[i].rate;
        if (rates[i].gbits == gbits)
            return 0;
    }
    return no_rate(gbits, err);
}

int rnic_env_rate(struct rnic_rate *rate, struct rnic_err *err) {
    return env_parse_rate(env_value(ENV_RATE), rate, err);
}

/* ---------------------------------------------------------------- limits */

#define ROW(name) {#name, offsetof(struct rnic_device_attr, name)},
static const struct {
    const char *name;
    size_t at; /* of an int, or of a uint32_t that would be one */
} limits[] = {RNIC_LIMITS(ROW)};
#undef ROW
#define LIMITS ((int)(sizeof limits / sizeof *limits))

static const char *limit_name(int i) { return i < LIMITS ? limits[i].name : NULL; }

static int set_limit(struct rnic_device_attr *attr, const char *name, const char *value, struct rnic_err *err) {
    char near[NEAR];
    for (int i = 0; i < LIMITS; i++) {
        uint64_t wanted;
        int own;
        if (strcmp(name, limits[i].name))
            continue;
        memcpy(&own, (char *)attr + limits[i].at, sizeof own);
        if (!word_number(value, &wanted) || !wanted || (own && wanted > (uint64_t)own))
            return env_wrong(ENV_LIMITS, err, "%s is %s; allowed are 1 to %d", name, value, own);
        own = own ? (int)wanted : 0; /* what this device has not, another one may have */
        memcpy((char *)attr + limits[i].at, &own, sizeof own);
        return 0;
    }
    word_near(name, limit_name, near);
    return env_wrong(ENV_LIMITS, err, "there is no limit %s%s", name, near);
}

int env_parse_limits(const char *text, struct rnic_device_attr *attr, struct rnic_err *err) {
    char word[WORD];
    int rc = 0;
    for (const char *at = text; at && !rc;) {
        char *value = word_next(&at, ',', word) ? word_cut(word, '=') : NULL;
        rc = value ? set_limit(attr, word, value, err)
                   : env_wrong(ENV_LIMITS, err, "a limit is a name and a number, as max_qp=4");
    }
    return rc;
}

int rnic_env_limits(struct rnic_device_attr *attr, struct rnic_err *err) {
    return env_parse_limits(env_value(ENV_LIMITS), attr, err);
}
