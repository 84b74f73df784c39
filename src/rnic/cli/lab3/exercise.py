#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lab 3: a file by RDMA WRITE, for a secret key.

Write the sender.  The receiver is `rnic lab3 receiver`.  Your program is called like this:

    python3 sender.py HOST FILE --id ID [--port PORT]

This is what it has to do.  Each line is one message, or one RDMA operation:

    sender                                        receiver
    connect (RDMA-CM)               ->
    ANNOUNCE length, SHA-256        ->
                                    <-            REGION rkey, addr, length
    RDMA WRITE the file's bytes     ->            (its program sleeps all the while)
    DONE how many bytes             ->
                                    <-            VERDICT good or bad
    ID who you are                  ->
                                    <-            KEY your secret key
    print "secret key: ..."
    disconnect                      ->

A file may be larger than the region.  Then it goes in chunks: write as much as the region holds, and send
DONE.  The receiver answers with another REGION instead of VERDICT until it has all bytes.  Each REGION has
its own rkey, addr and length.  An empty file is one chunk of no bytes: write nothing, but send DONE.

The messages are C structures in network byte order (docs/lab3.md):

    struct announce { uint32_t type /* 1 */, version /* 1 */; uint64_t length; uint8_t sha256[32]; };
    struct region   { uint32_t type /* 2 */, rkey; uint64_t addr, length; };
    struct done     { uint32_t type /* 3 */, reserved; uint64_t length; };
    struct verdict  { uint32_t type /* 4 */, good; };
    struct id       { uint32_t type /* 5 */, reserved; char id[64]; };     /* zeros behind the text */
    struct key      { uint32_t type /* 6 */, reserved; char key[64]; };
    struct error    { uint32_t type /* 7 */, reserved; char text[120]; };  /* instead of any answer */

Four rules of RDMA that this lab is about:

1. A SEND needs a receive that is posted at the other end.  So post the receive for the answer before you send
   the question: after it may be too late.
2. An RDMA WRITE needs no receive, and does not wake the receiver's program.  Only your DONE tells it.
3. A reliable connection executes work in the order of posting.  A DONE that is posted after the WRITE arrives
   after its bytes.  A DONE that is posted before the WRITE announces bytes that are not there yet.
4. Memory that you have posted belongs to the RNIC until the work completes.  If you change or release it
   earlier, other bytes may be sent, or the work fails.

Fill in each TODO, then test your program:

    rnic lab3 grade sender.py
"""

import argparse
import hashlib
import struct
import sys
from pathlib import Path

from rnic.rdmacm import CmId, create_id

TIMEOUT = 10.0  # seconds that an answer may take
MESSAGE_BYTES = 128  # no message is longer
CHUNK_BYTES = 1 << 20  # of the file, at most, in one RDMA WRITE

ANNOUNCE, REGION, DONE, VERDICT, ID, KEY, ERROR = range(1, 8)
VERSION = 1


def connect(host: str, port: int) -> CmId:
    """An id that is connected to the receiver, with a queue pair of its own.

    TODO 1: make an id (create_id), then call on it, in this order: resolve_addr(None, (host, port)), which
    finds the device; resolve_route(); create_qp(), which needs the device; connect().  With an id without an
    event channel each call waits until it is done, and raises an exception if it fails.
    """
    # solution 1
    cm_id = create_id()
    cm_id.resolve_addr(None, (host, port))
    cm_id.resolve_route()
    cm_id.create_qp()
    cm_id.connect()
    return cm_id
    # end


def ask(cm_id: CmId, question: bytes) -> bytes:
    """Send a message, and wait for the receiver's answer.

    TODO 2: register memory for both (cm_id.reg_msgs(bytearray(...))); post the receive (post_recv), and only
    then the SEND (post_send).  Wait for both completions: get_send_comp(TIMEOUT) and get_recv_comp(TIMEOUT).
    A completion whose `ok` is False says by explain() what went wrong; the byte_len of the receive's is the
    length of the answer.  Close the memory regions: `with` does it.
    """
    # solution 2
    answer = bytearray(MESSAGE_BYTES)
    with cm_id.reg_msgs(bytearray(question)) as out, cm_id.reg_msgs(answer) as into:
        cm_id.post_recv(into)
        cm_id.post_send(out)
        sent = cm_id.get_send_comp(TIMEOUT)
        if not sent.ok:
            sys.exit(f"SEND: {sent.explain()}")
        received = cm_id.get_recv_comp(TIMEOUT)
        if not received.ok:
            sys.exit(f"receive: {received.explain()}")
        return bytes(answer[: received.byte_len])
    # end


def announcement(data: bytes) -> bytes:
    """The message ANNOUNCE for a file with these bytes.

    TODO 3: hashlib.sha256(data).digest() has the 32 bytes.  struct.pack needs a format: "!" is network byte
    order, I a uint32_t, Q a uint64_t, 32s bytes.
    """
    # solution 3
    return struct.pack("!IIQ32s", ANNOUNCE, VERSION, len(data), hashlib.sha256(data).digest())
    # end


def write(cm_id: CmId, part: bytes, addr: int, rkey: int) -> None:
    """RDMA WRITE these bytes to `addr` in the receiver's memory.

    TODO 4: register memory that holds the part (reg_msgs will do: only the peer's memory has to be open to
    others), post_write(memory, remote_addr=addr, rkey=rkey), wait for its completion before the memory goes.
    """
    # solution 4
    with cm_id.reg_msgs(bytearray(part)) as memory:
        cm_id.post_write(memory, remote_addr=addr, rkey=rkey)
        written = cm_id.get_send_comp(TIMEOUT)
        if not written.ok:
            sys.exit(f"RDMA WRITE: {written.explain()}")
    # end


def transfer(cm_id: CmId, data: bytes) -> bytes:
    """Announce the file, write it chunk by chunk; the receiver's answer to the last DONE.

    TODO 5: ask() with the announcement; the answer is a REGION (format "!IIQQ").  As long as the answer is a
    REGION, write as much of what is left as it holds, in WRITEs of at most CHUNK_BYTES, and ask() with DONE
    ("!I4xQ": 4x are four zeros) and the number of bytes in this chunk.  Do it once for an empty file.
    """
    # solution 5
    answer = ask(cm_id, announcement(data))
    sent = 0
    while kind(answer) == REGION:
        _, rkey, addr, length = struct.unpack("!IIQQ", answer)
        chunk = data[sent : sent + length]
        for start in range(0, len(chunk), CHUNK_BYTES):
            write(cm_id, chunk[start : start + CHUNK_BYTES], addr + start, rkey)
        sent += len(chunk)
        answer = ask(cm_id, struct.pack("!I4xQ", DONE, len(chunk)))
    return answer
    # end


def secret_key(cm_id: CmId, verdict: bytes, who: str) -> str:
    """Look at the verdict, say who you are; the key that the receiver answers with.

    TODO 6: verdict is "!II", type and good; end with a clear message when it is not VERDICT or not good
    (sys.exit("...") prints it and ends with exit code 1).  ask() with ID, "!I4x64s"; the answer is KEY, in
    the same format: its text ends where the zeros begin.
    """
    # solution 6
    if kind(verdict) != VERDICT or not struct.unpack("!II", verdict)[1]:
        sys.exit("the receiver has other bytes than were announced")
    answer = ask(cm_id, struct.pack("!I4x64s", ID, who.encode()))
    if kind(answer) != KEY:
        sys.exit("the receiver gives no key")
    _, key = struct.unpack("!I4x64s", answer)
    return str(key.rstrip(b"\0"), "ascii")
    # end


def kind(message: bytes) -> int:
    """The type of a message; an ERROR ends the program with its text."""
    number = int.from_bytes(message[:4], "big")
    if number == ERROR:
        sys.exit("the receiver refuses: " + message[8:].rstrip(b"\0").decode())
    return number


def main() -> None:
    """The whole conversation."""
    parser = argparse.ArgumentParser(description="Send a file by RDMA WRITE, and get a secret key for it.")
    parser.add_argument("host")
    parser.add_argument("file", type=Path)
    parser.add_argument("--id", required=True)
    parser.add_argument("--port", type=int, default=7471)
    args = parser.parse_args()
    data = args.file.read_bytes()

    cm_id = connect(args.host, args.port)
    verdict = transfer(cm_id, data)
    print("secret key:", secret_key(cm_id, verdict, args.id))
    # TODO 7: cm_id.disconnect() tells the receiver that this is the end, and cm_id.destroy() gives all back.
    # solution 7
    cm_id.disconnect()
    cm_id.destroy()
    # end


if __name__ == "__main__":
    main()
