# SPDX-License-Identifier: Apache-2.0
# Ownership, once for every object.
#
# An object holds its owners (a QP: its PD, its CQs, its context), so they outlive it.  An owner knows its users by weak
# reference: close() refuses while there are any and names them.  An object that cannot be closed yet, but has to go
# (dropped in a cycle, or its `with` block left by an exception), is `closing`: it goes with its last user.
# What is garbage is finalized in any order, and cleared in any order: an object keeps its owners until its end.
# A forked child has the Python objects, but not the device: there nothing native is touched.


cdef rnic_ops no_ops    # of objects that do not exist yet: no verb at all
cdef object refused     # who is told of an object that has to go, and that the device does not take back yet


def when_refused(call):
    """From now on, call this with each of them; it repeats close(). None: they are lost. Returns what was called before."""
    global refused
    before, refused = refused, call
    return before


@cython.no_gc_clear
cdef class Handle:
    """An object of a device. close() destroys it; so does the end of a `with` block.

    A second close() does nothing. close() raises EBUSY, and names the users, while other objects need this one. If an
    exception leaves a `with` block, the object is closed as soon as no other needs it, and the exception goes on. If
    the program drops an object without close(), it is closed with a ResourceWarning.
    """

    cdef object __weakref__
    cdef const rnic_ops *ops
    cdef Context ctx      # None in a Context
    cdef tuple owners     # what this needs, in the order in which it is let go
    cdef dict users       # id of an object that needs this: weak reference to it
    cdef str closer       # the verb that destroys this
    cdef long pid         # the process that made this
    cdef int calls        # calls into the provider that run now without the GIL, and Holds
    cdef bint live        # the native object is there, and nobody is giving it back
    cdef bint leaving     # a thread is giving it back, which may take a while
    cdef bint closing     # close when the last user has gone
    cdef bint quiet       # it may be dropped without close()
    cdef unsigned async_taken   # asynchronous events of it that are not acknowledged

    def __cinit__(self):
        self.ops = &no_ops
        self.users = {}
        self.owners = ()
        self.pid = getpid()

    # What a class fills in: destroy() gives the native object back, settle() removes what would forbid that, and may_go()
    # says what Python's own objects forbid; gone() drops what was kept for the native object.

    cdef int destroy(self, rnic_err *err):
        return 0

    cdef void settle(self):
        pass

    cdef int may_go(self, rnic_err *err):
        return 0

    cdef void gone(self):
        pass

    cdef void ack_async(self):
        """Acknowledges the events that the program still holds."""
        cdef rnic_async_event event
        cdef rnic_err err
        memset(&event, 0, sizeof(event))
        event.context = <void *>self
        while self.async_taken and self.pid == getpid():
            self.async_taken -= 1
            self.ops.ack_async_event(self.ctx.p, &event, &err)

    cdef void prune(self):
        """Removes users that no longer need this object, if that is only found out now."""
        pass

    cdef bint looked_into(self):
        """Its memory is in use by objects of the program that do not say so in `users`, and that tell when they end."""
        return False

    cdef void forsake(self):
        """Nothing refers to it any more, but garbage."""
        pass

    cdef str caller(self):
        """Who is counted in `calls`."""
        return "a call in another thread"

    cdef str label(self):
        return type(self).__name__

    cdef void attach(self, Context ctx, tuple owners, str closer):
        """Records the new native object: from now on this object destroys it."""
        self.ctx = ctx
        self.ops = ctx.ops
        self.owners = owners
        self.closer = closer
        self.live = True
        me = weakref.ref(self)
        for owner in owners:
            (<Handle>owner).users[<uintptr_t><void *>self] = me

    cdef void hold(self, Handle owner):
        """Records one more object that this one needs; None is ignored."""
        if owner is not None and owner not in self.owners:
            self.owners += (owner,)
            owner.users[<uintptr_t><void *>self] = weakref.ref(self)

    cdef void swap_owner(self, Handle old, Handle new):
        self.owners = tuple(new if one is old else one for one in self.owners)
        old.users.pop(<uintptr_t><void *>self, None)
        new.users[<uintptr_t><void *>self] = weakref.ref(self)
        if old is not new and old.closing:
            old.finish_if_unused()

    cdef int finish(self, rnic_err *err):
        """Destroys the native object and releases the owners; on failure nothing has changed."""
        cdef int rc = 0
        self.live, self.leaving = False, True
        if self.pid == getpid():
            rc = self.may_go(err)
            if rc >= 0:
                rc = self.destroy(err)
            if rc >= 0:
                self.gone()
        self.leaving = False
        if rc < 0:
            self.live = True
            return rc
        self.detach()
        return 0

    cdef void gather(self, dict found):
        """Adds this object, and before it all that need it, by their ids."""
        for ref in list(self.users.values()):
            user = ref()
            if user is not None and id(user) not in found:
                (<Handle>user).gather(found)
        found[id(self)] = self

    cdef int check_idle(self, str verb) except -1:
        """Raises EBUSY, and says why, if the object cannot be destroyed now whoever may need it."""
        cdef rnic_err err
        if self.leaving:
            raise VerbsError(EBUSY, f"another thread is closing {self.label()}", verb)
        if self.calls:
            raise VerbsError(EBUSY, f"{self.caller()} uses {self.label()}", verb)
        err.text[0] = 0
        return check(self.may_go(&err), verb, &err)

    cdef void detach(self):
        """Releases the owners, and closes those that waited only for this object."""
        owners, self.owners = self.owners, ()
        for owner in owners:
            (<Handle>owner).users.pop(<uintptr_t><void *>self, None)
            if (<Handle>owner).closing:
                (<Handle>owner).finish_if_unused()

    cdef bint finish_if_unused(self):
        """Closes now or, if other objects need this one, with the last of them. Never raises; False: it could not."""
        cdef rnic_err err
        self.closing = True
        looked_into = self.looked_into()  # which may find that nobody does any more, and come here by that
        if not self.live or self.users or self.calls or looked_into:
            return True
        self.ack_async()
        self.settle()
        return self.finish(&err) >= 0

    cdef void go(self):
        """As finish_if_unused(), where nobody would call it again."""
        if not self.finish_if_unused() and refused is not None:
            refused(self)

    cdef void finish_all(self):
        """Closes this object after all that need it, at the end of the interpreter."""
        for ref in list(self.users.values()):
            user = ref()
            if user is not None:
                (<Handle>user).finish_all()
        self.finish_if_unused()

    # It comes last: whole() and limited() are Python, in whose middle another thread may close the object.
    cdef inline int need(self, str verb) except -1:
        if not self.live:
            raise VerbsError(EINVAL, f"{self.label()} is closed", verb)
        return 0

    cdef int need_verb(self, str verb, bint there) except -1:
        """As need(), for a verb or an extension that not every provider has: it is `there`."""
        self.need(verb)
        if not there:
            provider = (<Context>self.context).p.provider.name.decode()
            raise VerbsError(EOPNOTSUPP, f"not supported by devices of provider {provider}", verb)
        return 0

    def close(self):
        """Destroy the object; a second call does nothing.

        Raises VerbsError: EBUSY while other objects, or a call in another thread, use this one.
        """
        cdef rnic_err err
        if self.leaving and self.pid == getpid():
            raise VerbsError(EBUSY, f"another thread is closing {self.label()}", self.closer)
        if not self.live:
            return
        if self.pid == getpid():
            self.prune()
            if self.users:
                raise VerbsError(EBUSY, f"{self.label()} is in use by {names_of(self.users)}", self.closer)
            self.check_idle(self.closer)
            if not self.live:
                return
        err.text[0] = 0
        check(self.finish(&err), self.closer, &err)

    @property
    def closed(self):
        """Whether the object has been closed."""
        return not self.live and not self.leaving

    @property
    def context(self):
        """The Context of this object; a Context returns itself."""
        return self if self.ctx is None else self.ctx

    def __enter__(self):
        self.need("__enter__")
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.close()
        else:
            self.finish_if_unused()

    def __del__(self):
        if not self.live:
            return
        warn = not self.closing and not self.quiet and self.pid == getpid() and not sys.is_finalizing()
        self.forsake()
        done = self.finish_if_unused()
        if not done and refused is not None:
            refused(self)
        elif not done:
            self.detach()
        if warn:
            fate = "" if done else ", and the device did not take it back" + ("" if refused is None else " yet")
            # This function has no frame of Python's: the first one is the program's.
            warnings.warn(f"unclosed {self.label()}{fate}", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self):
        return f"<{self.label()}{'' if self.live else ' closed'}>"


cdef str names_of(dict users):
    """ "QP 0x000123, MR 0x1234 and 3 more"."""
    found = [ref() for ref in users.values()]
    names = [(<Handle>user).label() for user in found if user is not None]
    if len(names) > 4:
        return f"{', '.join(names[:4])} and {len(names) - 4} more"
    return ", ".join(names)


contexts = weakref.WeakSet()


@atexit.register
def close_contexts():
    """Close all open objects, users before owners: the device's threads end before the interpreter does."""
    for context in list(contexts):
        (<Handle>context).finish_all()
