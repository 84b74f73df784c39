#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what rnic is measured beside: from Debian as root, mpi4py and MPICH from PyPI into build-bench/mpi; and what
# draws the plots, and what calls are measured beside, into .venv.
# What cannot be had is said, and reported as absent by the benchmark; it is no error.
#
#   sh bench/peers.sh
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
PACKAGES="ucx-utils libfabric-bin iperf3 perftest rsync openssh-server"
MPI=build-bench/mpi

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q "^install ok installed"; }

if ! command -v apt-get >/dev/null; then
    echo "no Debian system: $PACKAGES are yours to install"
elif [ "$(id -u)" -ne 0 ]; then
    echo "not root: apt-get install $PACKAGES"
else
    apt-get update -qq || true
    for package in $PACKAGES; do
        installed "$package" || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" \
            >/dev/null || echo "absent: $package"
    done
fi

if ! "$MPI/bin/python" -c "from mpi4py import MPI" 2>/dev/null; then
    "$PYTHON" -m venv "$MPI" && "$MPI/bin/python" -m pip install -q --disable-pip-version-check mpi4py mpich ||
        echo "absent: mpi4py over MPICH"
fi
if [ -x .venv/bin/python ] && ! .venv/bin/python -c "import matplotlib, grpc, zmq" 2>/dev/null; then
    .venv/bin/python -m pip install -q --disable-pip-version-check matplotlib grpcio pyzmq ||
        echo "absent: matplotlib, grpcio or pyzmq"
fi
"$PYTHON" bench/peers.py
