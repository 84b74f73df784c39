# SPDX-License-Identifier: Apache-2.0
"""Wrong senders, and some that are only odd: the exercise's solution with one change each.

To these come the changes that tools/mutants makes of every line: see mutants.py.
"""

from __future__ import annotations

RECEIVE, SEND = "        cm_id.post_recv(into)\n", "        cm_id.post_send(out)\n"
WAIT_SENT = """\
        sent = cm_id.get_send_comp(TIMEOUT)
        if not sent.ok:
            sys.exit(f"SEND: {sent.explain()}")
"""
LOOK_SENT = WAIT_SENT[WAIT_SENT.index("        if") :]
WAIT_RECEIVED = """\
        received = cm_id.get_recv_comp(TIMEOUT)
        if not received.ok:
            sys.exit(f"receive: {received.explain()}")
        return bytes(answer[: received.byte_len])
"""
LOOK_RECEIVED = WAIT_RECEIVED[WAIT_RECEIVED.index("        if") : WAIT_RECEIVED.index("        return")]
POST_WRITE = "        cm_id.post_write(memory, remote_addr=addr, rkey=rkey)\n"
WAIT_WRITTEN = """\
        written = cm_id.get_send_comp(TIMEOUT)
        if not written.ok:
            sys.exit(f"RDMA WRITE: {written.explain()}")
"""
LOOK_WRITTEN = WAIT_WRITTEN[WAIT_WRITTEN.index("        if") :]
RESOLVE_ADDR = "    cm_id.resolve_addr(None, (host, port))\n"
RESOLVE_ROUTE = "    cm_id.resolve_route()\n"
CREATE_QP, CONNECT = "    cm_id.create_qp()\n", "    cm_id.connect()\n"
CHUNK = "        chunk = data[sent : sent + length]\n"
UNPACK = '        _, rkey, addr, length = struct.unpack("!IIQQ", answer)\n'
PIECES = "        for start in range(0, len(chunk), CHUNK_BYTES):\n"
PIECE = "            write(cm_id, chunk[start : start + CHUNK_BYTES], addr + start, rkey)\n"
COUNT = "        sent += len(chunk)\n"
ASK_DONE = '        answer = ask(cm_id, struct.pack("!I4xQ", DONE, len(chunk)))\n'
WHILE = "    while kind(answer) == REGION:\n"
DONE_LENGTH = '"!I4xQ", DONE, len(chunk)'
VERDICT = """\
    if kind(verdict) != VERDICT or not struct.unpack("!II", verdict)[1]:
        sys.exit("the receiver has other bytes than were announced")
"""
ASK_ID = '    answer = ask(cm_id, struct.pack("!I4x64s", ID, who.encode()))\n'
LOOK_KEY = """\
    if kind(answer) != KEY:
        sys.exit("the receiver gives no key")
"""
KEY = 'str(key.rstrip(b"\\0"), "ascii")'
PRINT = '    print("secret key:", secret_key(cm_id, verdict, args.id))\n'
DISCONNECT, DESTROY = "    cm_id.disconnect()\n", "    cm_id.destroy()\n"
HASH = "hashlib.sha256(data).digest()"
ANNOUNCEMENT = f'"!IIQ32s", ANNOUNCE, VERSION, len(data), {HASH}'
LOCAL = "from rnic import SGE, SendFlags, SendWR, WROpcode\n        "


def raw(opcode: str) -> str:
    """The file by another operation than an RDMA WRITE."""
    return (
        f"        {LOCAL}cm_id.qp.post_send(SendWR(0, WROpcode.{opcode}, SendFlags.SIGNALED, [SGE(memory)],"
        " remote_addr=addr, rkey=rkey, imm_data=7))\n"
    )


Change = tuple[str, str, str]  # in words, what is replaced, by what

CHANGES: dict[str, tuple[Change, ...]] = {
    "connect": (
        ("resolves the route before the address", RESOLVE_ADDR + RESOLVE_ROUTE, RESOLVE_ROUTE + RESOLVE_ADDR),
        (
            "makes the queue pair before the address is resolved",
            RESOLVE_ADDR + RESOLVE_ROUTE + CREATE_QP,
            CREATE_QP + RESOLVE_ADDR + RESOLVE_ROUTE,
        ),
        (
            "makes the queue pair before the route is resolved",
            RESOLVE_ROUTE + CREATE_QP,
            CREATE_QP + RESOLVE_ROUTE,
        ),
        ("connects before it has a queue pair", CREATE_QP + CONNECT, CONNECT + CREATE_QP),
        ("connects to the next port", "(host, port))", "(host, port + 1))"),
        ("returns no id", "    return cm_id\n", "    return None\n"),
        (
            "tries its requests once only",
            CONNECT,
            "    from rnic.rdmacm import ConnParam\n\n    cm_id.connect(ConnParam(retry_count=0))\n",
        ),
        (
            "lets the receiver try its SENDs once only",
            CONNECT,
            "    from rnic.rdmacm import ConnParam\n\n    cm_id.connect(ConnParam(rnr_retry_count=0))\n",
        ),
    ),
    "ask": (
        ("posts the receive after the SEND", RECEIVE + SEND, SEND + RECEIVE),
        (
            "posts the receive when the SEND has completed",
            RECEIVE + SEND + WAIT_SENT,
            SEND + WAIT_SENT + RECEIVE,
        ),
        ("posts two receives", RECEIVE, RECEIVE + RECEIVE),
        ("sends each message twice", SEND, SEND + SEND),
        (
            "sends from the memory of the answer",
            RECEIVE + SEND,
            "        cm_id.post_recv(out)\n        cm_id.post_send(into)\n",
        ),
        ("sends a byte less", "bytearray(question)", "bytearray(question[:-1])"),
        ("sends a byte more", "bytearray(question)", 'bytearray(question + b".")'),
        ("sends 128 bytes always", "bytearray(question)", "bytearray(question.ljust(MESSAGE_BYTES))"),
        ("does not wait for the SEND", WAIT_SENT, ""),
        ("does not look how the SEND ended", LOOK_SENT, ""),
        (
            "changes the message before the SEND has completed",
            SEND,
            SEND + "        out.buf[:] = bytes(len(question))\n",
        ),
        ("does not wait for the answer", WAIT_RECEIVED, "        return bytes(answer)\n"),
        (
            "waits for the answer before the SEND's completion",
            WAIT_SENT + WAIT_RECEIVED,
            WAIT_RECEIVED.replace("        return bytes(answer[: received.byte_len])\n", "")
            + WAIT_SENT
            + "        return bytes(answer[: received.byte_len])\n",
        ),
        ("does not look how the receive ended", LOOK_RECEIVED, ""),
        ("returns the whole buffer", "[: received.byte_len]", ""),
        ("returns a byte less", "received.byte_len]", "received.byte_len - 1]"),
        ("returns a byte more", "received.byte_len]", "received.byte_len + 1]"),
        ("has room for 64 bytes", "bytearray(MESSAGE_BYTES)", "bytearray(64)"),
        ("has room for 72 bytes", "bytearray(MESSAGE_BYTES)", "bytearray(72)"),
        ("has room for 4096 bytes", "bytearray(MESSAGE_BYTES)", "bytearray(4096)"),
        ("sends with immediate data", "post_send(out)", "post_send(out, imm_data=1)"),
        ("wants no completion for the SEND", "post_send(out)", "post_send(out, flags=0)"),
        (
            "sends inline",
            SEND,
            "        from rnic import SendFlags\n\n"
            "        cm_id.post_send(out, flags=SendFlags.SIGNALED | SendFlags.INLINE)\n",
        ),
        (
            "sends solicited",
            SEND,
            "        from rnic import SendFlags\n\n"
            "        cm_id.post_send(out, flags=SendFlags.SIGNALED | SendFlags.SOLICITED)\n",
        ),
    ),
    "announcement": (
        ("in little-endian byte order", '"!IIQ32s"', '"<IIQ32s"'),
        ("in host byte order with padding", '"!IIQ32s"', '"@IIQ32s"'),
        ("type and version are swapped", "ANNOUNCE, VERSION, len", "VERSION, ANNOUNCE, len"),
        ("has the type of DONE", "ANNOUNCE, VERSION, len", "DONE, VERSION, len"),
        ("has an unknown type", "ANNOUNCE, VERSION, len", "77, VERSION, len"),
        ("is of version 2", "ANNOUNCE, VERSION, len", "ANNOUNCE, 2, len"),
        ("has one byte more than the file", "VERSION, len(data),", "VERSION, len(data) + 1,"),
        ("has one byte less than the file", "VERSION, len(data),", "VERSION, max(len(data) - 1, 0),"),
        ("has no length", "VERSION, len(data),", "VERSION, 0,"),
        ("has the length in bits", "VERSION, len(data),", "VERSION, 8 * len(data),"),
        ("has the file's length negated", "VERSION, len(data),", "VERSION, 2**64 - 1 - len(data),"),
        ("has the MD5", HASH, "hashlib.md5(data).digest()"),
        ("has the SHA-1", HASH, "hashlib.sha1(data).digest()"),
        ("has the SHA3-256", HASH, "hashlib.sha3_256(data).digest()"),
        ("has half of the hash in hexadecimal", HASH, "hashlib.sha256(data).hexdigest().encode()"),
        ("has the hash of nothing", HASH, "hashlib.sha256().digest()"),
        ("has the hash of all bytes but the last", HASH, "hashlib.sha256(data[:-1]).digest()"),
        ("has the hash backwards", HASH, "hashlib.sha256(data).digest()[::-1]"),
        ("has no hash", HASH, 'b""'),
        ("has 31 bytes of hash", '"!IIQ32s"', '"!IIQ31sx"'),
        ("is a byte shorter", '"!IIQ32s"', '"!IIQ31s"'),
        ("is a byte longer", '"!IIQ32s"', '"!IIQ32sx"'),
        ("has a length of 32 bits", '"!IIQ32s"', '"!III32s"'),
        ("has fields in another order", ANNOUNCEMENT, f'"!IQI32s", ANNOUNCE, len(data), VERSION, {HASH}'),
    ),
    "write": (
        ("to the byte behind the address", "remote_addr=addr,", "remote_addr=addr + 1,"),
        ("to the byte before the address", "remote_addr=addr,", "remote_addr=addr - 1,"),
        ("to address 0", "remote_addr=addr,", "remote_addr=0,"),
        ("with a wrong key", "rkey=rkey)", "rkey=rkey ^ 0x100)"),
        ("with the next key", "rkey=rkey)", "rkey=rkey + 1)"),
        ("with key 0", "rkey=rkey)", "rkey=0)"),
        ("with the key of its own memory", "rkey=rkey)", "rkey=memory.rkey)"),
        (
            "with address and key swapped",
            "remote_addr=addr, rkey=rkey",
            "remote_addr=rkey, rkey=addr & 0xFFFFFFFF",
        ),
        ("one byte less", "bytearray(part)", 'bytearray(part[:-1] or b"?")'),
        ("one byte more", "bytearray(part)", 'bytearray(part + b".")'),
        ("backwards", "bytearray(part)", "bytearray(part[::-1])"),
        ("with the last byte wrong", "bytearray(part)", "bytearray(part[:-1] + bytes([part[-1] ^ 1]))"),
        ("zeros", "bytearray(part)", "bytearray(len(part))"),
        ("twice, with one wait", POST_WRITE, POST_WRITE + POST_WRITE),
        ("twice, with two waits", POST_WRITE + WAIT_WRITTEN, (POST_WRITE + WAIT_WRITTEN) * 2),
        ("does not wait for the completion", WAIT_WRITTEN, ""),
        ("does not look how it ended", LOOK_WRITTEN, ""),
        (
            "changes the memory before the completion",
            POST_WRITE,
            POST_WRITE + "        memory.buf[:] = bytes(len(part))\n",
        ),
        ("by RDMA READ", "post_write(", "post_read("),
        ("by SEND", "post_write(memory, remote_addr=addr, rkey=rkey)", "post_send(memory)"),
        ("by RDMA WRITE with immediate data", POST_WRITE, raw("RDMA_WRITE_WITH_IMM")),
        ("without a completion", "rkey=rkey)\n        written", "rkey=rkey, flags=0)\n        written"),
    ),
    "transfer": (
        ("every piece goes to the start of the region", "addr + start, rkey)", "addr, rkey)"),
        ("every piece goes to its place in the file", "addr + start, rkey)", "addr + sent + start, rkey)"),
        ("every piece goes one byte too far", "addr + start, rkey)", "addr + start + 1, rkey)"),
        (
            "pieces but the first go one byte too far",
            "addr + start, rkey)",
            "addr + start + (start > 0), rkey)",
        ),
        (
            "pieces but the first go one byte too near",
            "addr + start, rkey)",
            "addr + start - (start > 0), rkey)",
        ),
        ("the first chunk is written each time", CHUNK, "        chunk = data[:length]\n"),
        ("a chunk is all that is left", CHUNK, "        chunk = data[sent:]\n"),
        (
            "a chunk has one byte less than the region",
            CHUNK,
            "        chunk = data[sent : sent + length - 1]\n",
        ),
        (
            "a chunk has one byte more than the region",
            CHUNK,
            "        chunk = data[sent : sent + length + 1]\n",
        ),
        (
            "a chunk has at most one piece",
            CHUNK,
            "        chunk = data[sent : sent + min(length, CHUNK_BYTES)]\n",
        ),
        ("a chunk has at most 64 KiB", CHUNK, "        chunk = data[sent : sent + min(length, 65536)]\n"),
        (
            "a chunk has whole pages only",
            CHUNK,
            "        chunk = data[sent : sent + length - (len(data) - sent) % 4096]\n",
        ),
        (
            "the first REGION is used for all chunks",
            WHILE + UNPACK,
            '    _, rkey, addr, length = struct.unpack("!IIQQ", answer)\n' + WHILE,
        ),
        (
            "the first REGION's key is used for all chunks",
            UNPACK,
            UNPACK + "        rkey = first = rkey if not sent else first\n",
        ),
        (
            "the first REGION's address is used for all chunks",
            UNPACK,
            UNPACK + "        addr = first = addr if not sent else first\n",
        ),
        (
            "the first REGION's length is used for all chunks",
            UNPACK,
            UNPACK + "        length = first = length if not sent else first\n",
        ),
        ("REGION in little-endian byte order", '"!IIQQ"', '"<IIQQ"'),
        ("REGION's address and length are swapped", "_, rkey, addr, length =", "_, rkey, length, addr ="),
        ("REGION's type is taken for the key", "_, rkey, addr, length =", "rkey, _, addr, length ="),
        ("pieces begin one byte apart too far", "len(chunk), CHUNK_BYTES)", "len(chunk), CHUNK_BYTES + 1)"),
        ("pieces begin one byte apart too near", "len(chunk), CHUNK_BYTES)", "len(chunk), CHUNK_BYTES - 1)"),
        ("pieces end one byte early", "start + CHUNK_BYTES]", "start + CHUNK_BYTES - 1]"),
        ("pieces end one byte late", "start + CHUNK_BYTES]", "start + CHUNK_BYTES + 1]"),
        ("the last piece is left out if it has one byte", "range(0, len(chunk),", "range(0, len(chunk) - 1,"),
        ("an empty piece comes last", "range(0, len(chunk),", "range(0, len(chunk) + 1,"),
        ("the first piece is left out", "range(0, len(chunk),", "range(CHUNK_BYTES, len(chunk),"),
        ("only one piece is written", PIECE, PIECE + "            break\n"),
        (
            "the last piece is written first",
            "in range(0, len(chunk), CHUNK_BYTES):",
            "in reversed(range(0, len(chunk), CHUNK_BYTES)):",
        ),
        ("DONE before the bytes", PIECES + PIECE + COUNT + ASK_DONE, ASK_DONE + PIECES + PIECE + COUNT),
        (
            "DONE after each piece",
            PIECE + COUNT + ASK_DONE,
            PIECE + "    " + ASK_DONE.replace("len(chunk)", "min(CHUNK_BYTES, len(chunk) - start)") + COUNT,
        ),
        ("no DONE for an empty file", WHILE, "    while kind(answer) == REGION and data:\n"),
        (
            "no DONE for the last chunk",
            ASK_DONE,
            "        if sent == len(data):\n            break\n" + ASK_DONE,
        ),
        ("DONE has the file's length", DONE_LENGTH, '"!I4xQ", DONE, len(data)'),
        ("DONE has the bytes so far", DONE_LENGTH, '"!I4xQ", DONE, sent'),
        ("DONE has the region's length", DONE_LENGTH, '"!I4xQ", DONE, length'),
        ("DONE has one byte more", DONE_LENGTH, '"!I4xQ", DONE, len(chunk) + 1'),
        ("DONE has one byte less", DONE_LENGTH, '"!I4xQ", DONE, max(len(chunk) - 1, 0)'),
        ("DONE has no length", DONE_LENGTH, '"!I4xQ", DONE, 0'),
        ("DONE in little-endian byte order", DONE_LENGTH, '"<I4xQ", DONE, len(chunk)'),
        ("DONE without its reserved field", DONE_LENGTH, '"!IQ", DONE, len(chunk)'),
        ("DONE has a length of 32 bits", DONE_LENGTH, '"!I4xI", DONE, len(chunk)'),
        ("DONE has something in its reserved field", DONE_LENGTH, '"!IIQ", DONE, 7, len(chunk)'),
        ("DONE has the type of ID", DONE_LENGTH, '"!I4xQ", ID, len(chunk)'),
        ("DONE is sent again", ASK_DONE, ASK_DONE + ASK_DONE),
        ("ends after one REGION", WHILE, "    if kind(answer) == REGION:\n"),
        ("ends when all bytes are sent", WHILE, "    while sent < len(data):\n"),
        ("goes on as long as there is an answer", WHILE, "    while answer:\n"),
        (
            "announces twice",
            "    answer = ask(cm_id, announcement(data))\n",
            "    answer = ask(cm_id, announcement(data))\n" * 2,
        ),
        (
            "announces nothing",
            "    answer = ask(cm_id, announcement(data))\n",
            '    answer = struct.pack("!IIQQ", REGION, 1, 1 << 20, 1 << 20)\n',
        ),
        (
            "writes nothing but the first chunk",
            PIECES,
            "        for start in range(0, len(chunk) * (not sent), CHUNK_BYTES):\n",
        ),
    ),
    "secret_key": (
        ("does not look at the verdict", VERDICT, ""),
        ("looks only whether it is a verdict", ' or not struct.unpack("!II", verdict)[1]:', ":"),
        ("looks only whether the verdict is good", "kind(verdict) != VERDICT or not struct", "not struct"),
        (
            "ends with exit code 0 when the verdict is bad",
            'sys.exit("the receiver has other bytes than were announced")',
            "sys.exit()",
        ),
        (
            "says that the verdict is bad, and goes on",
            'sys.exit("the receiver has other bytes than were announced")',
            'print("bad")',
        ),
        (
            "has a key when the verdict is bad",
            'sys.exit("the receiver has other bytes than were announced")',
            'return "0" * 32',
        ),
        ("sends another id", "who.encode()", '"eve".encode()'),
        ("sends an empty id", "who.encode()", 'b""'),
        ("sends the id without its last byte", "who.encode()", "who.encode()[:-1]"),
        ("sends the id with a newline", "who.encode()", '(who + "\\n").encode()'),
        ("sends the id with spaces behind it", "who.encode()", "who.encode().ljust(64)"),
        ("sends the id in capitals", "who.encode()", "who.upper().encode()"),
        ("sends the id in UTF-16", "who.encode()", 'who.encode("utf-16")'),
        ("sends an id that is no UTF-8", "who.encode()", 'b"\\xff" + who.encode()'),
        ("sends the id without zeros behind it", '"!I4x64s", ID, who', 'f"!I4x{len(who)}s", ID, who'),
        ("sends the id with 72 bytes of room", '"!I4x64s", ID, who', '"!I4x72s", ID, who'),
        ("sends the id without the reserved field", '"!I4x64s", ID, who', '"!I64s", ID, who'),
        ("sends ID in little-endian byte order", '"!I4x64s", ID, who', '"<I4x64s", ID, who'),
        ("ID has the type of KEY", '"!I4x64s", ID, who', '"!I4x64s", KEY, who'),
        ("ID has the type of DONE", '"!I4x64s", ID, who', '"!I4x64s", DONE, who'),
        ("sends its id twice", ASK_ID, ASK_ID + ASK_ID),
        ("does not look whether it is a key", LOOK_KEY, ""),
        ("ends with exit code 0 when there is no key", 'sys.exit("the receiver gives no key")', "sys.exit()"),
        ("leaves the zeros behind the key", KEY, 'str(key, "ascii")'),
        ("cuts the key's first digit", KEY, KEY + "[1:]"),
        ("cuts the key's last digit", KEY, KEY + "[:-1]"),
        ("gives the key in capitals", KEY, KEY + ".upper()"),
        ("gives the key as Python shows bytes", KEY, 'repr(key.rstrip(b"\\0"))'),
        ("gives the id for a key", KEY, "who"),
    ),
    "main": (
        ("prints no key", PRINT, PRINT.replace('print("secret key:", ', "str(")),
        ("prints the key without a colon", '"secret key:"', '"secret key"'),
        ("prints another word", '"secret key:"', '"key:"'),
        ("prints the key to stderr", "args.id))\n", "args.id), file=sys.stderr)\n"),
        ("disconnects before it says its id", PRINT, DISCONNECT + PRINT),
        (
            "disconnects before it prints the key",
            PRINT + "    # TODO 7",
            "    key = secret_key(cm_id, verdict, args.id)\n"
            + DISCONNECT
            + '    print("secret key:", key)\n    # TODO 7',
        ),
        ("destroys the id and disconnects then", DISCONNECT + DESTROY, DESTROY + DISCONNECT),
        ("disconnects twice", DISCONNECT, DISCONNECT + DISCONNECT),
        ("dies instead of a disconnect", DISCONNECT + DESTROY, "    import os\n\n    os._exit(0)\n"),
        ("ends with exit code 1", DESTROY, DESTROY + "    sys.exit(1)\n"),
        ("ends by a signal", DESTROY, DESTROY + "    import os\n\n    os.abort()\n"),
        (
            "reads the file as text",
            "args.file.read_bytes()",
            'args.file.read_text(errors="replace").encode()',
        ),
        ("leaves out the file's last byte", "args.file.read_bytes()", "args.file.read_bytes()[:-1]"),
        ("takes the id from another place", "verdict, args.id)", "verdict, args.host)"),
        ("connects to the usual port always", "connect(args.host, args.port)", "connect(args.host, 7471)"),
    ),
}
