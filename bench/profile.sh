#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Where the time of a figure goes.
#
#   bench/profile.sh instructions [loop=chain] [size=8] [chain=32] [local=1]
#       per WRITE in chains, both ends in one thread (callgrind); loop=read: per READ; loop=pingpong: per SEND that is
#       answered
#   bench/profile.sh time TEST [name=value ...]      samples of both processes (perf); TEST as in bench/native.c
#   bench/profile.sh calls TEST [name=value ...]     system calls of both processes (strace)
#   bench/profile.sh python FILE ROLE ...            samples of a pair of Python's, and how often they were switched:
#       connend.py echo sync, patternend.py use get rnic, idleend.py use aio
#
# Instructions are counted outside the kernel, while time goes on by calls of the clock alone (bench/clock.c), and hardly
# differ from run to run.  bench/instructions.py keeps some.  Results stay in build-bench/.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
[ -x "$PYTHON" ] || PYTHON=python3
OUT=build-bench
OPERATIONS=${OPERATIONS:-32000}

needs() { command -v "$1" >/dev/null || { echo "profile.sh: no $1: apt-get install $2" >&2; exit 1; }; }

# A network namespace of its own where there may be one.
alone() {
    if [ "$(id -u)" -eq 0 ] && unshare --net true 2>/dev/null; then
        unshare --net sh -c 'ip link set lo up && exec "$@"' sh "$@"
    else
        "$@"
    fi
}

server_of() {
    case $1 in
    send_pingpong) echo echo ;;
    memory_pingpong) echo memory ;;
    send) echo sink ;;
    *) echo sleep ;;
    esac
}

instructions() {
    needs valgrind valgrind
    alone env LD_PRELOAD=$OUT/clock.so valgrind --tool=callgrind --callgrind-out-file=$OUT/callgrind.out --toggle-collect='counted_*' \
        $OUT/native - single count="$OPERATIONS" "$@" >/dev/null 2>$OUT/callgrind.log
    callgrind_annotate --auto=no $OUT/callgrind.out | "$PYTHON" -c '
import re, sys
n = int(sys.argv[1])
for line in sys.stdin:
    row = re.match(r"\s*([\d,]+) \(\s*[\d.]+%\)\s+(.*)", line)
    if not row:
        continue
    each, where = int(row[1].replace(",", "")) / n, re.sub(r" \[.*\]$", "", row[2])
    if each >= 4:
        print("%9.1f  %s" % (each, re.sub(r".*/src/nic/", "", where)))' "$OPERATIONS"
}

# Both processes of a figure, for two seconds.
pair() {
    test=$1
    shift
    alone "$PYTHON" - "$(server_of "$test")" "$test" "$@" <<'END'
import sys
sys.path.insert(0, "bench")
from build import build
from procs import pair

server, test, *words = sys.argv[1:]
program = str(build()["native"])
words = ["seconds=2", *words] if not any(w.startswith("seconds=") for w in words) else words
for key, value in pair([program, "FD", "serve", server, *words], [program, "FD", test, *words]).items():
    print(f"{key}: {value}")
END
}

"$PYTHON" bench/build.py >/dev/null
what=${1:-instructions}
[ $# -eq 0 ] || shift
case $what in
instructions) instructions "$@" ;;
time)
    needs perf linux-perf
    perf record -q -F 4000 -e cpu-clock -o $OUT/perf.data -- sh "$0" run "$@"
    perf report -i $OUT/perf.data --no-children --sort comm,dso,sym --stdio 2>/dev/null |
        grep -v '^#' | grep -v '^$' | grep -v python | head -"${LINES_SHOWN:-45}"
    ;;
python)
    needs perf linux-perf
    end=bench/$1 role=$2
    shift 2
    set -- "$PYTHON" bench/procs.py "$PYTHON" "$end" FD serve "$@" -- "$PYTHON" "$end" FD "$role" "$@"
    alone perf stat -e context-switches,task-clock "$@"
    alone perf record -q -F 2000 -e cpu-clock -o $OUT/perf.data -- "$@"
    perf report -i $OUT/perf.data --no-children --sort comm,dso,sym --stdio 2>/dev/null |
        grep -v '^#' | grep -v '^$' | head -"${LINES_SHOWN:-45}"
    ;;
calls)
    needs strace strace
    strace -f -c -o $OUT/strace.txt sh "$0" run "$@"
    head -25 $OUT/strace.txt
    ;;
run) pair "$@" ;;
*)
    sed -n '3,14s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
