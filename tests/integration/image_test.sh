#!/bin/bash
# Builds deploy/Dockerfile without a Docker daemon and runs the image's own entry point in its root file system: serve
# the shop, score, stop on SIGTERM.
#
# The base is made with mmdebstrap and the image built with buildah (chroot isolation). Root is needed.
# DINGHY_DEBIAN_MIRROR: a mirror to use, by default what the tools take themselves. DINGHY_BASE_TAR: a Debian 12 root
# file system made before, instead of a new one.
set -euo pipefail
source_dir=${DINGHY_SOURCE:?}
if [ "$(id -u)" != 0 ] || ! command -v buildah >/dev/null || ! command -v mmdebstrap >/dev/null; then
  echo "SKIPPED: needs root, buildah and mmdebstrap"
  exit 77
fi

work=$(mktemp -d)
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=overlay
storage="--root $work/storage --runroot $work/run"
container=
server=
cleanup() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  [ -z "$container" ] || { buildah $storage umount "$container"; buildah $storage rm "$container"; } >/dev/null || true
  buildah $storage rm --all >/dev/null 2>&1 || true
  buildah $storage rmi --all --force >/dev/null 2>&1 || true
  rm -rf "$work" 2>/dev/null || true
}
trap cleanup EXIT

base=${DINGHY_BASE_TAR:-$work/base.tar}
[ -f "$base" ] || mmdebstrap --quiet --variant=minbase bookworm "$base" ${DINGHY_DEBIAN_MIRROR:-}
from=$(buildah $storage from scratch)
buildah $storage add --quiet "$from" "$base" / >/dev/null
buildah $storage commit --quiet "$from" localhost/debian-base >/dev/null
buildah $storage rm "$from" >/dev/null

buildah $storage build --quiet --pull-never --build-arg BASE=localhost/debian-base \
  --build-arg MIRROR="${DINGHY_DEBIAN_MIRROR:-}" -f "$source_dir/deploy/Dockerfile" -t localhost/dinghy "$source_dir"
config=$(buildah $storage inspect --type image localhost/dinghy)
read_config() { python3 -c "import json,sys; c=json.load(sys.stdin)['OCIv1']['config']; print($1)" <<<"$config"; }
[ "$(read_config "c['User']")" = dinghy ] || { echo "the image does not run as dinghy"; exit 1; }
[ "$(read_config "c['StopSignal']")" = SIGTERM ] || { echo "the stop signal is not SIGTERM"; exit 1; }
entry=$(read_config "' '.join(c['Entrypoint'])")

container=$(buildah $storage from --pull-never localhost/dinghy)
root=$(buildah $storage mount "$container")
for tool in g++ cmake protoc; do
  [ ! -e "$root/usr/bin/$tool" ] || { echo "$tool is in the runtime image"; exit 1; }
done
cp -r "$source_dir/deploy/demo/models/." "$root/models"
cp "$source_dir/deploy/demo/events.jsonl" "$source_dir/deploy/demo/request.json" "$root/tmp"
mkdir -p "$root/dev" && [ -e "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
in_image() { chroot --userspec=dinghy "$root" "$@"; }

# Not through in_image: $! must be the server itself.
chroot --userspec=dinghy "$root" $entry serve --model_root /models --store rocksdb:/data/histories \
  --listen 127.0.0.1:0 --metrics_listen 127.0.0.1:0 --port_file /data/port &
server=$!
for _ in $(seq 600); do
  [ ! -s "$root/data/port" ] || break
  kill -0 "$server" || { echo "the server did not start"; exit 1; }
  sleep 0.1
done
address=127.0.0.1:$(cat "$root/data/port")
in_image $entry health --server "$address"
in_image $entry ingest --server "$address" /tmp/events.jsonl
in_image $entry score --server "$address" /tmp/request.json | tee "$work/response.json"
grep -q '"scores"' "$work/response.json"
! grep -q '"degradations"' "$work/response.json"
kill -TERM "$server"
wait "$server" && code=0 || code=$?
server=
[ "$code" = 0 ] || { echo "exit code $code after SIGTERM"; exit 1; }
echo "image size: $(du -sm "$root" | cut -f1) MB"
