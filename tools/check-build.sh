#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check-build.sh PYTHON: can rnic be built here?  Each thing that is missing gives one line that names the Debian
# package which brings it.
python=${1:-python3}
missing=0

lacks() {
    echo "rnic: no $1: apt-get install $2" >&2
    missing=1
}

if ! command -v "$python" >/dev/null; then
    lacks "Python" "python3 python3-dev python3-venv"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    lacks "Python 3.11 or newer ($python is $version; or say make PYTHON=...)" "python3.11 python3.11-dev python3.11-venv"
else
    name=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    "$python" -c 'import ensurepip, venv' 2>/dev/null || lacks "venv for $name" "$name-venv"
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$headers/Python.h" ] || lacks "Python headers ($headers/Python.h)" "$name-dev"
fi

for cc in "$CC" cc gcc clang; do
    # CC may hold options too: its first word is the program.
    [ -n "$cc" ] && command -v "${cc%% *}" >/dev/null && break
    cc=
done
if [ -z "$cc" ]; then
    lacks "C compiler" "gcc libc6-dev"
elif ! printf '#include <stdio.h>\n#include <linux/if.h>\nint main(void) { return 0; }\n' |
    $cc -x c - -o /dev/null 2>/dev/null; then
    lacks "C library headers" "libc6-dev"
fi
exit $missing
