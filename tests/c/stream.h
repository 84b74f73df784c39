/* SPDX-License-Identifier: Apache-2.0
 *
 * Two queue pairs of iWARP, joined by a stream of bytes on virtual time: a link that takes and gives as many bytes at a time as
 * a test says, so that a conversation can be cut at any byte, on its way out and on its way in.
 */
#ifndef RNIC_TESTS_STREAM_H
#define RNIC_TESTS_STREAM_H

#include "fabric.h"
#include "iwarp/iwarp.h"

struct pipe {
    uint8_t *bytes; /* all that has been written */
    uint64_t written, read, room, forgotten;
    bool finished, told; /* its end was written; and has been read */
    int error;           /* the reader meets it, once it has read all */
    bool broken;         /* writes fail */

    /* What a test may set; 0: no limit. */
    uint32_t most_in_pipe, most_written, most_read; /* bytes that are not read yet; of a write, of a read */
    uint64_t cut_written, cut_read;                 /* no write, no read, goes over that place in one piece */
    uint32_t segment;                               /* what the link says of it; 0: 65536 */
    bool held;                                      /* nothing is read */
    bool stored;                                    /* the reader's host has all that was written */
    bool forgets;                                   /* what has been read is not kept */
    uint64_t flip; /* a bit of that byte is flipped on its way, counted from 1; 0: of none */
    uint32_t writes, reads;
    uint64_t first_write; /* bytes of it */
};

struct ending { /* what nic.stream_ended() was told */
    int count;
    struct rnic_stream_event event;
};

struct stream {
    struct fabric f;
    struct end a, b; /* a has connected */
    struct pipe ab, ba;
    struct ending a_end, b_end;
    struct link link;
    int users;
};

struct stream_options { /* 0: the default */
    bool no_crc, markers, rfc7306, sig_all;
    uint8_t rtr;
    uint32_t rd_atomic, dest_rd_atomic; /* 4, 4; NONE: 0 */
    uint32_t wr, sge, inline_data;      /* 64, 4, 64 */
    uint32_t access;                    /* qp_access_flags: all; NONE: 0 */
    uint64_t bytes;                     /* of each end's buffer; 256 KiB */
    uint32_t segment;                   /* 65536 */
    struct srq *srq;                    /* of b */
    uint32_t cqe;                       /* 256 */
    bool not_yet;                       /* INIT, not RTS */
};

#define stream_open(s, ...) stream_open_options(s, &(struct stream_options){__VA_ARGS__})
void stream_open_options(struct stream *s, const struct stream_options *o);
void stream_close(struct stream *s);
void stream_join(struct end *e, struct pipe *out); /* its way, held */
void stream_agree(struct stream *s, struct end *e, const struct stream_options *o);
int stream_move(struct end *e, int state, struct rnic_err *err);

/* Both engines work and all bytes go where they belong until nothing moves any more. */
void stream_run(struct stream *s);
/* The same once: false: nothing moved. */
bool stream_step(struct stream *s);
void stream_later(struct stream *s); /* then time goes on to the next deadline; there is one */
/* Gives bytes to an end as if its peer had written them, or reads the peer's as they are. */
void stream_give(struct stream *s, struct end *to, const uint8_t *bytes, uint64_t n);

static inline struct pipe *pipe_to(struct stream *s, const struct end *e) { return e == &s->a ? &s->ba : &s->ab; }
static inline struct pipe *pipe_from(struct stream *s, const struct end *e) { return e == &s->a ? &s->ab : &s->ba; }
static inline struct ending *ending_of(struct stream *s, const struct end *e) {
    return e == &s->a ? &s->a_end : &s->b_end;
}

#endif
