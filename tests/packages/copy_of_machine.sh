#!/bin/sh
# copy_of_machine.sh SCRIPT WORD...   runs the script as root of a copy of this machine, which is gone
#                                     afterwards. To be called in a mount namespace of its own.
set -eu

project=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$copy"
root=$copy/root
mkdir "$copy/upper" "$copy/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root$project"
mount --bind "$project" "$root$project"
exec chroot "$root" sh "$@"
