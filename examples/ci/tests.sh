#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A test-suite of C programs that need RDMA, to be started with `rnic run`. In its place stands your own: `make check`,
# `ctest`, or what else starts programs that are linked with libibverbs or librdmacm.
set -eu

# Start a server, and its client until the server listens; both have to end well.
both() {
    echo "$1"
    $1 > server.txt 2>&1 &
    for _ in $(seq 100); do
        if $2 > client.txt 2>&1; then
            wait $! || { cat server.txt; exit 1; }
            return
        fi
        sleep 0.1
    done
    cat server.txt client.txt
    exit 1
}

cd "$(mktemp -d)"
device=$(ibv_devices | awk 'NR == 3 { print $1 }')
both "ibv_rc_pingpong -d $device -g 0 -c" "ibv_rc_pingpong -d $device -g 0 -c 127.0.0.1"
both "ib_write_bw -d $device -F -n 100" "ib_write_bw -d $device -F -n 100 127.0.0.1"
both "rping -s -a 127.0.0.1 -C 10 -V" "rping -c -a 127.0.0.1 -C 10 -V"
echo "all tests passed"
