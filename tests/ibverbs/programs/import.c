/* SPDX-License-Identifier: Apache-2.0
 *
 * Device memory of one process in another one (man ibv_import_device, ibv_import_dm): the first one sends the descriptor of its
 * context, the second one writes there by its own copy of the region, and leaves everything open.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            perror(#what);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct handles {
    uint32_t pd, dm, mr, plain, lkey;
};

static void give(int to, int fd, struct handles handles) {
    struct iovec data = {&handles, sizeof handles};
    char room[CMSG_SPACE(sizeof fd)];
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    NEED(sendmsg(to, &message, 0) == (ssize_t)sizeof handles);
}

static int take(int from, struct handles *handles) {
    int fd;
    struct iovec data = {handles, sizeof *handles};
    char room[CMSG_SPACE(sizeof fd)];
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    NEED(recvmsg(from, &message, 0) == (ssize_t)sizeof *handles);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static int second(int socket) {
    struct handles handles;
    struct ibv_context *context = ibv_import_device(take(socket, &handles));
    NEED(context);
    struct ibv_pd *pd = ibv_import_pd(context, handles.pd);
    struct ibv_dm *dm = ibv_import_dm(context, handles.dm);
    struct ibv_mr *mr = ibv_import_mr(pd, handles.mr);
    NEED(pd && dm && mr && mr->lkey == handles.lkey);
    NEED(!ibv_import_mr(pd, handles.plain));
    perror("ordinary memory");
    NEED(!ibv_memcpy_to_dm(dm, 4, "5678", 4));
    NEED(!ibv_close_device(context));
    return 0;
}

int main(int argc, char **argv) {
    static char memory[64];
    char text[9] = "";
    int ends[2], status;
    (void)argc;
    NEED(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
    pid_t child = fork();
    if (!child)
        return second(ends[1]);
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_device **one = list;
    while (*one && strcmp(ibv_get_device_name(*one), argv[1]))
        one++;
    struct ibv_context *context = ibv_open_device(*one);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_dm *dm = ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){.length = 64});
    struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *plain = ibv_reg_mr(pd, memory, sizeof memory, 0);
    NEED(mr && plain && !ibv_memcpy_to_dm(dm, 0, "1234", 4));
    give(ends[0], context->cmd_fd, (struct handles){pd->handle, dm->handle, mr->handle, plain->handle, mr->lkey});
    NEED(waitpid(child, &status, 0) == child && status == 0);
    NEED(!ibv_memcpy_from_dm(text, dm, 0, 8));
    puts(text);
    ibv_free_device_list(list);
    return ibv_close_device(context);
}
