/* SPDX-License-Identifier: Apache-2.0
 *
 * An ordinary program with sockets: `sockets PORT` echoes what one client says, `sockets PORT TEXT` says it.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(int rc, const char *what) {
    if (rc < 0) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char text[100] = "";
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    if (argc == 2) {
        must(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
        must(listen(fd, 1), "listen");
        int client = accept(fd, NULL, NULL);
        must(client, "accept");
        ssize_t n = recv(client, text, sizeof text, 0);
        must((int)n, "recv");
        must((int)send(client, text, (size_t)n, 0), "send");
        close(client);
    } else {
        must(connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
        must((int)send(fd, argv[2], strlen(argv[2]), 0), "send");
        must((int)recv(fd, text, sizeof text - 1, 0), "recv");
        puts(text);
    }
    close(fd);
    return 0;
}
