/* SPDX-License-Identifier: Apache-2.0
 *
 * names/user.c: whose processes are of our own user, in user namespaces that map some users, or all.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* unshare */
#endif
#include "names/user.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define OVERFLOW 65534

enum { FAILED = 1, SKIPPED = 77 };

/* What a check says in a process of its own. */
static int in_child(int (*check)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(check());
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED)
        printf("# no user namespace to be had, or not root\n");
    return WEXITSTATUS(status) == SKIPPED ? 0 : WEXITSTATUS(status);
}

/* What the kernel says instead, of the number of nobody and of those who are mapped; "": there is no such file. */
static const char *overflow, *mapped;

FILE *fopen(const char *path, const char *mode) {
    const char *text = strstr(path, "overflowuid") ? overflow : strstr(path, "uid_map") ? mapped : NULL;
    int fd = text ? memfd_create("text", MFD_CLOEXEC) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || (text && !*text)) {
        close(fd);
        return NULL;
    }
    if (text)
        CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text) && lseek(fd, 0, SEEK_SET) == 0);
    return fdopen(fd, mode[0] == 'r' ? "r" : mode);
}

static bool put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

/* This process is `inside` from now on, and everybody else nobody. */
static bool alone_as(unsigned inside) {
    char map[64];
    snprintf(map, sizeof map, "%u %u 1", inside, (unsigned)geteuid());
    return unshare(CLONE_NEWUSER) == 0 && put("/proc/self/uid_map", map) && geteuid() == inside;
}

static int as_mapped_nobody(void) {
    if (!alone_as(OVERFLOW))
        return SKIPPED;
    return user_is_one(OVERFLOW) || user_is_ours(OVERFLOW) ? FAILED : 0;
}

static int as_somebody(void) {
    if (!alone_as(1000))
        return SKIPPED;
    return user_is_ours(1000) && user_is_one(1000) && !user_is_one(OVERFLOW) && !user_is_ours(OVERFLOW) ? 0 : FAILED;
}

/* Where all users are mapped, nobody is a user like others. */
static int as_nobody_of_all(void) {
    FILE *f = fopen("/proc/self/uid_map", "re");
    unsigned first, to, count = 0;
    bool all = f && fscanf(f, "%u %u %u", &first, &to, &count) == 3 && count == UINT32_MAX;
    if (f)
        fclose(f);
    if (!all || geteuid() || setresuid(OVERFLOW, OVERFLOW, OVERFLOW))
        return SKIPPED;
    return user_is_ours(OVERFLOW) && !user_is_ours(0) ? 0 : FAILED;
}

static int as_another_than_one_was(void) {
    if (geteuid() || setresuid(0, 1000, 0))
        return SKIPPED;
    return user_is_ours(1000) || user_is_ours(0) ? FAILED : 0;
}

static int that_hides(void) {
    if (!user_may_look() || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return FAILED;
    return user_may_look() ? FAILED : 0;
}

static void nobody_has_the_number_that_the_administrator_gave(void) {
    static const char *const some = "0 1000 2\n", *const all = "0 0 4294967295\n";
    static const struct {
        const char *overflow, *mapped;
        bool given, usual; /* is 4321 somebody, and 65534? */
    } rows[] = {
        {"4321\n", some, false, false},
        {"65534\n", some, true, false},
        {"", some, true, false},
        {"x\n", some, true, false},
        {"4321\n", all, true, true},
        {"4321\n", "0 0 4294967294\n", false, false},
        {"4321\n", "1 0 4294967295\n", false, false},
        {"4321\n", "0 0\n", false, false},
        {"4321\n", "", false, false},
    };
    int before = check_descriptors();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        overflow = rows[i].overflow, mapped = rows[i].mapped;
        bool given = user_is_one(4321), usual = user_is_one(OVERFLOW), other = user_is_one(5);
        overflow = mapped = NULL;
        check_note("row %zu", i);
        CHECK_EQ(given, rows[i].given);
        CHECK_EQ(usual, rows[i].usual);
        CHECK(other);
    }
    CHECK_EQ(check_descriptors(), before);
}

static void whom_the_namespace_does_not_map_is_nobodys_equal(void) { CHECK_EQ(in_child(as_mapped_nobody), 0); }
static void whom_it_maps_is_known(void) { CHECK_EQ(in_child(as_somebody), 0); }
static void nobody_is_a_user_where_all_are_mapped(void) { CHECK_EQ(in_child(as_nobody_of_all), 0); }
static void who_acts_as_another_has_no_equal(void) { CHECK_EQ(in_child(as_another_than_one_was), 0); }
static void a_process_that_is_not_dumpable_is_not_looked_into(void) { CHECK_EQ(in_child(that_hides), 0); }

int main(void) {
    RUN(nobody_has_the_number_that_the_administrator_gave);
    RUN(whom_the_namespace_does_not_map_is_nobodys_equal);
    RUN(whom_it_maps_is_known);
    RUN(nobody_is_a_user_where_all_are_mapped);
    RUN(who_acts_as_another_has_no_equal);
    RUN(a_process_that_is_not_dumpable_is_not_looked_into);
    return check_done();
}
