/* SPDX-License-Identifier: Apache-2.0
 *
 * The TCP link of iWARP: a connected socket for each queue pair, which somebody else has connected and agreed on with the
 * peer (verbs/stream.c).  What leaves is in here.  What comes in is read by the link's source (net/streams.c), which watches
 * the sockets in the link's own epoll set, of which the engine's has the descriptor alone: there may be thousands.
 *
 * A stream waits until its queue pair takes what comes.  It leaves when it has no queue pair any more: then the peer is to
 * read all that was written, with the end behind it.  A socket that is closed while something of the peer's is unread would
 * tell it of a reset instead, and the peer's kernel would throw away what is still to be read there.  So what comes is thrown
 * away here until the peer closes, too, or has had time for it.
 */
#ifndef RNIC_LINK_TCP_H
#define RNIC_LINK_TCP_H

#include <sys/epoll.h>

#include "link/link.h"
#include "link/tcp/faults.h"

enum tcp_stage {
    TCP_WAITS,  /* for its queue pair to take what comes */
    TCP_OPEN,   /* it is read, and written, as far as it goes */
    TCP_BROKEN, /* it was found broken when it was written: to be told */
    TCP_LEAVES, /* of no queue pair any more */
    TCP_STAGES
};

struct tcp_stream {
    struct qp *qp; /* whose it is; NULL: nobody's any more */
    enum tcp_stage stage;
    struct tcp_stream *next, **at; /* in its stage's list */
    int fd;
    int line;          /* -1, or where its end is told */
    int error;         /* TCP_BROKEN: errno */
    uint32_t watched;  /* EPOLLIN, EPOLLOUT: what the epoll set has of it; 0: it is not in there */
    bool full;         /* the last write was not taken whole: its queue pair waits */
    bool ended;        /* nothing comes any more */
    bool finished;     /* nothing is written any more */
    uint64_t until;    /* TCP_LEAVES: it is closed then at the latest */
    uint32_t segment;  /* bytes, as found */
    uint64_t found_at; /* then */
    struct stream_harm harm;
    uint8_t *early; /* nearly bytes that were read by others before, of which so many are taken */
    uint32_t nearly, taken;
};

struct tcp {
    struct link link; /* first */
    struct rnic_counters *counters;
    const uint64_t *now; /* of the pass */
    int epoll_fd;        /* -1: not open */
    struct tcp_stream *streams[TCP_STAGES];
    uint32_t count[TCP_STAGES];
    uint32_t full; /* streams that are */
    bool polled;   /* who reads open streams asks for each of them: they are not in the set for that */
    bool stalled;  /* on purpose: nothing comes or goes */
    struct stream_faults faults;
};

/* The link's own part of a way. */
struct tcp_way {
    struct tcp_stream *stream; /* NULL: none */
} __attribute__((may_alias));
static inline struct tcp_stream *tcp_stream_of(const struct way *way) {
    return ((const struct tcp_way *)(const void *)way->own)->stream;
}

void tcp_init(struct tcp *tcp); /* it is closed */
int tcp_open(struct tcp *tcp, struct rnic_counters *counters, const uint64_t *now, struct rnic_err *err);
void tcp_close(struct tcp *tcp);   /* with all streams */
void tcp_cut(struct tcp *tcp);     /* all connections end at once, while they may have queue pairs */
void tcp_abandon(struct tcp *tcp); /* in a forked child: their descriptors */
/* On purpose. fault: the injector's, NULL: none. stalled: nothing comes or goes at all */
void tcp_set_faults(struct tcp *tcp, const struct rnic_fault *fault, bool stalled);

/* From now on the queue pair goes its way by this socket, which is the link's; rcvbuf: bytes of its buffer, 0: the system's
 * choice.  0; or -errno and why not, and the socket is still the caller's. */
int tcp_attach(struct tcp *tcp, struct way *way, struct qp *qp, const struct rnic_stream_attr *attr, uint32_t rcvbuf,
               struct rnic_err *err);

/* Tells of the stream's end by its line, which is closed then. false: it has none. */
bool tcp_tell(const struct way *way, const struct rnic_stream_event *event);

/* For the source.  read: what has come, into n pieces, or if n is 0 nowhere: so many bytes; 0: the peer has closed, -EAGAIN:
 * nothing is there, -errno: it has broken.  move: to another stage.  watch: what it may be told of now.  sweep: what leaves
 * has left, or has had its time */
long tcp_read(struct tcp *tcp, struct tcp_stream *s, const struct iovec *pieces, int n);
void tcp_move(struct tcp *tcp, struct tcp_stream *s, enum tcp_stage to);
void tcp_watch(struct tcp *tcp, struct tcp_stream *s);
void tcp_has_room(struct tcp *tcp, struct tcp_stream *s);
void tcp_sweep(struct tcp *tcp, uint64_t now);
void tcp_go_on(struct tcp *tcp, uint64_t now); /* those whose time the injector meant */
uint64_t tcp_deadline(const struct tcp *tcp);

#endif
