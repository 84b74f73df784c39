/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the modules and their peers say to each other.  message.py has the same layouts for the
 * peers in Python. All numbers are big-endian.  Both ends check what they get: a peer is never
 * trusted.
 *
 * A connection begins with two pieces of private data: the client's request, and the server's
 * offer in its answer.  RDMA-CM pads private data with zeros, so a reader takes the first bytes
 * and ignores what follows.
 */
#ifndef RNIC_MESSAGE_H
#define RNIC_MESSAGE_H

#include <linux/types.h>
#include <asm/byteorder.h>

#define RNIC_MAGIC	0x726e6963	/* "rnic" */
#define RNIC_VERSION	1

/* What a client wants of a server. */
enum rnic_service {
	RNIC_ECHO	= 1,	/* messages, answered in capital letters: client, listener */
	RNIC_MEMORY	= 2,	/* the server's memory, for READ, WRITE and atomics: rw, blockdev */
};

/* The private data of a connection request. */
struct rnic_request {
	__be32	magic;
	__be16	version;
	__be16	service;	/* enum rnic_service */
};

/*
 * The private data of the answer that accepts it.  Without RNIC_MEMORY the last three fields are
 * 0. A refusal has private data, too: an rnic_request with the version and the service that the
 * server has.
 */
struct rnic_offer {
	__be32	magic;
	__be16	version;
	__be16	depth;		/* messages that the server has receives for; 0: none are wanted */
	__be64	addr;		/* of the first byte, for the client's READs and WRITEs */
	__be64	length;		/* bytes */
	__be32	rkey;
	__be32	reserved;	/* 0 */
};

#define RNIC_TEXT_MAX	1024	/* bytes of text in a message */

enum rnic_kind {
	RNIC_ASK	= 1,	/* answer this text in capital letters (ASCII alone) */
	RNIC_ANSWER	= 2,	/* the answer, with the number of what it answers */
	RNIC_WRONG	= 3,	/* the message of that number was wrong; the text says why */
	RNIC_LEND	= 4,	/* the text is an rnic_region: change the bytes there to capitals */
};

/* A message: the header, and its text. */
struct rnic_message {
	__be32	kind;		/* enum rnic_kind */
	__be32	number;		/* of the question, counted by the client from 0 */
	__be32	length;		/* bytes of text that follow */
	char	text[];
};

#define RNIC_MESSAGE_MAX (sizeof(struct rnic_message) + RNIC_TEXT_MAX)

/* Whether so many received bytes are one whole message. */
static inline bool rnic_message_is_whole(const struct rnic_message *message, size_t bytes)
{
	return bytes >= sizeof(*message) &&
	       be32_to_cpu(message->length) == bytes - sizeof(*message);
}

/* toupper() changes Latin-1's letters, too; an answer has ASCII's alone in capitals. */
static inline char rnic_capital(char c)
{
	return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
}

/* Memory that the peer may read and write, as text of RNIC_LEND. The answer to it has no text. */
struct rnic_region {
	__be64	addr;
	__be32	rkey;
	__be32	length;		/* bytes, at most RNIC_TEXT_MAX */
};

#endif
