/* SPDX-License-Identifier: Apache-2.0
 *
 * Management datagrams of the communication manager (IBA 13.4, 12.6, 12.11), as far as a device must read them: whom a
 * message is for, and the answer to one that is for nobody.
 */
#ifndef RNIC_WIRE_MAD_H
#define RNIC_WIRE_MAD_H

#include <stdbool.h>
#include <stdint.h>

#define MAD_BYTES 256
#define CM_CLASS 7          /* IBA 13.4.4: Communication Management */
#define CM_CLASS_VERSION 2  /* IBA 12.6: base and class version of 1.2 */
#define CM_REJ_INVALID_SERVICE_ID 8 /* IBA 12.6.7.2 */
#define CM_SIDR_UNSUPPORTED 1       /* IBA 12.11.2: service ID not supported */

/* Where a message says what it is and whom it is for (IBA 13.4.3, 12.6.5 to 12.6.17, 12.11.1, 12.11.2). */
enum {
    MAD_CLASS = 1,
    MAD_ATTRIBUTE = 16,
    MAD_LOCAL_ID = 24, /* the sender's communication id; of SIDR messages the request id */
    MAD_REMOTE_ID = 28,
    MAD_REQ_LOCAL_GID = 80, /* of the primary path, as the sender of a REQ knows it, */
    MAD_REQ_REMOTE_GID = 96,
};

enum cm_attribute {
    CM_REQ = 0x10,
    CM_MRA = 0x11,
    CM_REJ = 0x12,
    CM_REP = 0x13,
    CM_RTU = 0x14,
    CM_DREQ = 0x15,
    CM_DREP = 0x16,
    CM_SIDR_REQ = 0x17,
    CM_SIDR_REP = 0x18,
    CM_LAP = 0x19,
    CM_APR = 0x1A,
};

/* Whom a MAD of 256 bytes is for. */
enum mad_target { MAD_OTHER, MAD_FOR_SERVICE, MAD_FOR_ID };
struct mad_address {
    enum mad_target target;
    uint64_t service_id; /* MAD_FOR_SERVICE: REQ, SIDR_REQ */
    uint32_t comm_id;    /* MAD_FOR_ID: the receiver's own; 0 in a REJ whose sender has never learnt it */
};

struct mad_address mad_address(const uint8_t mad[MAD_BYTES]);

/* The answer to what is for nobody: REJ, reason 8, to a REQ for a service that is not offered, SIDR_REP, status 1, to a
 * SIDR_REQ, DREP to a DREQ from who has not heard that the other end has gone. false: there is none. */
bool mad_answer(uint8_t answer[MAD_BYTES], const uint8_t request[MAD_BYTES]);

#endif
