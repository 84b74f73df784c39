# SPDX-License-Identifier: Apache-2.0
"""What a fork, the interpreter's end and Ctrl-C do to open objects: nothing bad."""

from __future__ import annotations

import signal

import pytest

from lifetime.scripts import end, run, start

IN_CHILD = """
things = objects()
ctx, pd, channel, cq, mr, a, b = things
mr.buf[:5] = b"hello"

def refused(call):
    try:
        call()
    except VerbsError as error:
        return error.errno == 22 and "fork" in str(error)
    return False

def in_child():
    calls = {
        "alloc_pd": ctx.alloc_pd, "create_cq": lambda: ctx.create_cq(8),
        "create_comp_channel": ctx.create_comp_channel, "counters": ctx.counters,
        "set_faults": lambda: ctx.set_faults(Faults()),
        "async_event": lambda: ctx.get_async_event(0), "alloc_mr": lambda: pd.alloc_mr(64, 0),
        "reg_mr": lambda: pd.reg_mr(bytearray(8), 0),
        "create_qp": lambda: pd.create_qp(QPInitAttr(cq, cq)), "cq_event": lambda: channel.get_cq_event(0),
        "poll": cq.poll, "req_notify": cq.req_notify, "ack_events": lambda: cq.ack_events(0),
        "resize": lambda: cq.resize(128), "modify": lambda: a.modify(QPAttr(qp_state=QPState.ERR)),
        "query": a.query, "state": lambda: a.state, "statistics": a.statistics,
        "post_send": lambda: a.post_send(write(mr)), "post_recv": lambda: a.post_recv(RecvWR(1, [SGE(mr)])),
    }
    bad = [name for name, call in calls.items() if not refused(call)]
    assert not bad, bad
"""


def test_a_forked_child_is_told_so_by_every_verb_and_the_parent_works_on() -> None:
    ended = run(
        IN_CHILD
        + """
pid = os.fork()
if pid == 0:
    in_child()
    for thing in reversed(things):
        thing.close()                      # no error, and nothing happens to the parent's
    print("child done", flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0
a.post_send(write(mr))
while not (done := cq.poll()):
    pass
assert done[0].ok and bytes(mr.buf[64:69]) == b"hello"
for thing in reversed(things):
    thing.close()
print("parent done")
"""
    )
    assert (ended.code, ended.out, ended.err) == (0, "child done\nparent done\n", "")


def test_a_forked_child_opens_the_device_anew_while_its_parent_has_it_open() -> None:
    ended = run(
        IN_CHILD
        + """
pid = os.fork()
if pid == 0:
    with Pair() as pair:
        memory = pair.a.memory(256)
        pair.a.qp.post_send(SendWR(1, WROpcode.RDMA_READ, SendFlags.SIGNALED, [SGE(memory, 0, 8)],
                                   *(lambda m: (m.addr, m.rkey))(pair.b.memory(64))))
        pair.a.wait_ok()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
a.post_send(write(mr))
while not cq.poll():
    pass
for thing in reversed(things):
    thing.close()
"""
    )
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("way", ["exit", "_exit", "exec", "gc"])
def test_a_forked_child_ends_in_any_way_without_a_word(way: str) -> None:
    ended = run(
        IN_CHILD
        + f"""
import gc
def child(way):
    global things, ctx, pd, channel, cq, mr, a, b
    if way == "gc":
        del things, ctx, pd, channel, cq, mr, a, b
        gc.collect()
    elif way == "_exit":
        os._exit(0)
    elif way == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "pass"])
pid = os.fork()
if pid == 0:
    child({way!r})
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
a.post_send(write(mr))
while not cq.poll():
    pass
for thing in reversed(things):
    thing.close()
""",
        "-W",
        "always",
    )
    assert (ended.code, ended.err) == (0, "")


def test_fork_while_the_engine_is_busy_and_threads_post(soak: bool) -> None:
    ended = run(
        f"""
things = objects()
ctx, pd, channel, cq, mr, a, b = things
stop = threading.Event()
done = 0
def load():
    global done
    while not stop.is_set():
        a.post_send(write(mr))
        while not cq.poll():
            pass
        done += 1
thread = threading.Thread(target=load)
thread.start()
for _ in range({200 if soak else 20}):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not hasattr(ctx, "x") else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
thread.join()
assert done > 0
for thing in reversed(things):
    thing.close()
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (ended.code, ended.err) == (0, "")


# ---------------------------------------------------------------- the end of the interpreter

LEFT_OPEN = {
    "everything open": "keep = objects()",
    "in a cycle": "keep = [objects()]; keep.append(keep)",
    "as a global that dies late": "import builtins; builtins.keep = objects()",
    "with work under way": """
        keep = ctx, pd, channel, cq, mr, a, b = objects()
        ctx.set_faults(Faults(loss=0.5, delay=0.5))
        b.post_recv([RecvWR(i, [SGE(mr)]) for i in range(8)])
        a.post_send([write(mr, i) for i in range(64)])
        """,
    "with an event that was not acknowledged": """
        keep = ctx, pd, channel, cq, mr, a, b = objects()
        cq.req_notify()
        a.post_send(write(mr))
        channel.get_cq_event()
        """,
    "with a thread that waits": """
        keep = objects()
        threading.Thread(target=keep[2].get_cq_event, daemon=True).start()
        """,
    "with a thread that polls": """
        keep = objects()
        def poll(cq=keep[3]):
            while True:
                cq.poll()
        threading.Thread(target=poll, daemon=True).start()
        """,
    "with a view of its memory": "keep = objects(); view = keep[4].buf[10:20]",
    "with two contexts": "keep = objects(), objects()",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("left", LEFT_OPEN)
def test_the_interpreter_ends_without_a_word(left: str) -> None:
    ended = run(LEFT_OPEN[left])
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("left", LEFT_OPEN)
def test_the_interpreter_ends_with_resource_warnings_at_most(left: str) -> None:
    ended = run(LEFT_OPEN[left], "-W", "always::ResourceWarning")
    assert (ended.code, ended.out) == (0, "")
    assert all("ResourceWarning: unclosed" in line for line in ended.err.splitlines() if line[:1] != " ")


def test_an_exception_ends_the_program_with_its_own_traceback_only() -> None:
    ended = run("keep = objects()\nraise SystemExit('my own words')")
    assert (ended.code, ended.err) == (1, "my own words\n")


# ---------------------------------------------------------------- Ctrl-C

WAITS = {
    "get_cq_event": "channel.get_cq_event()",
    "get_cq_event with a timeout": "channel.get_cq_event(1000)",
    "get_async_event": "ctx.get_async_event()",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_and_the_objects_still_work(wait: str) -> None:
    process = start(
        f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        things = ctx, pd, channel, cq, mr, a, b = objects()
        try:
            print("waiting", flush=True)
            {WAITS[wait]}
        except KeyboardInterrupt:
            print("interrupted")
        cq.req_notify()
        a.post_send(write(mr))
        assert channel.get_cq_event() is cq
        cq.ack_events()
        assert cq.poll()[0].ok
        for thing in reversed(things):
            thing.close()
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)  # before the wait begins or in it: both have to end it
    ended = end(process)
    assert (ended.code, ended.out, ended.err) == (0, "interrupted\n", "")
