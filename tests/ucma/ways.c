/* SPDX-License-Identifier: Apache-2.0
 *
 * Ways to files that the kernel's RDMA drivers have: each prints what it finds, which is what a program means.
 */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"

static const char *device;
static char text[256];

static void found(const char *how, const char *what) { printf("%s: %s\n", how, what); }

static const char *contents(FILE *file) {
    if (!file || !fgets(text, sizeof text, file))
        return "nothing";
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static const char *contents_of(int fd) { return fd < 0 ? "nothing" : contents(fdopen(fd, "r")); }

static int met(const char *path, const struct stat *buf, int kind, struct FTW *more) {
    (void)buf, (void)kind;
    if (more->level == 1 && !strcmp(path + more->base, device))
        found("nftw", path);
    return 0;
}

static int met_simply(const char *path, const struct stat *buf, int kind) {
    (void)buf, (void)kind;
    if (!strncmp(path, CLASS "/", sizeof CLASS) && !strcmp(path + sizeof CLASS, device))
        found("ftw", path);
    return 0;
}

static void globbed(const char *pattern) {
    glob_t list = {0};
    if (!glob(pattern, 0, NULL, &list)) {
        for (size_t i = 0; i < list.gl_pathc; i++)
            found("glob", list.gl_pathv[i]);
        globfree(&list);
    }
}

static void by_descriptors(void) {
    char name[300];
    struct stat st;
    int above = open("/sys/class", O_RDONLY | O_DIRECTORY), at = open(CLASS, O_RDONLY | O_DIRECTORY);
    int devices = open("/dev/infiniband", O_RDONLY | O_DIRECTORY);
    snprintf(name, sizeof name, "infiniband/%s/node_type", device);
    found("openat above", contents_of(openat(above, name, O_RDONLY)));
    found("fstatat above", fstatat(above, name, &st, 0) ? "nothing" : "there");
    snprintf(name, sizeof name, "%s/node_type", device);
    found("openat", contents_of(openat(at, name, O_RDONLY)));
    int cm = openat(devices, "rdma_cm", O_RDWR);
    found("openat of the device file", cm >= 0 && write(cm, "", 1) < 0 ? "it is one" : "it is none");
}

static void by_relative_paths(void) {
    char name[300];
    snprintf(name, sizeof name, "infiniband/%s/node_type", device);
    if (chdir("/sys/class"))
        return;
    found("open in the folder above", contents_of(open(name, O_RDONLY)));
    globbed("inf*and/*");
}

int main(int argc, char **argv) {
    char name[300];
    device = argc > 1 ? argv[1] : "";
    snprintf(name, sizeof name, CLASS "/%s/node_type", device);
    globbed(CLASS "/*/node_type");
    globbed("/sys/class/infini*and/*"); /* what is the tree's is met as well */
    globbed("/sys/class/infini*and");
    globbed("/dev/inf*/rdma_cm");
    globbed("/sys/cl*ss"); /* once, though both have it */
    nftw(CLASS, met, 8, FTW_PHYS);
    ftw(CLASS, met_simply, 8);
    found("freopen", contents(freopen(name, "r", stdin)));
    by_descriptors();
    by_relative_paths();
    return 0;
}
