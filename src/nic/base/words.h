/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that people write, as the values of variables: cut into words, and read as numbers.  The locale of the program
 * does not matter.
 */
#ifndef RNIC_BASE_WORDS_H
#define RNIC_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORD 96 /* bytes of a word, with the NUL */
#define NEAR 112 /* bytes of a list of names */

/* The next word up to a separator, without the spaces around it.  *at: what is behind the separator; NULL: that was the
 * last one.  false: it is empty, or too long. */
bool word_next(const char **at, char separator, char out[WORD]);
/* Ends the word at the first such character: what is behind it, or NULL if there is none. */
char *word_cut(char *word, char at);

/* Copies a name into so many bytes, if it fits. */
bool word_copy(char *to, size_t room, const char *word);

bool word_number(const char *text, uint64_t *value);
/* 1, 0.01, .5; *behind: the first character that does not belong to it. */
bool word_decimal(const char *text, double *value, const char **behind);
/* A share of a whole, 0.01 or 1%, in parts per million. */
bool word_share(const char *text, uint32_t *ppm);
/* 2, 2s, 500ms, 10us, in nanoseconds. */
bool word_time(const char *text, uint64_t *ns);

/* The end of a message that there is no such word: "; did you mean", and the names that look like it; if none does, as many
 * as there is room for.  name(i): NULL past the end. */
void word_near(const char *word, const char *(*name)(int i), char out[NEAR]);

#endif
