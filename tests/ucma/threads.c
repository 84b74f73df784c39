/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads share an event channel: some destroy ids whose events others are about to fetch.  In the end an event of one more
 * id must still come.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TAKERS 2
#define MAKERS 4
#define IDS 100
#define MS_FOR_THE_LAST 20000

static struct rdma_event_channel *channel;
static atomic_int fetched;

static void must(int rc, const char *what) {
    if (rc) {
        perror(what);
        exit(1);
    }
}

static struct rdma_cm_id *resolving(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct rdma_cm_id *id;
    must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000), "rdma_resolve_addr");
    return id;
}

static void *take(void *none) {
    struct rdma_cm_event *event;
    for (;;) {
        must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
        atomic_fetch_add(&fetched, 1);
        must(rdma_ack_cm_event(event), "rdma_ack_cm_event");
    }
    return none;
}

static void *make(void *none) {
    for (int i = 0; i < IDS; i++) {
        struct rdma_cm_id *id = resolving();
        if (i % 3 == 0)
            usleep(300);
        must(rdma_destroy_id(id), "rdma_destroy_id");
    }
    return none;
}

int main(void) {
    pthread_t takers[TAKERS], makers[MAKERS];
    channel = rdma_create_event_channel();
    must(!channel, "rdma_create_event_channel");
    for (int i = 0; i < TAKERS; i++)
        pthread_create(&takers[i], NULL, take, NULL);
    for (int i = 0; i < MAKERS; i++)
        pthread_create(&makers[i], NULL, make, NULL);
    for (int i = 0; i < MAKERS; i++)
        pthread_join(makers[i], NULL);
    int before = fetched;
    resolving();
    for (int i = 0; i < MS_FOR_THE_LAST && fetched == before; i++)
        usleep(1000);
    printf("%d events, then %d\n", before, fetched - before);
    return fetched == before;
}
