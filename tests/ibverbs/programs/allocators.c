/* SPDX-License-Identifier: Apache-2.0
 *
 * allocators.c: objects that are made with a parent domain lie in memory of the program's allocator, which may leave one to
 * the library. Prints how many it has made and taken back.
 *
 * allocators DEVICE
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNED = 16 };

static int made, taken_back, asked;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static struct ibv_context *open_device(const char *name) {
    struct ibv_context *context = NULL;
    int i, count;
    struct ibv_device **list = ibv_get_device_list(&count);
    for (i = 0; list && i < count; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            context = ibv_open_device(list[i]);
    if (!context)
        die(name);
    ibv_free_device_list(list);
    return context;
}

static void *make(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment, uint64_t resource_type) {
    void *memory;
    (void)pd;
    (void)resource_type;
    if (pd_context != &made)
        exit(2);
    if (asked++ == 0)
        return IBV_ALLOCATOR_USE_DEFAULT;
    if (alignment > ALIGNED) /* as malloc() aligns */
        exit(3);
    memory = malloc(size);
    if (!memory)
        return NULL;
    memset(memory, 0xA5, size);
    made++;
    return memory;
}

static void take_back(struct ibv_pd *pd, void *pd_context, void *memory, uint64_t resource_type) {
    (void)pd;
    (void)pd_context;
    (void)resource_type;
    taken_back++;
    free(memory);
}

static struct ibv_pd *parent_of(struct ibv_pd *pd) {
    struct ibv_parent_domain_init_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.pd = pd;
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    attr.alloc = make;
    attr.free = take_back;
    attr.pd_context = &made;
    return ibv_alloc_parent_domain(pd->context, &attr);
}

static struct ibv_cq_ex *queue_of(struct ibv_pd *parent) {
    struct ibv_cq_init_attr_ex attr;
    memset(&attr, 0, sizeof attr);
    attr.cqe = 8;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
    attr.parent_domain = parent;
    return ibv_create_cq_ex(parent->context, &attr);
}

static struct ibv_qp *queue_pair_of(struct ibv_pd *parent, struct ibv_cq *cq, struct ibv_srq *srq) {
    struct ibv_qp_init_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.send_cq = attr.recv_cq = cq;
    attr.srq = srq;
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = attr.cap.max_send_sge = 1;
    return ibv_create_qp(parent, &attr);
}

int main(int argc, char **argv) {
    struct ibv_context *context = open_device(argc == 2 ? argv[1] : "");
    struct ibv_pd *pd = ibv_alloc_pd(context), *parent = parent_of(pd);
    struct ibv_cq_ex *first, *cq;
    struct ibv_srq_init_attr how;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    memset(&how, 0, sizeof how);
    how.attr.max_wr = how.attr.max_sge = 1;
    if (!parent)
        die("ibv_alloc_parent_domain");
    first = queue_of(parent);
    cq = queue_of(parent);
    srq = ibv_create_srq(parent, &how);
    qp = first && cq && srq ? queue_pair_of(parent, ibv_cq_ex_to_cq(cq), srq) : NULL;
    if (!qp)
        die("ibv_create_qp");
    printf("%d made\n", made);
    if (!ibv_dealloc_pd(parent))
        die("a domain goes before what was made with it");
    if (ibv_destroy_qp(qp) || ibv_destroy_srq(srq) || ibv_destroy_cq(ibv_cq_ex_to_cq(cq)))
        die("ibv_destroy_qp");
    printf("%d taken back\n", taken_back);
    return ibv_close_device(context) ? 1 : 0; /* takes back what is left, in its order */
}
