/* SPDX-License-Identifier: Apache-2.0
 *
 * The devices of this process, open contexts, and what they take back at their end.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "layout.h"
#include "lib.h"

#define TEXT_BYTES 256

/* ---------------------------------------------------------------- why a call failed */

int refused(const char *verb, int rc, const char *why) {
    if (rnic_env_verbs_debug() && why && *why)
        UNCANCELLED(fprintf(stderr, "rnic: ibv_%s: %s (%s)\n", verb, why, strerror(abs(rc))));
    else if (rnic_env_verbs_debug())
        UNCANCELLED(fprintf(stderr, "rnic: ibv_%s: %s\n", verb, strerror(abs(rc))));
    errno = abs(rc);
    return errno;
}

int failed(const char *verb, int rc, const struct rnic_err *err) {
    return rc < 0 ? refused(verb, rc, err ? err->text : NULL) : 0;
}

int worded(struct rnic_err *err, int rc, const char *why) {
    snprintf(err->text, sizeof err->text, "%s", why);
    return rc;
}

void *failed_null(const char *verb, int rc, const struct rnic_err *err) {
    failed(verb, rc, err);
    return NULL;
}

/* ---------------------------------------------------------------- the list */

/* A device keeps its address from the first list that had it to the end of the process: librdmacm compares them. */
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices;

static struct device *find_device(const struct rnic_provider *provider, const struct rnic_device_info *info) {
    for (struct device *d = devices; d; d = d->next) {
        if (d->provider == provider && !strcmp(d->pub.name, info->name) && d->info.guid == info->guid)
            return d;
    }
    return NULL;
}

static struct device *add_device(const struct rnic_provider *provider, const struct rnic_device_info *info) {
    struct device **last = &devices, *d = calloc(1, sizeof *d);
    int number = 0;
    if (!d)
        return NULL;
    for (; *last; last = &(*last)->next)
        number++;
    *d = (struct device){.pub = {.node_type = (enum ibv_node_type)info->node_type,
                                 .transport_type = (enum ibv_transport_type)info->transport},
                         .provider = provider,
                         .info = *info,
                         .number = number};
    snprintf(d->pub.name, sizeof d->pub.name, "%s", info->name);
    snprintf(d->pub.dev_name, sizeof d->pub.dev_name, "uverbs%d", number);
    snprintf(d->pub.dev_path, sizeof d->pub.dev_path, "/sys/class/infiniband_verbs/uverbs%d", number);
    snprintf(d->pub.ibdev_path, sizeof d->pub.ibdev_path, "/sys/class/infiniband/%s", info->name);
    return *last = d;
}

/* Contexts that the program has closed, while another one has the same context of the device (ibv_import_device): what was
 * made in them is there, as with a kernel, and events may name it. */
static pthread_mutex_t closing = PTHREAD_MUTEX_INITIALIZER; /* of all, as one may be the last owner */
static struct context *left;

/* A thread that is not in the child may have had the locks.  The two lists are whole at each moment. */
static void in_child(void) {
    pthread_mutex_init(&devices_lock, NULL);
    pthread_mutex_init(&closing, NULL);
}

static void arrange_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static struct device *know_device(const struct rnic_provider *provider, const struct rnic_device_info *info) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, arrange_forks);
    pthread_mutex_lock(&devices_lock);
    struct device *d = find_device(provider, info);
    if (!d)
        d = add_device(provider, info);
    pthread_mutex_unlock(&devices_lock);
    return d;
}

/* A list of devices that grows, ended by NULL. */
struct list {
    struct ibv_device **at;
    int n;
};

static int append(struct list *list, const struct rnic_provider *provider, const struct rnic_device_info *info) {
    struct device *d = know_device(provider, info);
    struct ibv_device **longer = d ? realloc(list->at, ((size_t)list->n + 2) * sizeof *longer) : NULL;
    if (!longer)
        return -ENOMEM;
    list->at = longer;
    longer[list->n++] = &d->pub;
    longer[list->n] = NULL;
    return 0;
}

static int append_all(struct list *list, const struct rnic_provider *provider) {
    struct rnic_device_info *info = NULL;
    struct rnic_err err = {0};
    int room = 16, n;
    for (;; room = n) {
        struct rnic_device_info *larger = realloc(info, (size_t)room * sizeof *info);
        n = larger ? UNCANCELLED(provider->list(larger, room, &err)) : -ENOMEM;
        info = larger ? larger : info;
        if (n <= room)
            break;
    }
    int rc = n < 0 ? n : 0;
    for (int i = 0; !rc && i < n; i++)
        rc = append(list, provider, &info[i]);
    failed("get_device_list", rc, &err);
    free(info);
    return rc;
}

/* A provider that fails takes nothing away from the others. */
EXPORT struct ibv_device **ibv_get_device_list(int *num_devices) {
    struct list list = {.at = calloc(1, sizeof *list.at)};
    int rc = list.at ? 0 : -ENOMEM;
    for (int i = 0; list.at && rnic_provider(i); i++) {
        int one = append_all(&list, rnic_provider(i));
        rc = rc ? rc : one;
    }
    if (num_devices)
        *num_devices = list.n;
    if (list.at && (!rc || list.n))
        return list.at;
    free(list.at);
    errno = -rc;
    return NULL;
}

EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }

EXPORT const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

EXPORT int ibv_get_device_index(struct ibv_device *device) { return ((struct device *)device)->number; }

static __be64 to_be64(uint64_t value) { return __builtin_bswap64(value); }

EXPORT __be64 ibv_get_device_guid(struct ibv_device *device) { return to_be64(((struct device *)device)->info.guid); }

/* ---------------------------------------------------------------- descriptors that programs see */

/* The device's own are never blocking.  A program may want either, and says so by fcntl() on what it is shown. */
static int add(int shown, int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(shown, EPOLL_CTL_ADD, fd, &event);
}

int shown_descriptor(struct rnic_context *nic, int fd) {
    int shown = epoll_create1(EPOLL_CLOEXEC);
    if (shown < 0 || (!add(shown, fd) && (!nic->ops->failed_fd || !add(shown, nic->ops->failed_fd(nic)))))
        return shown;
    int why = errno;
    shown_close(shown);
    errno = why;
    return -1;
}

/* close() of the C library is a point of cancellation. */
void shown_close(int shown) { syscall(SYS_close, shown); }

int shown_wait(struct context *c, int shown, struct rnic_comp_channel *channel) {
    int flags = fcntl(shown, F_GETFL);
    if (flags < 0)
        return errno;
    if (flags & O_NONBLOCK)
        return EAGAIN;
    return -CALL_BY(QUIETLY, c->ops, wait, c->nic, channel);
}

/* ---------------------------------------------------------------- a context */

static void fill(struct context *c, struct ibv_device *device) {
    struct ibv_context *pub = &c->ex.context;
    c->ex.sz = sizeof c->ex;
    pub->device = device;
    pub->abi_compat = __VERBS_ABI_IS_EXTENDED;
    pub->cmd_fd = c->nic->cmd_fd;
    pub->num_comp_vectors = c->nic->num_comp_vectors;
    pthread_mutex_init(&pub->mutex, NULL);
    query_ops(&c->ex, c->ops);
    memory_ops(&c->ex, c->ops);
    completion_ops(&c->ex, c->ops);
    qp_ops(&c->ex, c->ops);
    work_ops(&c->ex, c->ops);
    srq_ops(&c->ex, c->ops);
    xrc_ops(&c->ex, c->ops);
    frame_ops(&c->ex, c->ops);
    fail_ops(c);
}

static struct ibv_context *show(struct rnic_context *nic, struct ibv_device *device) {
    struct context *c = calloc(1, sizeof *c);
    int fd = c ? shown_descriptor(nic, nic->async_fd) : -1;
    if (fd < 0) {
        int why = c ? errno : ENOMEM;
        free(c);
        UNCANCELLED(nic->ops->close(nic, NULL));
        errno = why;
        return NULL;
    }
    c->nic = nic;
    c->ops = nic->ops;
    nic->ops->query_device(nic, &c->attr, NULL);
    explain_context(c);
    fill(c, device);
    c->ex.context.async_fd = fd;
    return &c->ex.context;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device) {
    struct rnic_open_attr attr = {0};
    struct rnic_context *nic = NULL;
    struct rnic_err err = {0};
    uint16_t pkeys[32];
    int rc = fail_read(&err);
    if (!rc)
        rc = FAILS(open_device);
    if (rc)
        return failed_null("open_device", rc, &err);
    bool has_pkeys = device->transport_type == IBV_TRANSPORT_IB;
    int local = rnic_env_local(&err), n = has_pkeys ? rnic_env_pkeys(pkeys, 32, &err) : 0;
    rc = local < 0 ? local : n;
    attr.local = local > 0 ? 1 : -1;
    attr.pkeys = pkeys;
    attr.num_pkeys = n > 0 ? (uint32_t)n : 0;
    if (rc >= 0)
        rc = UNCANCELLED(((struct device *)device)->provider->open(device->name, &attr, &nic, &err));
    return rc < 0 ? failed_null("open_device", rc, &err) : show(nic, device);
}

/* The provider whose context it is says so; the others, that it is none of theirs. */
EXPORT struct ibv_context *ibv_import_device(int cmd_fd) {
    struct rnic_context *nic = NULL;
    struct rnic_device_info info;
    struct rnic_err err = {0};
    int rc = -EOPNOTSUPP;
    for (int i = 0; rnic_provider(i) && (rc == -EINVAL || rc == -EOPNOTSUPP); i++)
        rc = JUST_CALL(rnic_provider(i), import, cmd_fd, &nic, &info, &err);
    if (rc)
        return failed_null("import_device", rc, &err);
    struct device *device = know_device(nic->provider, &info);
    if (!device) {
        UNCANCELLED(nic->ops->close(nic, NULL));
        return failed_null("import_device", -ENOMEM, NULL);
    }
    return show(nic, &device->pub);
}

bool device_gone(struct context *c) {
    struct rnic_device_attr attr;
    return QUIETLY(c->ops->query_device(c->nic, &attr, NULL)) == -EIO;
}

void object_add(struct ibv_context *context, struct object *object, void *whole, void (*free)(void *whole)) {
    struct object **first = &context_of(context)->objects;
    object->whole = whole;
    object->free = free;
    pthread_mutex_lock(&context->mutex);
    object->next = *first;
    object->at = first;
    if (*first)
        (*first)->at = &object->next;
    *first = object;
    pthread_mutex_unlock(&context->mutex);
}

void object_remove(struct ibv_context *context, struct object *object) {
    pthread_mutex_lock(&context->mutex);
    *object->at = object->next;
    if (object->next)
        object->next->at = object->at;
    pthread_mutex_unlock(&context->mutex);
}

/* ---------------------------------------------------------------- the end of a context */

/* The newest of its objects goes first: a parent domain has the allocator that takes back what was made with it. */
static void free_context(struct context *c) {
    for (struct object *object; (object = c->objects);) {
        object_remove(&c->ex.context, object);
        object->free(object->whole);
    }
    pthread_mutex_destroy(&c->ex.context.mutex);
    free(c);
}

static void free_left(const struct rnic_context *nic) {
    for (struct context **at = &left, *c; (c = *at);) {
        if (c->nic == nic) {
            *at = c->next;
            free_context(c);
        } else {
            at = &c->next;
        }
    }
}

/* Kernels free everything when a descriptor of theirs is closed, and programs count on that. */
static int end(struct context *c, struct rnic_err *err) {
    struct rnic_context *nic = c->nic;
    orders_leave_all(&c->ex.context);
    pthread_mutex_lock(&closing);
    int rc = c->ops->close_all ? c->ops->close_all(nic, err) : c->ops->close(nic, err);
    if (rc >= 0) {
        shown_close(c->ex.context.async_fd);
        c->next = left;
        left = c;
    }
    if (rc == 0)
        free_left(nic);
    pthread_mutex_unlock(&closing);
    return rc;
}

EXPORT int ibv_close_device(struct ibv_context *context) {
    struct rnic_err err = {0};
    return -failed("close_device", UNCANCELLED(end(context_of(context), &err)), &err);
}
