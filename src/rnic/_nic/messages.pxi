# SPDX-License-Identifier: Apache-2.0
# The messages of a connection as bytes, the buffers that they leave from, and the regions of both ends.

cdef extern from "Python.h":
    ctypedef struct PyObject
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *, Py_ssize_t)
    char *start_of "PyBytes_AS_STRING" (PyObject *)
    void PyErr_Clear()
    void Py_INCREF(object)
    void Py_DECREF(object)
    void Py_XDECREF(PyObject *)
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1

cdef enum:
    LARGE = 4096            # bytes that are copied without the GIL
    FEW = 16                # tags that are compared as numbers, with each message


cdef uint8_t *make_message(void *arg, uint64_t length, void **object) noexcept:
    cdef PyObject *made = new_bytes(NULL, <Py_ssize_t>length)
    if made is NULL:
        PyErr_Clear()
        return NULL
    object[0] = made
    return <uint8_t *>start_of(made)


cdef uint8_t *grow_message(void *arg, uint64_t length, void **object) noexcept:
    """A larger one, with the same bytes: _PyBytes_Resize() would give back the old one when there is no memory."""
    cdef PyObject *old = <PyObject *>object[0]
    cdef PyObject *made = new_bytes(NULL, <Py_ssize_t>length)
    if made is NULL:
        PyErr_Clear()
        return NULL
    memcpy(start_of(made), start_of(old), len(<bytes>old))
    Py_XDECREF(old)
    object[0] = made
    return <uint8_t *>start_of(made)


cdef void drop_message(void *arg, void *object) noexcept:
    Py_XDECREF(<PyObject *>object)


cdef void copy_message(void *arg, void *to, const void *data, uint64_t length) noexcept:
    cdef Moving self
    if length < LARGE:
        memcpy(to, data, length)
        return
    self = <Moving>arg
    self.enter()
    with nogil:
        memcpy(to, data, length)
    self.leave()


cdef void keep_for_later(void *arg, rnic_mr *mr) noexcept:
    (<Moving>arg).late.append(<uintptr_t>mr)


cdef c_bool is_asked_for(void *arg, uint64_t tag) noexcept:
    return tag in (<Messaging>arg).asked


@cython.final
@cython.freelist(8)
cdef class Sent:
    """The buffer of a message that has not left it."""

    cdef Py_buffer view
    cdef bint exported

    def __dealloc__(self):
        if self.exported:
            PyBuffer_Release(&self.view)


@cython.no_gc_clear
cdef class Messaging(Moving):
    """Its messages and regions."""

    cdef object buffers         # Sent, by handle, in the order of the handles
    cdef object target          # the memory that an announced message is READ into: a memoryview,
    cdef uint64_t room          # and its bytes
    cdef list old               # those that were targets, while a READ writes into one
    cdef uint8_t *landed        # where the message in hand lies, if it is a number
    cdef object asked           # a container of the tags that calls ask for
    cdef public object hand     #: The message that take() has taken, until somebody puts None here.
    cdef readonly uint64_t tag  #: Its tag.
    cdef readonly dict shared       #: Memory that share() was called for (MR), by id, until somebody takes it out.
    cdef readonly dict withdrawn    #: By id the number of each withdrawal, until somebody takes it out.
    cdef uint32_t withdrawals   # how many there were
    cdef public uint32_t told   #: Somebody has seen to so many of `released`.

    def __cinit__(self):
        self.buffers, self.old = OrderedDict(), []
        self.shared, self.withdrawn = {}, {}

    cdef int gather(self) except -1:
        """Buffers that messages have left are their callers' again."""
        cdef uint64_t left
        if self.buffers:
            left = msg_left(self.p)
            while self.buffers and <uint64_t>next(iter(self.buffers)) <= left:
                self.buffers.popitem(last=False)
        if self.old and not msg_is_landing(self.p):
            self.old.clear()
        return 0

    # ------------------------------------------------------------ what is sent

    def send(self, message, tag=0):
        """Send a message.  0: it has left its buffer; more: its handle, it is queued; less: an errno, it was refused.

        EINVAL: it is no buffer of values in C order.
        """
        cdef uint64_t number, handle = 0
        cdef Sent sent = Sent.__new__(Sent)
        cdef int rc
        try:
            number = PyNumber_Index(tag)
        except OverflowError:
            raise ValueError(f"send(): tag {tag}, it can be 0 to 2**64 - 1") from None
        try:
            take_buffer(message, &sent.view, PyBUF_C_CONTIGUOUS, "send()")
        except (BufferError, TypeError, ValueError):
            return -EINVAL
        sent.exported = True
        self.need("send()")
        self.busy = True
        rc = msg_send(self.p, sent.view.buf, sent.view.len, number, &handle)
        self.busy = False
        if rc <= 0:
            return rc
        try:
            self.buffers[handle] = sent
        except MemoryError:
            self.take_back(handle)
            raise
        return handle

    @property
    def handle(self):
        """The handle of the message that was sent last."""
        return msg_handle(self.p)

    @property
    def left(self):
        """Messages up to this handle have left their buffers."""
        return msg_left(self.p)

    @property
    def sent(self):
        """As left, but when the connection has ended with an error: as it was then."""
        return msg_sent(self.p)

    @property
    def closing(self):
        """close() was called."""
        return msg_is_closing(self.p)

    @property
    def sending(self):
        """Messages are queued, or are not known to have arrived."""
        return msg_is_sending(self.p)

    def take_back(self, handle):
        """The call that sent a message has ended; whether the message goes on from a copy.  Else the peer drops it."""
        self.alone("send()")
        self.busy = True
        goes_on = msg_take_back(self.p, handle)
        self.busy = False
        self.buffers.pop(handle, None)
        return goes_on

    # ------------------------------------------------------------ what is received

    def has(self, tag=None):
        """Whether a message is there: with this tag, or any."""
        cdef uint64_t number = 0 if tag is None else tag
        return msg_find(self.p, NULL if tag is None else &number) is not NULL

    def take(self, tag=None):
        """Take the next message, or the next with a tag, into `hand`; False: there is none.

        It stays there, also when an exception hides the result, until somebody puts None there.  A message that was
        READ into the memory of aim() is the number of its bytes.
        """
        cdef uint64_t number
        self.alone("take()")
        if tag is None:
            return self.grab(NULL)
        number = tag
        return self.grab(&number)

    @cython.final
    cdef bint grab(self, const uint64_t *tag) except -1:
        cdef msg_in *found
        if self.hand is not None:
            if tag is NULL or tag[0] == self.tag:
                return True
            self.put_back()
        found = msg_find(self.p, tag)
        if found is NULL:
            return False
        self.tag = found.tag
        self.landed = found.data
        self.hand = found.bytes if found.object is NULL else <object><PyObject *>found.object
        msg_take(self.p, found)
        msg_drop(self.p, found)
        return True

    cdef int put_back(self) except -1:
        """The message in hand is not the one that is asked for: it comes next again."""
        cdef PyObject *object = NULL
        cdef uint8_t *data = NULL
        cdef uint64_t length
        if isinstance(self.hand, bytes):
            object, data, length = <PyObject *>self.hand, <uint8_t *>PyBytes_AS_STRING(self.hand), len(<bytes>self.hand)
        else:
            length = self.hand
            data = self.landed
        if msg_put_back(self.p, data, length, self.tag, object) < 0:
            raise MemoryError
        if object is not NULL:
            Py_INCREF(self.hand)
        self.hand = None
        return 0

    def first_tag(self, tags=None):
        """The tag of the first message that is there, of those with these tags (None: of all); None: there is none."""
        cdef msg_in *one = msg_find(self.p, NULL)
        cdef uint64_t few[FEW]
        cdef Py_ssize_t i, n = 0
        if tags is None:
            return None if one is NULL else one.tag
        if len(tags) > FEW:
            while one is not NULL and one.tag not in tags:
                one = one.next
            return None if one is NULL else one.tag
        for tag in tags:
            if n < FEW:
                few[n] = tag
                n += 1
        while one is not NULL:
            for i in range(n):
                if few[i] == one.tag:
                    return one.tag
            one = one.next
        return None

    def want(self, bint next_one, tags=()):
        """Note that calls wait for a message of any tag, or with these, a container that is looked into later, too."""
        self.alone("want()")
        self.asked = tags
        msg_want(self.p, next_one, len(tags) > 0)

    def aim(self, view):
        """READ an announced message that comes next into these bytes, a memoryview; None: into none.

        What was aimed at before is not used any more, once no READ writes into it.
        """
        cdef Py_buffer found
        self.alone("aim()")
        if self.hand is not None and not isinstance(self.hand, bytes):  # it lies where nobody will look for it
            self.hand = (<const char *>self.landed)[:<Py_ssize_t>self.hand]
        if msg_is_landing(self.p):
            self.old.append(self.target)
        self.busy = True
        msg_target(self.p, NULL, 0)
        self.busy = False
        self.target = None
        if view is None or self.hand is not None:
            return
        self.target, self.room = view, len(view)
        if self.room == 0:
            return
        PyObject_GetBuffer(view, &found, PyBUF_WRITABLE)
        msg_target(self.p, found.buf, found.len)
        PyBuffer_Release(&found)    # the view has an export of its own

    @property
    def landing(self):
        """A READ writes into the bytes of aim()."""
        return msg_is_landing(self.p)

    @property
    def offered(self):
        """Bytes of an announced message that comes next and is not being READ; 0: there is none."""
        return msg_offered(self.p)

    def fetch_error(self):
        """Why an announced message could not be READ, an errno, told once; 0: nothing is wrong."""
        return -msg_fetch_error(self.p)

    @property
    def fetch_failed(self):
        """fetch_error() has something to tell."""
        return msg_has_fetch_error(self.p)

    # ------------------------------------------------------------ regions

    def share(self, MR mr not None, access, bytes array=b""):
        """Share memory, which is in `shared` then; its id, or a negative errno."""
        cdef msg_region region
        cdef int rc
        region.addr, region.length, region.rkey, region.access = mr.addr, mr.length, mr.rkey, access
        region.array, region.array_bytes = <const uint8_t *>PyBytes_AS_STRING(array) if array else NULL, len(array)
        self.need("share()")
        rc = msg_share(self.p, &region)
        if rc < 0:
            return rc
        self.shared[region.id] = mr
        return region.id

    def withdraw(self, number):
        """Tell the peer that it may no longer use a region, once."""
        cdef int rc
        self.need("withdraw()")
        if number in self.withdrawn:
            return 0
        rc = msg_withdraw(self.p, number)
        if rc == 0:
            self.withdrawals += 1
            self.withdrawn[number] = self.withdrawals
        return rc

    @property
    def released(self):
        """How many withdrawals the peer has confirmed, modulo 2**32."""
        return msg_released(self.p)

    def gone(self, bint ended):
        """Of those that are `withdrawn`, the ids that the peer uses no more; all when the connection has ended."""
        cdef uint32_t released = msg_released(self.p)
        return [number for number, nth in self.withdrawn.items() if ended or <int32_t>(released - <uint32_t>nth) >= 0]

    @property
    def changes(self):
        """Counts when regions() changes."""
        return msg_changes(self.p)

    def regions(self):
        """The peer's regions: a number that no other has had, id, addr, length, rkey, access, array."""
        cdef uint64_t changes = msg_changes(self.p)
        cdef uint32_t n = 0, i = 0
        cdef const msg_region *one
        cdef msg_region region
        found = []
        while True:     # a finaliser may call the connection whenever an object is made
            if changes != msg_changes(self.p):
                changes, i, found = msg_changes(self.p), 0, []
            one = msg_regions(self.p, &n)
            if i >= n:
                return found
            region = one[i]
            i += 1
            array = b"" if region.array is NULL else (<const char *>region.array)[:region.array_bytes]
            found.append((region.serial, region.id, region.addr, region.length, region.rkey, region.access, array))
