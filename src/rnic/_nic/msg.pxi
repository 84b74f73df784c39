# SPDX-License-Identifier: Apache-2.0
# msg.h, for Cython: one end of a connection, which moving.pxi and the files behind it make an object of Python.

cdef extern from "msg/msg.h" nogil:
    enum:
        MSG_RESULT
        MSG_OPEN, MSG_CLOSED
    int64_t MSG_NEVER

    struct msg:
        pass

    struct msg_config:
        uint32_t receives, receive_size, send_size, max_regions
        uint64_t max_message, max_backlog, announce
        int64_t idle

    struct msg_peer:
        uint32_t receives, receive_size, max_regions, capabilities, access
        uint64_t max_message
        int version

    struct msg_memory:
        uint8_t *base
        uint32_t lkey, bounces
        uint64_t sends_at, results_at

    struct msg_error_t "msg_error":
        int kind
        uint32_t reason
        char text[256]

    struct msg_region:
        uint32_t id, rkey, access
        uint64_t addr, length, serial
        const uint8_t *array
        uint32_t array_bytes

    struct msg_in:
        msg_in *next
        uint64_t tag, bytes
        uint8_t *data
        void *object

    struct msg_op:
        int opcode
        bint fence, anywhere
        uint32_t region, rkey
        uint64_t addr, compare_add, swap
        rnic_sge sge
        rnic_sge *pieces
        int pieces_n
        void *owner
        int state, status
        uint32_t vendor_err
        uint64_t found

    struct msg_statistics:
        int state
        uint64_t messages_sent, messages_received, sends, receives, credit_sends, probes, credits, queued, backlog, held
        uint64_t partial

    msg *msg_open(const msg_config *, const msg_memory *, const msg_hooks *, rnic_qp *, rnic_cq *, rnic_cq *)
    void msg_release(msg *)
    void msg_free(msg *)
    int msg_post_receives(msg *, rnic_err *)
    void msg_greet(msg *, const msg_peer *, int64_t)
    void msg_greet_raw(msg *)
    void msg_establish(msg *)
    bint msg_established(const msg *)
    int msg_say_hello(msg *, const void *, uint32_t, uint32_t, int64_t, rnic_err *)
    int msg_hear_hello(msg *, int64_t, const uint8_t **, uint32_t *)
    bint msg_may_leave(const msg *)
    int msg_pump(msg *, int64_t)
    int msg_poll(msg *)
    int msg_poll_now(msg *)
    const rnic_wc *msg_failed(const msg *)
    int64_t msg_deadline(const msg *)
    int msg_send(msg *, const void *, uint64_t, uint64_t, uint64_t *)
    uint64_t msg_left(const msg *)
    uint64_t msg_handle(const msg *)
    uint64_t msg_sent(const msg *)
    bint msg_is_sending(const msg *)
    bint msg_is_closing(const msg *)
    bint msg_has_fetch_error(const msg *)
    bint msg_take_back(msg *, uint64_t)
    msg_in *msg_find(const msg *, const uint64_t *)
    void msg_take(msg *, msg_in *)
    void msg_drop(msg *, msg_in *)
    int msg_put_back(msg *, uint8_t *, uint64_t, uint64_t, void *)
    void msg_want(msg *, bint, bint)
    void msg_target(msg *, void *, uint64_t)
    int msg_fetch_error(msg *)
    uint64_t msg_offered(const msg *)
    bint msg_is_landing(const msg *)
    int msg_share(msg *, msg_region *)
    int msg_withdraw(msg *, uint32_t)
    uint32_t msg_released(const msg *)
    const msg_region *msg_regions(const msg *, uint32_t *)
    uint64_t msg_changes(const msg *)
    void msg_operate(msg *, msg_op *)
    msg_op *msg_done(msg *)
    bint msg_operates(const msg *)
    void msg_close(msg *, int64_t, int64_t)
    void msg_abort(msg *, const char *)
    void msg_lost(msg *, const char *)
    void msg_disconnected(msg *, const void *, uint32_t)
    uint32_t msg_farewell(const msg *, uint8_t *)
    void msg_fail_operations(msg *)
    int msg_state(const msg *)
    const msg_error_t *msg_error(const msg *)
    uint64_t msg_undelivered(const msg *)
    bint msg_heard_goodbye(const msg *)
    bint msg_is_spent(const msg *)
    void msg_count(const msg *, msg_statistics *)

cdef extern from "msg/msg.h":    # which call back with the interpreter's lock
    ctypedef bint c_bool "bool"
    struct msg_hooks:
        void *arg
        uint8_t *(*make)(void *, uint64_t, void **) noexcept
        uint8_t *(*grow)(void *, uint64_t, void **) noexcept
        void (*drop)(void *, void *) noexcept
        void (*copy)(void *, void *, const void *, uint64_t) noexcept
        void (*later)(void *, rnic_mr *) noexcept
        c_bool (*asks)(void *, uint64_t) noexcept
