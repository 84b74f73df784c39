/* SPDX-License-Identifier: Apache-2.0 */
#include "base/address.h"

#include <arpa/inet.h>
#include <stdio.h>

socklen_t address_to_native(const struct sockaddr_in6 *in, union address_native *out) {
    memset(out, 0, sizeof *out);
    if (!address_is_v4(in)) {
        out->v6 = *in;
        out->v6.sin6_family = AF_INET6;
        return sizeof out->v6;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = in->sin6_port;
    memcpy(&out->v4.sin_addr, in->sin6_addr.s6_addr + 12, 4);
    return sizeof out->v4;
}

void address_from_native(const union address_native *in, struct sockaddr_in6 *out) {
    if (in->any.sa_family != AF_INET) {
        *out = in->v6;
        return;
    }
    memset(out, 0, sizeof *out);
    out->sin6_family = AF_INET6;
    out->sin6_port = in->v4.sin_port;
    out->sin6_addr.s6_addr[10] = out->sin6_addr.s6_addr[11] = 0xFF;
    memcpy(out->sin6_addr.s6_addr + 12, &in->v4.sin_addr, 4);
}

const char *address_text(const struct sockaddr_in6 *a, char out[ADDRESS_TEXT]) {
    if (address_is_v4(a)) {
        inet_ntop(AF_INET, a->sin6_addr.s6_addr + 12, out, ADDRESS_TEXT);
        return out;
    }
    inet_ntop(AF_INET6, &a->sin6_addr, out, ADDRESS_TEXT);
    if (a->sin6_scope_id != 0) {
        size_t used = strlen(out);
        snprintf(out + used, ADDRESS_TEXT - used, "%%%u", a->sin6_scope_id);
    }
    return out;
}
