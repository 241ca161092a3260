#!/bin/bash
# real_data_test.sh {mind|rating|next}: trains din_sasrec for one epoch on real data, then compares what the service
# gives with what PyTorch gives (replay_trained.sh), for MovieLens in bf16 too. Skipped where the data is not there.
set -euo pipefail
source_dir=${DINGHY_SOURCE:?}
shared=${DINGHY_SHARED:-$source_dir/../shared}
task=$1
case "$task" in
  mind) data=$shared/data/mind; versions=1; train="-m dinghy_export.mind" ;;
  *) data=$shared/data/ml-1m; versions="1 2"; train="-m dinghy_export.movielens --task $task --precision bf16" ;;
esac
if [ ! -d "$data" ]; then
  echo "SKIPPED: no folder $data; set DINGHY_SHARED"
  exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
PYTHONPATH=$source_dir/model/export OMP_NUM_THREADS=1 \
  /usr/bin/python3 $train --data "$data" --out "$out" --model din_sasrec --epochs 1
for version in $versions; do
  "$source_dir/tests/integration/replay_trained.sh" "$out" din_sasrec "$version"
done
