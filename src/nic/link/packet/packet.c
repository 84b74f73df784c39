/* SPDX-License-Identifier: Apache-2.0 */
#include "link/packet/packet.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fail.h"

#define RCVBUF (4 << 20) /* bytes to ask for: a burst is lost where nobody counts it */
#define MACS 12 /* bytes of both addresses, behind which a tag stands */
#define MARK 0x724e4943 /* on frames of these sockets: other contexts of the device tell them from the kernel's own */

/* Of protocol 0 it gets nothing, of any device. */
int packet_open(struct rnic_err *err) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), mark = MARK;
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof mark); /* Linux before 5.17 wants CAP_NET_ADMIN for it */
        return fd;
    }
    int rc = -errno;
    return fail(err, rc, "no packet socket: %s%s", strerror(-rc), rc == -EPERM ? " (it needs CAP_NET_RAW)" : "");
}

/* Of what leaves by the device, the frames of other sockets of this kind, as hardware's queue pairs reach each other. The
 * kernel gives a socket its own frames only when they come back, and from the loopback interface everything does. */
static int choose(int fd, bool loopback) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_OUTGOING, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, loopback ? 0 : UINT32_MAX),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_MARK)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MARK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

/* A queue pair's rules may name any address: as with hardware, the device takes in what is for them. */
int packet_listen(int fd, int ifindex, bool loopback, struct rnic_err *err) {
    struct sockaddr_ll at = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = ifindex};
    struct packet_mreq all = {.mr_ifindex = ifindex, .mr_type = PACKET_MR_PROMISC};
    int one = 1, room = RCVBUF;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room); /* as much of it as the system grants */
    if (setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) || choose(fd, loopback) ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) ||
        bind(fd, (const struct sockaddr *)&at, sizeof at)) {
        int rc = -errno;
        return fail(err, rc, "cannot receive frames by the packet socket: %s", strerror(-rc));
    }
    return 0;
}

int packet_send(int fd, int ifindex, const uint8_t *frame, uint32_t n) {
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = ifindex, .sll_halen = ETH_ALEN};
    memcpy(&to.sll_protocol, frame + MACS, sizeof to.sll_protocol);
    memcpy(to.sll_addr, frame, ETH_ALEN);
    return sendto(fd, frame, n, 0, (const struct sockaddr *)&to, sizeof to) < 0 ? -errno : 0;
}

static const struct tpacket_auxdata *auxdata(struct msghdr *msg) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA &&
            c->cmsg_len >= CMSG_LEN(sizeof(struct tpacket_auxdata)))
            return (const struct tpacket_auxdata *)(const void *)CMSG_DATA(c);
    }
    return NULL;
}

/* The tag that the kernel took out, back where it was on the wire. */
static uint8_t *put_tag(uint8_t *frame, const struct tpacket_auxdata *aux) {
    uint8_t *start = frame - PACKET_ROOM;
    bool known = aux->tp_status & TP_STATUS_VLAN_TPID_VALID;
    memmove(start, frame, MACS);
    put_be16(start + MACS, known ? aux->tp_vlan_tpid : ETH_P_8021Q);
    put_be16(start + MACS + 2, aux->tp_vlan_tci);
    return start;
}

int packet_receive(int fd, uint8_t *buffer, uint32_t size, uint8_t **frame, bool *partial) {
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    struct iovec io = {buffer + PACKET_ROOM, size - PACKET_ROOM};
    struct msghdr msg = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &msg, MSG_TRUNC);
    if (n < 0)
        return errno == EINTR || errno == ENETDOWN ? -EAGAIN : -errno;
    const struct tpacket_auxdata *aux = auxdata(&msg);
    *frame = buffer + PACKET_ROOM;
    *partial = aux && (aux->tp_status & TP_STATUS_CSUMNOTREADY);
    if (!aux || !(aux->tp_status & TP_STATUS_VLAN_VALID) || n < MACS)
        return (int)n;
    *frame = put_tag(*frame, aux);
    return (int)n + PACKET_ROOM;
}
