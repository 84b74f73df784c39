#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer sees: on a Debian that has nothing but a compiler, make, git, ip and Python, an ordinary user clones
# HEAD and runs `make demo` and `make test`.  Of two processors one is busy.
#
#     SUITE=trixie PYTHON=python3.12 ARGS=tests/cli tools/bare.sh
#
# SUITE is bookworm (the default), trixie or forky, with Python 3.11, 3.13 or 3.14.  SUITE=here, the default without
# debootstrap, is a copy of those packages from this machine.  A PYTHON that the suite lacks is this machine's.  ARGS
# chooses tests.  Needs root, bubblewrap and, but for `here`, debootstrap.  The system is kept in
# ~/.cache/rnic/bare-SUITE; what pytest found is beside it, in bare-SUITE.parts.
set -euo pipefail
cd "$(dirname "$0")/.."

usual=here
! command -v debootstrap >/dev/null || usual=bookworm
suite=${SUITE:-$usual} python=${PYTHON:-python3}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rnic
root=$cache/bare-$suite
packages=gcc,libc6-dev,make,python3,python3-dev,python3-venv,git,iproute2,ca-certificates

if [ "$(id -u)" -ne 0 ] || ! command -v bwrap >/dev/null || { [ $suite != here ] && [ $usual = here ]; }; then
    echo "bare.sh: needs root, and: apt-get install bubblewrap debootstrap" >&2
    exit 1
fi

# A Debian of this machine's own packages: those above, what they need, and the essential ones.
copy_root() {
    local none=(--no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances) essential needed folder
    essential=$(dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p')
    # shellcheck disable=SC2086
    needed=$(apt-cache depends --recurse --installed "${none[@]}" ${packages//,/ } $essential | grep '^[a-z0-9]' | sort -u)
    for folder in bin sbin lib lib64; do
        [ ! -L /$folder ] || { mkdir -p "$1/usr/$folder" && ln -s usr/$folder "$1/$folder"; }
    done
    # shellcheck disable=SC2086
    {
        dpkg-query -L $needed 2>/dev/null || true
        find /etc/alternatives/* /usr/bin /usr/sbin -path '/etc/alternatives/*' -o -lname '/etc/alternatives/*'
    } | grep '^/[^.]' | sort -u | tar -C / -c --no-recursion --ignore-failed-read -T - 2>/dev/null |
        tar -C "$1" -x --keep-directory-symlink
    cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"
    cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"
    mkdir -p "$1"/{proc,dev,sys,tmp,root,opt,usr/local}
    chmod -R a+rX "$1/opt" "$1/usr/local"
    ldconfig -r "$1"
}

# From where apt on this machine has its packages, and through which proxy.
make_root() {
    local mirror script=/usr/share/debootstrap/scripts/$suite
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' 'Component: main' | head -n 1)
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    export http_proxy=${http_proxy:-} https_proxy=${https_proxy:-}
    # A suite that is newer than this debootstrap is made as all suites are.
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    debootstrap --variant=minbase --include="$packages" "$suite" "$1" "$mirror" "$script" >"$root.log" || {
        tail -n 5 "$root.log" >&2
        return 1
    }
}

# The mounts that lead pip to the package index as on this machine: its configuration, the certificates, and the files
# that it names.
pip_mounts() {
    local path
    {
        printf '%s\n' /etc/pip.conf /etc/xdg/pip /etc/ssl/certs /usr/local/share/ca-certificates
        { env | grep '^PIP_' | cut -d= -f2-; cat /etc/pip.conf /etc/xdg/pip/* ~/.config/pip/pip.conf ~/.pip/pip.conf; } 2>/dev/null |
            grep -oE '(file://|^|[ =])/[^/ ][^ ]*' | sed 's#^file://##; s#^[ =]##'
    } | while read -r path; do
        [ ! -e "$path" ] || printf '%s\n' --ro-bind "$path" "$path"
    done
}

# The folders above a path, the outermost first.
above() {
    local folder=${1%/*}
    [ -z "$folder" ] || { above "$folder"; echo "$folder"; }
}

# A Python that the bare system lacks: this machine's, pyenv's for instance, at its own place.
python_mounts() {
    local candidate prefix folder
    [ ! -e "$root/usr/bin/$python" ] || return 0
    for candidate in "$(command -v "$python")" ~/.pyenv/versions/*/bin/"$python"; do
        prefix=$("$candidate" -c 'import sys; print(sys.base_prefix)' 2>/dev/null) || continue
        # Below root's home, which is closed to users.
        mounts+=(--perms 0755 --tmpfs "$HOME")
        while read -r folder; do
            mounts+=(--perms 0755 --dir "$folder")
        done < <(above "$prefix")
        mounts+=(--ro-bind "$prefix" "$prefix")
        python=$prefix/bin/$python
        return 0
    done
    echo "bare.sh: neither $suite nor this machine has $python" >&2
    return 1
}

if [ ! -d "$root" ]; then
    umount "$root.part/proc" 2>/dev/null || : # of a run that was ended
    rm -rf --one-file-system "$root.part"
    mkdir -p "$root.part"
    if [ "$suite" = here ]; then copy_root "$root.part"; else make_root "$root.part"; fi
    echo "user:x:1000:1000::/home/user:/bin/bash" >>"$root.part/etc/passwd"
    echo "user:x:1000:" >>"$root.part/etc/group"
    mkdir -p "$root.part/home/user"
    touch "$root.part/etc/resolv.conf" "$root.part/etc/hosts"
    mv "$root.part" "$root"
fi
failed=0
run=$(mktemp -d "$cache/run.XXXXXX")
busy=
trap '[ -z "$busy" ] || kill $busy; rm -rf "$run"' EXIT
mkdir "$run/home" "$run/tmp"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$run/hosts"
git clone -q . "$run/home/rnic"
[ ! -e ~/.config/pip ] || { mkdir "$run/home/.config" && cp -r ~/.config/pip "$run/home/.config"; }
cat >"$run/home/both" <<'END'
cd rnic
failed=0
TIMEFORMAT="%R s, %U s of processors and %S s of the kernel"
time make demo PYTHON="$1" || failed=1
time make test PYTHON="$1" ${2:+ARGS="$2"} || failed=1
exit $failed
END
chown -R 1000:1000 "$run/home" "$run/tmp"

mapfile -t mounts < <(pip_mounts)
python_mounts
mapfile -t environment < <(env | grep -E '^(PIP_|SSL_CERT|REQUESTS_CA|https?_proxy=|no_proxy=)')
read -r first second < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2])')
taskset -c "${second:-$first}" sh -c 'while :; do :; done' &
busy=$!
# The limits of a login.
ulimit -Sn 1024
ulimit -l 8192
echo "== bare $suite, $python: a root of its own, entered by bubblewrap as user 1000"
env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user LANG=C.UTF-8 "${environment[@]}" \
    taskset -c "$first${second:+,$second}" \
    bwrap --bind "$root" / --proc /proc --dev /dev --perms 1777 --tmpfs /dev/shm --ro-bind /sys /sys \
    --bind "$run/home" /home/user --bind "$run/tmp" /tmp \
    --ro-bind "$run/hosts" /etc/hosts --ro-bind /etc/resolv.conf /etc/resolv.conf "${mounts[@]}" \
    --unshare-pid --die-with-parent --cap-add CAP_SETUID --cap-add CAP_SETGID --chdir /home/user \
    setpriv --reuid 1000 --regid 1000 --clear-groups bash ./both "$python" "${ARGS:-}" || failed=1

rm -rf "$root.parts"
[ ! -d "$run/home/rnic/.venv/parts" ] || cp -r "$run/home/rnic/.venv/parts" "$root.parts"
exit $failed
