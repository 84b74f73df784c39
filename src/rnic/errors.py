# SPDX-License-Identifier: Apache-2.0
"""The exceptions of verbs, and explanations of completions with an error status."""

import errno as _errno
import os
import resource
from typing import Any

from rnic.enums import WCStatus

__all__ = ["PostError", "VerbsError", "exhausted", "explain_completion", "with_limit"]


def with_limit(code: int, text: str) -> str:
    """The text of an error; if descriptors are used up, with the limit that was reached."""
    if code == _errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        cure = f"RLIMIT_NOFILE is {limit} (ulimit -n)"
    elif code == _errno.ENFILE:
        cure = "of the whole machine, /proc/sys/fs/file-max"
    else:
        return text
    return text if cure in text else f"{text or os.strerror(code)}: {cure}"


def exhausted(error: BaseException | int) -> str:
    """The text of an error, with the limit of the process or the machine that was reached."""
    code = error if isinstance(error, int) else getattr(error, "errno", None)
    text = os.strerror(error) if isinstance(error, int) else str(error) or type(error).__name__
    if code in (_errno.EMFILE, _errno.ENFILE):
        return with_limit(code, text)
    if code == _errno.ENOMEM or isinstance(error, MemoryError):
        return f"{text}: see RLIMIT_AS (ulimit -v), the control group's memory and vm.max_map_count"
    if isinstance(error, RuntimeError):  # threading.Thread.start()
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        limits = f"RLIMIT_NPROC (ulimit -u, {limit}), the control group's pids.max and RLIMIT_AS (ulimit -v)"
        return f"{text}: see {limits}"
    return text


class VerbsError(OSError):
    """A verb failed: `errno` says how, `verb` which one, and `strerror` why, in words.

    It is raised where the function of libibverbs would return an error, with the errno of its man page.
    """

    verb: str

    def __init__(self, errno: int, text: str = "", verb: str = "") -> None:
        super().__init__(errno, text or os.strerror(errno))
        self.verb = verb

    def __str__(self) -> str:
        name = _errno.errorcode.get(self.errno or 0, f"errno {self.errno}")
        return f"{self.verb}: {self.strerror} [{name}]" if self.verb else f"{self.strerror} [{name}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno, self.strerror, self.verb)


class PostError(VerbsError):
    """A chain was posted only in part: the requests before `bad_wr` were posted, it and those after it were
    not (ibv_post_send(3)).
    """

    bad_wr: Any
    """The SendWR or RecvWR that was refused."""
    index: int
    """Its place in the chain, counted from 0, which is the number of posted requests."""

    def __init__(
        self, errno: int, text: str = "", verb: str = "", bad_wr: Any = None, index: int = 0
    ) -> None:
        super().__init__(errno, text, verb)
        self.bad_wr = bad_wr
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errno, self.strerror, self.verb, None, self.index)


# Which side, what happened, what to look at.  IBA 11.6.2 and ibv_poll_cq(3) define the statuses.
_STATUS_TEXT: dict[WCStatus, tuple[str, str, str]] = {
    WCStatus.LOC_LEN_ERR: (
        "local side",
        "the message is longer than the posted receive buffer, or than the port can send",
        "compare its size with the lengths in the receive's sg_list, and with PortAttr.max_msg_sz",
    ),
    WCStatus.LOC_QP_OP_ERR: (
        "local side",
        "the queue pair could not carry out the request",
        "check opcode, flags, max_rd_atomic and the other attributes of the move to RTS",
    ),
    WCStatus.LOC_EEC_OP_ERR: (
        "local side",
        "an end-to-end context could not carry out the request",
        "reliable datagrams are not supported by any device: suspect the provider",
    ),
    WCStatus.LOC_PROT_ERR: (
        "local side",
        "an SGE does not name memory that this queue pair may use for the request",
        "check lkey, addr and length of every SGE: is its MR still registered, in the queue pair's PD, and "
        "with LOCAL_WRITE if data arrives there (receives, READ, atomics)?",
    ),
    WCStatus.WR_FLUSH_ERR: (
        "local side",
        "the request was not carried out, because the queue pair was in the error state",
        "this is a consequence: look at the first completion that is neither SUCCESS nor WR_FLUSH_ERR, at "
        "the peer, at get_async_event(), and of iWARP at Context.next_stream_event() or CmId.stream_end",
    ),
    WCStatus.MW_BIND_ERR: (
        "local side",
        "a memory window was not bound",
        "the MR needs MW_BIND and at least the window's rights, and must contain its range",
    ),
    WCStatus.BAD_RESP_ERR: (
        "remote side",
        "the peer's answer does not belong to the request",
        "suspect the peer's implementation; capture the packets and compare opcode, PSN and length",
    ),
    WCStatus.LOC_ACCESS_ERR: (
        "local side",
        "a peer's RDMA WRITE WITH IMMEDIATE named memory that it may not write",
        "check rights and range of the MR here that the peer's rkey names",
    ),
    WCStatus.REM_INV_REQ_ERR: (
        "remote side",
        "the peer calls the request invalid",
        "is its receive buffer long enough? does its queue pair allow the operation (qp_access_flags, "
        "max_dest_rd_atomic)? is an atomic's address a multiple of 8? is the path MTU the same at both ends?",
    ),
    WCStatus.REM_ACCESS_ERR: (
        "remote side",
        "the peer refuses access to the memory",
        "compare rkey, remote_addr and length with the peer's MR, its access flags and its PD; "
        "is it still registered?",
    ),
    WCStatus.REM_OP_ERR: (
        "remote side",
        "the peer could not complete the operation, for a reason of its own",
        "look at the peer's completions and its get_async_event(): its queue pair is in the error state too",
    ),
    WCStatus.RETRY_EXC_ERR: (
        "remote side or the path",
        "the peer did not acknowledge the request, however often it was sent",
        "is the peer's process alive, and its queue pair in RTR or RTS? do dest_qp_num, dgid and PSNs match "
        "at both ends? does the firewall let UDP port 4791 pass? does a drop_ counter grow? does tx_too_long "
        "grow (then set a smaller path_mtu)?",
    ),
    WCStatus.RNR_RETRY_EXC_ERR: (
        "remote side",
        "the peer had no receive posted, however often it was asked",
        "post receives there before you send here, or raise rnr_retry (7: no end) or its min_rnr_timer",
    ),
    WCStatus.LOC_RDD_VIOL_ERR: (
        "local side",
        "the reliable datagram domains do not match",
        "reliable datagrams are not supported by any device: suspect the provider",
    ),
    WCStatus.REM_INV_RD_REQ_ERR: (
        "remote side",
        "the peer calls the reliable datagram invalid",
        "reliable datagrams are not supported by any device: suspect the provider",
    ),
    WCStatus.REM_ABORT_ERR: (
        "remote side",
        "the peer ended the operation",
        "look at what the peer did with its queue pair",
    ),
    WCStatus.INV_EECN_ERR: (
        "local side",
        "there is no such end-to-end context",
        "reliable datagrams are not supported by any device: suspect the provider",
    ),
    WCStatus.INV_EEC_STATE_ERR: (
        "local side",
        "the end-to-end context is in the wrong state",
        "reliable datagrams are not supported by any device: suspect the provider",
    ),
    WCStatus.FATAL_ERR: (
        "local side",
        "the device failed",
        "look at get_async_event(); the context has to be opened again",
    ),
    WCStatus.RESP_TIMEOUT_ERR: (
        "remote side",
        "the peer's answer came too late",
        "look at the peer's load and at the timeout",
    ),
    WCStatus.GENERAL_ERR: (
        "local side",
        "something failed for which there is no status of its own",
        "only vendor_err says more",
    ),
    WCStatus.TM_ERR: (
        "local side",
        "tag matching failed",
        "the tag list is full, or the tag was unknown",
    ),
    WCStatus.TM_RNDV_INCOMPLETE: (
        "local side",
        "the rendezvous data has to be fetched by software",
        "READ the data from the peer in the program, then tell the peer",
    ),
}

# The same for statuses that mean something else on iWARP, which has no retries: by RNIC_VENDOR_ERRS' name.
_CAUSE_TEXT: dict[str, tuple[str, str, str]] = {
    "STREAM_LOST": (
        "remote side or the path",
        "the TCP connection was lost, and nobody knows how much of the request the peer has",
        "is the peer's process alive, and its host? does a firewall or NAT on the way forget idle "
        "connections? Context.next_stream_event() or CmId.stream_end has TCP's errno",
    ),
    "PEER_NO_RECEIVE": (
        "remote side",
        "the peer had no receive posted for a SEND; iWARP does not send it again",
        "post receives there before you send here; let the peer tell how many there are",
    ),
}


def explain_completion(status: int, cause: tuple[str, str], qp_num: int, wr_id: int) -> str:
    """One completion in words: what went wrong, on which side, and what to check.

    `cause` is the provider's own reason (vendor_err): its name in RNIC_VENDOR_ERRS and its text, or "", "".
    """
    head = f"wr_id {wr_id} on QP 0x{qp_num:06x}"
    if status == WCStatus.SUCCESS:
        return f"{head}: completed"
    if status not in _STATUS_TEXT:
        return f"{head}: status {status}, which rnic does not know"
    known = WCStatus(status)
    name, text = cause
    side, what, look = _CAUSE_TEXT.get(name, _STATUS_TEXT[known])
    reason = f" ({text})" if text else ""
    return f"{head}: {known.name}, {side}: {what}{reason}. Look here: {look}"
