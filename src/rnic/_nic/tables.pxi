# SPDX-License-Identifier: Apache-2.0
# What the core knows without an open device.


cdef const rnic_provider *provider_of(str name, str verb) except NULL:
    cdef const rnic_provider *found = rnic_provider_at(0)
    cdef int i = 0
    while found is not NULL and found.name.decode() != name:
        i += 1
        found = rnic_provider_at(i)
    if found is NULL:
        raise VerbsError(ENODEV, f"there is no provider {name}", verb)
    return found


cdef dict described(rnic_device_info *info, const rnic_provider *provider):
    """The fields of struct rnic_device_info, and the provider's name."""
    cdef dict fields = info[0]
    fields["provider"] = provider.name.decode()
    return fields


cdef list devices_of(const rnic_provider *provider):
    cdef rnic_device_info *info = NULL
    cdef rnic_err err
    cdef int room = 64, n
    while True:
        info = <rnic_device_info *>PyMem_Malloc(room * sizeof(rnic_device_info))
        if info is NULL:
            raise MemoryError
        try:
            err.text[0] = 0
            n = check(provider.list(info, room, &err), "get_device_list", &err)
            if n <= room:
                return [described(&info[i], provider) for i in range(n)]
        finally:
            PyMem_Free(info)
        room = n


def device_list():
    """The devices of all providers: of each the fields of struct rnic_device_info, and `provider`, as a dict.

    A provider that fails takes nothing away from the others: its error is raised if no other has a device.
    """
    cdef int i = 0
    found, failed = [], None
    while rnic_provider_at(i) is not NULL:
        try:
            found += devices_of(rnic_provider_at(i))
        except VerbsError as error:
            failed = failed or error
        i += 1
    if failed is not None and not found:
        raise failed
    return found


def add_provider(address):
    """List and open devices of one more provider from now on: a struct rnic_provider at this address, which stays."""
    cdef rnic_err err
    err.text[0] = 0
    check(rnic_provider_add(<const rnic_provider *><uintptr_t>address, &err), "add_provider", &err)


def counter_names():
    """The counters' names, in the order of raw_counters()."""
    return [rnic_counter_name(i).decode() for i in range(RNIC_CNT_MAX)]


def counter_texts():
    """A description of each counter, in the same order."""
    return [rnic_counter_text(i).decode() for i in range(RNIC_CNT_MAX)]


cdef tuple vendor_err_text(uint32_t number):
    """(name, text) of a vendor_err; empty for one that rnic does not know."""
    if number >= 1 << 31 or rnic_vendor_err_name(number) is NULL:
        return "", ""
    return rnic_vendor_err_name(number).decode(), rnic_vendor_err_text(number).decode()


def vendor_err_texts():
    """(name, text) of each vendor_err, by number."""
    rows = []
    cdef int i = 0
    while rnic_vendor_err_name(i) is not NULL:
        rows.append(vendor_err_text(i))
        i += 1
    return rows


def enum_rows():
    """(group, name, value) of every enumeration of nic.h, in its order."""
    rows = []
    cdef const rnic_enum_row *row = rnic_enum_row_at(0)
    cdef int i = 0
    while row is not NULL:
        rows.append((row.group.decode(), row.name.decode(), row.value))
        i += 1
        row = rnic_enum_row_at(i)
    return rows


# ---------------------------------------------------------------- the environment


def env_rows():
    """(name, values, what counts without it, purpose) of each environment variable of the device."""
    rows = []
    cdef const rnic_env_row *row = rnic_env_row_at(0)
    while row is not NULL:
        rows.append((row.name.decode(), row.values.decode(), row.otherwise.decode(), row.text.decode()))
        row = rnic_env_row_at(len(rows))
    return rows


def env_check(str name, str value):
    """Raise VerbsError if a variable of the environment may not have this value."""
    cdef rnic_err err
    err.text[0] = 0
    check(rnic_env_check(os.fsencode(name), os.fsencode(value), &err), "open_device", &err)


cdef class Failure:
    """Calls that are to fail: a rule of $RNIC_FAIL."""

    cdef rnic_fail rule

    def __init__(self):
        raise TypeError("env_fail() makes them")

    @property
    def call(self):
        """The name of the call."""
        return rnic_fail_name(self.rule.call).decode()

    @property
    def errno(self):
        """What it fails with."""
        return self.rule.error

    def hits(self, uint64_t n):
        """Whether call n fails, counted from 1."""
        return bool(rnic_fail_hits(&self.rule, n))


def env_fail():
    """The calls that $RNIC_FAIL lets fail."""
    cdef rnic_fail rules[RNIC_ENV_FAIL]
    cdef rnic_err err
    cdef Failure one
    cdef int i, n
    err.text[0] = 0
    n = check(rnic_env_fail(rules, &err), "open_device", &err)
    found = []
    for i in range(n):
        one = Failure.__new__(Failure)
        one.rule = rules[i]
        found.append(one)
    return found


def env_device():
    """The device that $RNIC_DEVICE names, or None."""
    cdef const char *name = rnic_env_device()
    return None if name is NULL else os.fsdecode(name)


def env_local():
    """Whether $RNIC_LOCAL lets peers on this host be reached through shared memory."""
    cdef rnic_err err
    err.text[0] = 0
    return bool(check(rnic_env_local(&err), "open_device", &err))


def env_mpa_crc():
    """Whether $RNIC_MPA_CRC wants iWARP's messages to carry CRCs."""
    cdef rnic_err err
    err.text[0] = 0
    return bool(check(rnic_env_mpa_crc(&err), "open_device", &err))


def env_pkeys():
    """The P_Keys of $RNIC_PKEYS; none if it is not set."""
    cdef uint16_t table[MAX_PKEYS]
    cdef rnic_err err
    cdef int i, n
    err.text[0] = 0
    n = check(rnic_env_pkeys(table, MAX_PKEYS, &err), "open_device", &err)
    return tuple([table[i] for i in range(n)])
