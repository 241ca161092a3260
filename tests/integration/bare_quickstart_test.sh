#!/bin/bash
# The README's first command in a bare Debian 12: deploy/quickstart in a chroot made with mmdebstrap ends with 0.
# Root is needed. DINGHY_DEBIAN_MIRROR and DINGHY_BASE_TAR as in image_test.sh.
set -euo pipefail
source_dir=${DINGHY_SOURCE:?}
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
  echo "SKIPPED: needs root and mmdebstrap"
  exit 77
fi
root=$(mktemp -d)
cleanup() {
  umount "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap cleanup EXIT
if [ -n "${DINGHY_BASE_TAR:-}" ]; then
  tar -C "$root" -xf "$DINGHY_BASE_TAR"
else
  mmdebstrap --quiet --variant=minbase bookworm "$root" ${DINGHY_DEBIAN_MIRROR:-}
fi
mount -t proc proc "$root/proc" 2>/dev/null || true
mkdir "$root/dinghy"
tar -C "$source_dir" --exclude=./build --exclude=./data --exclude=./.git -cf - . | tar -C "$root/dinghy" -xf -
cp /etc/resolv.conf "$root/etc/resolv.conf"
chroot "$root" /dinghy/deploy/quickstart
