/* SPDX-License-Identifier: Apache-2.0
 *
 * rdma_cma.h: librdmacm's interface (man rdma_cm), written for rnic: the names, values and layouts of rdma-core 44.
 *
 * Functions return 0, or -1 with errno set, where nothing else is said. Each has a man page of its name.
 */
#ifndef RDMA_CMA_H
#define RDMA_CMA_H

#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* ---------------------------------------------------------------- addresses */

enum rdma_port_space { RDMA_PS_IPOIB = 0x0002, RDMA_PS_TCP = 0x0106, RDMA_PS_UDP = 0x0111, RDMA_PS_IB = 0x013f };

/* Service IDs of IP's ports (IBA A11): a port space in bits 63-16, a port in bits 15-0. */
#define RDMA_IB_IP_PS_MASK 0xffffffffffff0000ULL
#define RDMA_IB_IP_PORT_MASK 0xffffULL
#define RDMA_IB_IP_PS_TCP 0x1060000ULL
#define RDMA_IB_IP_PS_UDP 0x1110000ULL
#define RDMA_IB_PS_IB 0x13f0000ULL

#define RDMA_UDP_QKEY 0x01234567 /* of RDMA_PS_UDP's queue pairs and groups */

struct rdma_ib_addr {
    union ibv_gid sgid, dgid;
    __be16 pkey;
};
struct rdma_addr {
    __extension__ union {
        struct sockaddr src_addr;
        struct sockaddr_in src_sin;
        struct sockaddr_in6 src_sin6;
        struct sockaddr_storage src_storage;
    };
    __extension__ union {
        struct sockaddr dst_addr;
        struct sockaddr_in dst_sin;
        struct sockaddr_in6 dst_sin6;
        struct sockaddr_storage dst_storage;
    };
    union {
        struct rdma_ib_addr ibaddr;
    } addr;
};
struct rdma_route {
    struct rdma_addr addr;
    struct ibv_sa_path_rec *path_rec; /* num_paths of them */
    int num_paths;
};

/* Flags of rdma_getaddrinfo. */
#define RAI_PASSIVE 0x01     /* to listen */
#define RAI_NUMERICHOST 0x02 /* no names are looked up */
#define RAI_NOROUTE 0x04     /* no route is looked up */
#define RAI_FAMILY 0x08      /* ai_family is the one that node is of */
struct rdma_addrinfo {
    int ai_flags, ai_family, ai_qp_type, ai_port_space;
    socklen_t ai_src_len, ai_dst_len;
    struct sockaddr *ai_src_addr, *ai_dst_addr;
    char *ai_src_canonname, *ai_dst_canonname;
    size_t ai_route_len; /* bytes */
    void *ai_route;      /* struct ibv_path_data[] */
    size_t ai_connect_len;
    void *ai_connect; /* private data of the request */
    struct rdma_addrinfo *ai_next;
};

/* ---------------------------------------------------------------- identifiers and events */

struct rdma_event_channel {
    int fd;
};
struct rdma_cm_id {
    struct ibv_context *verbs; /* of the device that it is bound to; NULL: none yet */
    struct rdma_event_channel *channel;
    void *context; /* the program's */
    struct ibv_qp *qp;
    struct rdma_route route;
    enum rdma_port_space ps;
    uint8_t port_num;
    struct rdma_cm_event *event; /* the last one, of a synchronous identifier */
    struct ibv_comp_channel *send_cq_channel;
    struct ibv_cq *send_cq;
    struct ibv_comp_channel *recv_cq_channel;
    struct ibv_cq *recv_cq;
    struct ibv_srq *srq;
    struct ibv_pd *pd;
    enum ibv_qp_type qp_type;
};

enum rdma_cm_event_type { /* man rdma_get_cm_event */
                          RDMA_CM_EVENT_ADDR_RESOLVED,
                          RDMA_CM_EVENT_ADDR_ERROR,
                          RDMA_CM_EVENT_ROUTE_RESOLVED,
                          RDMA_CM_EVENT_ROUTE_ERROR,
                          RDMA_CM_EVENT_CONNECT_REQUEST,
                          RDMA_CM_EVENT_CONNECT_RESPONSE,
                          RDMA_CM_EVENT_CONNECT_ERROR,
                          RDMA_CM_EVENT_UNREACHABLE,
                          RDMA_CM_EVENT_REJECTED,
                          RDMA_CM_EVENT_ESTABLISHED,
                          RDMA_CM_EVENT_DISCONNECTED,
                          RDMA_CM_EVENT_DEVICE_REMOVAL,
                          RDMA_CM_EVENT_MULTICAST_JOIN,
                          RDMA_CM_EVENT_MULTICAST_ERROR,
                          RDMA_CM_EVENT_ADDR_CHANGE,
                          RDMA_CM_EVENT_TIMEWAIT_EXIT
};

enum { RDMA_MAX_RESP_RES = 255, RDMA_MAX_INIT_DEPTH = 255 }; /* as many as both devices can */
struct rdma_conn_param {
    const void *private_data;
    uint8_t private_data_len;                     /* bytes */
    uint8_t responder_resources, initiator_depth; /* READs and atomics under way: the peer's, our own */
    uint8_t flow_control;
    uint8_t retry_count; /* of a request to connect */
    uint8_t rnr_retry_count;
    uint8_t srq;     /* srq, qp_num: of a queue pair that is not the identifier's */
    uint32_t qp_num; /* host byte order */
};
struct rdma_ud_param {
    const void *private_data;
    uint8_t private_data_len;
    struct ibv_ah_attr ah_attr;
    uint32_t qp_num, qkey;
};
struct rdma_cm_event {
    struct rdma_cm_id *id, *listen_id /* of CONNECT_REQUEST: whose it is */;
    enum rdma_cm_event_type event;
    int status; /* 0, -errno; of REJECTED: the reason */
    union {
        struct rdma_conn_param conn;
        struct rdma_ud_param ud;
    } param;
};

enum rdma_cm_join_mc_attr_mask {
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2
};
enum rdma_cm_mc_join_flags {
    RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_RESERVED
};
struct rdma_cm_join_mc_attr_ex { /* man rdma_join_multicast_ex */
    uint32_t comp_mask;          /* enum rdma_cm_join_mc_attr_mask */
    uint32_t join_flags;         /* enum rdma_cm_mc_join_flags */
    struct sockaddr *addr;
};

/* Levels and names of options: man rdma_set_option. */
enum { RDMA_OPTION_ID, RDMA_OPTION_IB };
enum {
    RDMA_OPTION_ID_TOS,        /* uint8_t: of IP packets */
    RDMA_OPTION_ID_REUSEADDR,  /* int: as SO_REUSEADDR */
    RDMA_OPTION_ID_AFONLY,     /* int: as IPV6_V6ONLY */
    RDMA_OPTION_ID_ACK_TIMEOUT /* uint8_t: 4.096 us * 2^n */
};
enum { RDMA_OPTION_IB_PATH = 1 }; /* struct ibv_path_data[] */

/* ---------------------------------------------------------------- functions */

#ifdef __cplusplus
extern "C" {
#endif

struct rdma_event_channel *rdma_create_event_channel(void); /* NULL with errno set */
void rdma_destroy_event_channel(struct rdma_event_channel *channel);
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int rdma_ack_cm_event(struct rdma_cm_event *event);
const char *rdma_event_str(enum rdma_cm_event_type event);

/* channel NULL: calls on the identifier wait until they have done. */
int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps);
int rdma_destroy_id(struct rdma_cm_id *id);
int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);
int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd /* or NULL */,
                   struct ibv_qp_init_attr *qp_init_attr);
void rdma_destroy_ep(struct rdma_cm_id *id);

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                     struct rdma_addrinfo **res);
void rdma_freeaddrinfo(struct rdma_addrinfo *res);
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr /* or NULL */, struct sockaddr *dst_addr,
                      int timeout_ms);
int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd /* or NULL */, struct ibv_qp_init_attr *qp_init_attr);
int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *qp_init_attr);
void rdma_destroy_qp(struct rdma_cm_id *id);
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask);

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param /* or NULL */);
int rdma_establish(struct rdma_cm_id *id); /* without a queue pair of the identifier's own */
int rdma_listen(struct rdma_cm_id *id, int backlog);
int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id);
int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param /* or NULL */);
int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event);
int rdma_disconnect(struct rdma_cm_id *id);
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece);
int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece);

int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context);
int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr, void *context);
int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr);

__be16 rdma_get_src_port(struct rdma_cm_id *id); /* 0: none */
__be16 rdma_get_dst_port(struct rdma_cm_id *id);
static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id) { return &id->route.addr.src_addr; }
static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id) { return &id->route.addr.dst_addr; }

struct ibv_context **rdma_get_devices(int *num_devices); /* NULL behind the last; NULL with errno set */
void rdma_free_devices(struct ibv_context **list);

#ifdef __cplusplus
}
#endif

#endif
