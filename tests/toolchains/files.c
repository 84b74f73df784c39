/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c DEVICE: what a program finds of the kernel's RDMA drivers under `rnic run`, by the functions that it calls.
 * Nothing in it is a certain C library's.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/rdma_netlink.h>
#include <rdma/rdma_user_cm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define CLASS "/sys/class/infiniband"
#define DEVICE_FILE "/dev/infiniband/rdma_cm"

static const char *device;

/* ---------------------------------------------------------------- sysfs */

static int is_device(const struct dirent *entry) { return !strcmp(entry->d_name, device); }

static void folders(void) {
    struct dirent **list, *entry;
    DIR *open_folder = opendir(CLASS);
    int found = 0;
    NEED(open_folder);
    while ((entry = readdir(open_folder)))
        found += is_device(entry);
    closedir(open_folder);
    NEED(found == 1);
    NEED(scandir(CLASS, &list, is_device, alphasort) == 1 && is_device(list[0]));
    free(list[0]);
    free(list);
}

static void links(void) {
    char path[PATH_MAX], text[PATH_MAX] = "", *real;
    struct stat st;
    snprintf(path, sizeof path, CLASS "/%s", device);
    NEED(!lstat(path, &st) && S_ISLNK(st.st_mode) && !stat(path, &st) && S_ISDIR(st.st_mode));
    NEED(!fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode));
    NEED(readlink(path, text, sizeof text - 1) > 0 && strstr(text, device));
    memset(text, 0, sizeof text);
    NEED(readlinkat(AT_FDCWD, path, text, sizeof text - 1) > 0 && strstr(text, device));
    NEED((real = realpath(path, NULL)) && strstr(real, device));
    free(real);
    NEED(!access(path, R_OK) && !eaccess(path, R_OK) && !euidaccess(path, R_OK));
    NEED(!faccessat(AT_FDCWD, path, R_OK, 0));
    NEED(getxattr(path, "user.none", text, sizeof text) < 0 && errno != ENOENT && errno != ENOSYS);
    NEED(listxattr(path, text, sizeof text) >= 0 || errno != ENOENT);
}

static void contents(void) {
    char path[PATH_MAX], text[100] = "";
    snprintf(path, sizeof path, CLASS "/%s/ports/1/link_layer", device);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    NEED(fd >= 0 && read(fd, text, sizeof text) == 9 && !strncmp(text, "Ethernet\n", 9) && !close(fd));
    fd = openat(AT_FDCWD, path, O_RDONLY);
    NEED(fd >= 0 && !close(fd));
    FILE *file = fopen(path, "r");
    NEED(file && fgets(text, sizeof text, file) && !strcmp(text, "Ethernet\n") && !fclose(file));
    NEED(!chdir(CLASS) && !access(device, R_OK) && !chdir("/"));
    NEED(open(CLASS "/nothing", O_RDONLY) < 0 && errno == ENOENT);
#ifdef STATX_TYPE
    struct statx about;
    NEED(!statx(AT_FDCWD, path, 0, STATX_TYPE, &about) && S_ISREG(about.stx_mode));
#endif
}

/* What is the program's own stays so. */
static void own_files(void) {
    char path[] = "/tmp/files-XXXXXX", text[4] = "";
    int fd = mkstemp(path), copy;
    struct stat st;
    NEED(fd >= 0 && write(fd, "abc", 3) == 3 && !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size == 3);
    NEED((copy = fcntl(fd, F_DUPFD_CLOEXEC, 20)) >= 20 && fcntl(copy, F_GETFD) == FD_CLOEXEC && !close(copy));
    NEED(!close(fd) && (fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0 && !read(fd, text, 3) && !close(fd));
    NEED(!unlink(path) && access(path, F_OK) < 0 && errno == ENOENT);
}

/* ---------------------------------------------------------------- RDMA-CM */

static ssize_t command(int fd, uint32_t cmd, const void *body, size_t length, size_t answer) {
    char bytes[512];
    struct rdma_ucm_cmd_hdr head = {.cmd = cmd, .in = (uint16_t)length, .out = (uint16_t)answer};
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, body, length);
    return write(fd, bytes, sizeof head + length);
}

static uint32_t create(int fd) {
    struct rdma_ucm_create_id_resp resp = {.id = UINT32_MAX};
    struct rdma_ucm_create_id create = {.uid = 5, .response = (uintptr_t)&resp, .ps = RDMA_PS_TCP, .qp_type = 2};
    NEED(command(fd, RDMA_USER_CM_CMD_CREATE_ID, &create, sizeof create, sizeof resp) > 0 && resp.id != UINT32_MAX);
    return resp.id;
}

static void destroy(int fd, uint32_t id) {
    struct rdma_ucm_destroy_id_resp resp;
    struct rdma_ucm_destroy_id destroy = {.response = (uintptr_t)&resp, .id = id};
    NEED(command(fd, RDMA_USER_CM_CMD_DESTROY_ID, &destroy, sizeof destroy, sizeof resp) > 0);
}

static ssize_t next_event(int fd) {
    struct rdma_ucm_event_resp resp;
    struct rdma_ucm_get_event get = {.response = (uintptr_t)&resp};
    return command(fd, RDMA_USER_CM_CMD_GET_EVENT, &get, sizeof get, sizeof resp);
}

static void *waits(void *fd) {
    next_event(*(int *)fd);
    return NULL;
}

/* What ends a thread in which rping waits. */
static void cancelled(int fd) {
    pthread_t thread;
    void *how;
    NEED(!pthread_create(&thread, NULL, waits, &fd) && !pthread_cancel(thread) && !pthread_join(thread, &how));
    NEED(how == PTHREAD_CANCELED);
}

static void connections(void) {
    struct stat st;
    int status, fd = open(DEVICE_FILE, O_RDWR | O_CLOEXEC), copy = dup(fd);
    NEED(fd >= 0 && copy >= 0 && !fstat(copy, &st) && S_ISCHR(st.st_mode));
    NEED(!stat(DEVICE_FILE, &st) && S_ISCHR(st.st_mode));
    uint32_t id = create(fd);
    destroy(copy, id);
    pid_t child = fork();
    if (!child) {
        destroy(fd, create(fd));
        _exit(7);
    }
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    cancelled(fd);
    NEED(!fcntl(fd, F_SETFL, O_NONBLOCK) && next_event(fd) < 0 && errno == EAGAIN);
    NEED(!close(fd) && !close(copy));
}

/* ---------------------------------------------------------------- netlink */

static void netlink(void) {
    struct {
        struct nlmsghdr head;
    } dump = {{sizeof dump, RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), NLM_F_REQUEST | NLM_F_DUMP, 9, 0}};
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct iovec part = {&dump, sizeof dump};
    struct msghdr message = {.msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &part, .msg_iovlen = 1};
    _Alignas(struct nlmsghdr) char answer[4096] = "";
    struct nlmsghdr *head = (struct nlmsghdr *)answer;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA), found = 0;
    NEED(fd >= 0 && !bind(fd, (struct sockaddr *)&kernel, sizeof kernel));
    NEED(sendmsg(fd, &message, 0) == sizeof dump);
    do {
        ssize_t n = recv(fd, answer, sizeof answer, 0);
        NEED(n >= (ssize_t)sizeof *head && head->nlmsg_seq == 9);
        found += memmem(answer, (size_t)n, device, strlen(device)) != NULL;
    } while (head->nlmsg_type != NLMSG_DONE && head->nlmsg_type != NLMSG_ERROR);
    NEED(head->nlmsg_type == NLMSG_DONE && found == 1 && !close(fd));
}

int main(int argc, char **argv) {
    NEED(argc == 2);
    device = argv[1];
    folders();
    links();
    contents();
    own_files();
    connections();
    netlink();
    return 0;
}
