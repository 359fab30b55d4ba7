#!/bin/sh
# copy_of_machine.sh SCRIPT OUT   starts systemd in a copy of this machine and runs the script there
#                                 as root, from the top of the clone. Writes the script's output to
#                                 OUT/said and its exit code to OUT/code, and leaves nothing else.
#
# The caller has to be root in mount, pid, net, ipc, uts and cgroup namespaces of its own. The clone
# and OUT are shared with the machine.
set -eu

project=$(cd "$(dirname "$0")/../.." && pwd)
copy=$2/machine
root=$copy/root

mkdir "$copy"
mount -t tmpfs -o mode=755 tmpfs "$copy"
mkdir "$copy/upper" "$copy/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
for shared in "$project" "$2"; do
  mkdir -p "$root$shared"
  mount --bind "$shared" "$root$shared"
done

# systemd needs one hierarchy, of cgroup v2 or of cgroup v1.
if ! mount -t cgroup2 cgroup "$root/sys/fs/cgroup" 2>/dev/null || [ ! -w "$root/sys/fs/cgroup/cgroup.procs" ]; then
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
fi
ip link set lo up

cat >"$root/etc/systemd/system/played.service" <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
WorkingDirectory=$project
Environment="PATH=$PATH" "HOME=${HOME:-/root}"
ExecStart=/bin/sh -c 'sh "$1" >"$2/said" 2>&1; echo \$? >"$2/code"'
ExecStopPost=/bin/systemctl --force exit
UNIT

# pivot_root instead of chroot: the server's unit asks for a user namespace, and a process in a
# chroot may not create one.
cd "$root"
mkdir .before
pivot_root . .before
umount -l /.before
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=played.service
