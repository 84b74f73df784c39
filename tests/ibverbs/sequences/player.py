# SPDX-License-Identifier: Apache-2.0
"""Carries out a script by rnic's Python API, and gives the lines of results that play.c prints.

An exception that is no VerbsError is "V" and its words: Python refuses a value before a verb sees it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import rnic
from rnic import QPAttr, QPAttrMask, QPState, WCStatus, WROpcode

SLOTS, BYTES, PATIENCE = 8, 1 << 14, 60
RECEIVE = 1 << 40
M = QPAttrMask
MASKS = {
    "cur_qp_state": M.CUR_STATE,
    "pkey_index": M.PKEY_INDEX,
    "port_num": M.PORT,
    "qp_access_flags": M.ACCESS_FLAGS,
    "path_mtu": M.PATH_MTU,
    "dest_qp_num": M.DEST_QPN,
    "rq_psn": M.RQ_PSN,
    "sq_psn": M.SQ_PSN,
    "max_rd_atomic": M.MAX_QP_RD_ATOMIC,
    "max_dest_rd_atomic": M.MAX_DEST_RD_ATOMIC,
    "min_rnr_timer": M.MIN_RNR_TIMER,
    "timeout": M.TIMEOUT,
    "retry_cnt": M.RETRY_CNT,
    "rnr_retry": M.RNR_RETRY,
}
ATOMICS = (WROpcode.ATOMIC_CMP_AND_SWP, WROpcode.ATOMIC_FETCH_AND_ADD)
MEMORY = [(ctypes.c_uint8 * BYTES)() for _ in range(SLOTS)]


class StuckError(AssertionError):
    """Work that does not complete."""


class Player:
    """One sequence, on a context of its own."""

    def __init__(self, device: str) -> None:
        self.context = rnic.open_device(device)
        self.made: dict[str, dict[int, Any]] = {k: {} for k in ("pd", "mr", "cq", "srq", "qp", "ah")}
        self.stash: dict[int, list[rnic.WC]] = {slot: [] for slot in range(SLOTS)}
        self.sends, self.receives = [0] * SLOTS, [0] * SLOTS
        self.line = 0
        for slot, buffer in enumerate(MEMORY):
            ctypes.memmove(buffer, bytes((slot * 37 + j) & 0xFF for j in range(256)) * (BYTES // 256), BYTES)

    def play(self, text: str) -> str:
        """The result of a line."""
        self.line += 1
        word, *words = text.split()
        numbers = map(int, words)
        try:
            found = self.end(word[:-1], *numbers) if word.endswith("-") else WORDS[word](self, *numbers)
            return " ".join(map(str, ["ok", *found]))
        except KeyError:
            return "absent"
        except FileExistsError:
            return "taken"
        except rnic.VerbsError as error:
            return f"E{error.errno}"
        except (ValueError, TypeError, OverflowError) as error:
            return f"V {error}"

    def close(self) -> None:
        """Destroy what is left, in an order that is possible."""
        for kind in ("qp", "srq", "ah", "mr", "cq", "pd"):
            for one in self.made[kind].values():
                one.close()
        self.context.close()

    # ------------------------------------------------------------------ objects

    def free(self, kind: str, slot: int) -> None:
        if slot in self.made[kind]:
            raise FileExistsError

    def keep(self, kind: str, slot: int, make: Callable[[], Any]) -> tuple[()]:
        self.free(kind, slot)
        self.made[kind][slot] = make()
        return ()

    def end(self, kind: str, slot: int) -> tuple[()]:
        self.made[kind][slot].close()
        del self.made[kind][slot]
        return ()

    def pd(self, slot: int) -> tuple[()]:
        return self.keep("pd", slot, self.context.alloc_pd)

    def mr(self, slot: int, pd: int, length: int, access: int) -> tuple[()]:
        domain = self.made["pd"][pd]
        return self.keep("mr", slot, lambda: domain.reg_mr(addr=at(slot, 0), length=length, access=access))

    def cq(self, slot: int, cqe: int) -> tuple[()]:
        return self.keep("cq", slot, lambda: self.context.create_cq(cqe))

    def cq_resize(self, slot: int, cqe: int) -> tuple[int]:
        cq = self.made["cq"][slot]
        cq.resize(cqe)
        return (cq.cqe,)

    def srq(self, slot: int, pd: int, wr: int, sge: int) -> tuple[()]:
        domain = self.made["pd"][pd]
        attr = rnic.SRQInitAttr(attr=rnic.SRQAttr(max_wr=wr, max_sge=sge))
        return self.keep("srq", slot, lambda: domain.create_srq(attr))

    def srq_modify(self, slot: int, mask: int, wr: int, limit: int) -> tuple[()]:
        self.made["srq"][slot].modify(rnic.SRQAttr(max_wr=wr, srq_limit=limit), mask)
        return ()

    def srq_query(self, slot: int) -> tuple[Any, ...]:
        attr = self.made["srq"][slot].query()
        return attr.max_wr, attr.max_sge, attr.srq_limit

    def ah(self, slot: int, pd: int, gid_index: int, port: int) -> tuple[()]:
        domain = self.made["pd"][pd]
        return self.keep("ah", slot, lambda: domain.create_ah(self.path(gid_index, port)))

    def path(self, gid_index: int, port: int) -> rnic.AHAttr:
        return rnic.AHAttr(self.context.query_gid(1, 0), sgid_index=gid_index, hop_limit=1, port_num=port)

    # ------------------------------------------------------------------ queue pairs

    def qp(
        self, slot: int, kind: int, pd: int, send: int, receive: int, srq: int, *more: int
    ) -> tuple[int, ...]:
        domain = self.made["pd"][pd]
        cqs, srqs = self.made["cq"] | {-1: None}, self.made["srq"] | {-1: None}
        init = rnic.QPInitAttr(send_cq=cqs[send], recv_cq=cqs[receive], qp_type=kind, srq=srqs[srq])  # type: ignore[arg-type]
        init.sq_sig_all, init.cap = bool(more[5]), rnic.QPCap(*more[:5])
        self.free("qp", slot)
        self.sends[slot] = self.receives[slot] = 0
        made = self.made["qp"][slot] = domain.create_qp(init)
        return caps(made.cap)

    def modify(self, slot: int, mask: int, state: int, *more: int) -> tuple[()]:
        qp = self.made["qp"][slot]
        cur, pkey, port, access, mtu, peer, rq, sq, rd, dest, timer, timeout, retry, rnr, gid, qkey = more
        number = self.made["qp"][peer].qp_num if peer in self.made["qp"] else 0xFFFFFF
        values = (cur, pkey, port, access, mtu, number, rq, sq, rd, dest, timer, timeout, retry, rnr)
        given = dict(zip(MASKS, values, strict=True))
        attr = QPAttr(**{name: given[name] for name in MASKS if mask & MASKS[name]})  # type: ignore[arg-type]
        if mask & M.STATE:
            attr.qp_state = state  # type: ignore[assignment]
        if mask & M.AV:
            attr.ah_attr = self.path(gid, 1)
        if mask & M.QKEY:
            attr.qkey = qkey
        self.settle()
        qp.modify(attr)
        if mask & M.STATE and state == QPState.RESET:
            self.sends[slot] = self.receives[slot] = 0
        self.settle()
        return ()

    def query(self, slot: int) -> tuple[Any, ...]:
        qp = self.made["qp"][slot]
        self.settle()
        attr, init = qp.query()
        names = ("qp_state", "pkey_index", "port_num", "qp_access_flags", "path_mtu", "max_rd_atomic")
        more = ("max_dest_rd_atomic", "min_rnr_timer", "timeout", "retry_cnt", "rnr_retry")
        values = [int(getattr(attr, name) or 0) for name in (*names, *more)]
        return (*caps(init.cap), *values, f"{attr.qkey or 0:x}")

    # ------------------------------------------------------------------ work

    def elements(self, m: int, offset: int, length: int, n: int, key: int) -> list[rnic.SGE]:
        lkey = (self.made["mr"][m].lkey + key) & 0xFFFFFFFF
        return [rnic.SGE(addr=at(m, offset + i * length), length=length, lkey=lkey) for i in range(n)]

    def send(self, slot: int, opcode: int, flags: int, *more: int) -> tuple[()]:
        qp = self.made["qp"][slot]
        sges = self.elements(*more[:5])
        there, place, key = more[5:]
        wr = rnic.SendWR(slot << 32 | self.line, opcode, flags, sges)
        wr.imm_data = self.line
        if qp.qp_type is rnic.QPType.UD:
            wr.ah, wr.remote_qpn, wr.remote_qkey = self.made["ah"][there], place, key
        else:
            base = self.made["mr"][there].rkey if there in self.made["mr"] else 0
            wr.remote_addr, wr.rkey = at(there, place), (base + key) & 0xFFFFFFFF
            if opcode in ATOMICS:
                wr.compare_add, wr.swap = 1, 7
        try:
            qp.post_send(wr)
            self.sends[slot] += 1
        finally:
            self.settle()
        return ()

    def receive(self, slot: int, *more: int) -> tuple[()]:
        qp = self.made["qp"][slot]
        wr = rnic.RecvWR(RECEIVE | slot << 32 | self.line, self.elements(*more))
        try:
            qp.post_recv(wr)
            self.receives[slot] += 1
        finally:
            self.settle()
        return ()

    def srq_receive(self, slot: int, *more: int) -> tuple[()]:
        srq = self.made["srq"][slot]
        srq.post_recv(rnic.RecvWR(RECEIVE | (SLOTS | slot) << 32 | self.line, self.elements(*more)))
        return ()

    def poll(self, slot: int) -> Iterator[str]:
        assert self.made["cq"][slot]
        self.settle()
        found, self.stash[slot] = sorted(self.stash[slot], key=lambda wc: wc.wr_id >> 32), []
        return map(shown, found)

    def sum(self, slot: int) -> tuple[int]:
        total = 0
        for byte in bytes(MEMORY[slot]):
            total = (total * 31 + byte) & 0xFFFFFFFF
        return (total,)

    # ------------------------------------------------------------------ waiting

    def settle(self) -> None:
        """Wait until all has completed that will."""
        limit = time.monotonic() + PATIENCE
        while not self.is_quiet():
            if time.monotonic() > limit:
                raise StuckError(f"line {self.line}")

    def is_quiet(self) -> bool:
        quiet = True
        for slot, qp in self.made["qp"].items():
            state = qp.query()[0].qp_state if self.sends[slot] or self.receives[slot] else None
            if self.sends[slot] and state in (QPState.ERR, QPState.RTS):
                quiet = False
            if self.receives[slot] and state is QPState.ERR and qp.srq is None:
                quiet = False
        for slot, cq in self.made["cq"].items():
            self.take(slot, cq.poll(64))
        return quiet

    def take(self, slot: int, found: Iterable[rnic.WC]) -> None:
        for wc in found:
            self.stash[slot].append(wc)
            pending = self.receives if wc.wr_id & RECEIVE else self.sends
            if (wc.wr_id >> 32) & 0xFF < SLOTS:
                pending[(wc.wr_id >> 32) & 0xFF] -= 1


def at(slot: int, offset: int) -> int:
    """An address in a buffer."""
    return ctypes.addressof(MEMORY[slot]) + offset


def caps(cap: rnic.QPCap) -> tuple[int, ...]:
    return cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data


def shown(wc: rnic.WC) -> str:
    """A completion."""
    words = [wc.wr_id, int(wc.status)]
    if wc.status is WCStatus.SUCCESS:
        words.append(int(wc.opcode))
        if wc.wr_id & RECEIVE:
            return ":".join(map(str, [*words, wc.byte_len, int(wc.wc_flags), f"{wc.imm_data or 0:x}"]))
    return ":".join(map(str, words))


ROWS: list[tuple[str, Callable[..., Iterable[Any]]]] = [
    *(("pd", Player.pd), ("mr", Player.mr), ("cq", Player.cq), ("cq=", Player.cq_resize)),
    *(("srq", Player.srq), ("srq=", Player.srq_modify), ("srq?", Player.srq_query), ("ah", Player.ah)),
    *(("qp", Player.qp), ("qp=", Player.modify), ("qp?", Player.query), ("send", Player.send)),
    *(("recv", Player.receive), ("srecv", Player.srq_receive), ("poll", Player.poll), ("sum", Player.sum)),
]
WORDS = dict(ROWS)
