/* SPDX-License-Identifier: Apache-2.0 */
#include "base/words.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool space(char c) { return isspace((unsigned char)c); }
static bool digit(char c) { return isdigit((unsigned char)c); }

bool word_next(const char **at, char separator, char out[WORD]) {
    const char *from = *at, *end = strchr(from, separator);
    *at = end ? end + 1 : NULL;
    if (!end)
        end = from + strlen(from);
    while (from < end && space(*from))
        from++;
    while (end > from && space(end[-1]))
        end--;
    size_t n = (size_t)(end - from);
    if (!n || n >= WORD)
        return false;
    memcpy(out, from, n);
    out[n] = '\0';
    return true;
}

char *word_cut(char *word, char at) {
    char *found = strchr(word, at);
    if (!found)
        return NULL;
    *found = '\0';
    return found + 1;
}

bool word_copy(char *to, size_t room, const char *word) {
    size_t n = strlen(word) + 1;
    if (n <= room)
        memcpy(to, word, n);
    return n <= room;
}

bool word_number(const char *text, uint64_t *value) {
    char *end;
    if (!digit(*text) || strlen(text) > 19)
        return false;
    *value = strtoull(text, &end, 10);
    return !*end;
}

bool word_decimal(const char *text, double *value, const char **behind) {
    double unit = 1;
    bool any = false;
    *value = 0;
    for (; digit(*text); text++, any = true)
        *value = *value * 10 + (*text - '0');
    if (*text == '.') {
        for (text++; digit(*text); text++, any = true)
            *value += (*text - '0') * (unit /= 10);
    }
    *behind = text;
    return any;
}

bool word_share(const char *text, uint32_t *ppm) {
    const char *behind;
    double value;
    if (!word_decimal(text, &value, &behind) || (*behind && strcmp(behind, "%")))
        return false;
    if (*behind)
        value /= 100;
    *ppm = value <= 1 ? (uint32_t)(value * 1e6 + 0.5) : 0;
    return value <= 1;
}

bool word_time(const char *text, uint64_t *ns) {
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}};
    const char *behind;
    double value;
    if (!word_decimal(text, &value, &behind) || value > 1e9)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (!strcmp(behind, units[i].name)) {
            *ns = (uint64_t)(value * units[i].ns);
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- names that are near */

static int least(int a, int b, int c) { return a < b ? (a < c ? a : c) : b < c ? b : c; }

/* How many characters have to be added, left out or changed (Levenshtein). */
static int distance(const char *a, const char *b) {
    int row[WORD];
    int n = (int)strlen(b);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
            corner = above;
        }
    }
    return row[n];
}

static bool near(const char *word, const char *name) {
    int most = (int)strlen(word) / 4 + 1;
    return strlen(name) < WORD && (distance(word, name) <= most || strstr(name, word));
}

void word_near(const char *word, const char *(*name)(int i), char out[NEAR]) {
    bool any = false;
    for (int i = 0; name(i); i++)
        any |= near(word, name(i));
    size_t n = (size_t)snprintf(out, NEAR, "; %s", any ? "did you mean" : "there are");
    const char *between = " ";
    for (int i = 0; name(i); i++) {
        if (any && !near(word, name(i)))
            continue;
        if (n + strlen(name(i)) + sizeof ", , ...?" > NEAR) { /* room is left for the dots */
            n += (size_t)snprintf(out + n, NEAR - n, ", ...");
            break;
        }
        n += (size_t)snprintf(out + n, NEAR - n, "%s%s", between, name(i));
        between = ", ";
    }
    if (any)
        snprintf(out + n, NEAR - n, "?");
}
