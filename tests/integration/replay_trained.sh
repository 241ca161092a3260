#!/bin/bash
# replay_trained.sh OUT MODEL [VERSION]: serves the bundles of a model that dinghy_export's mind or movielens trained into
# OUT, with the histories in RocksDB, replays its test requests through gRPC (histories fetched, not inline) and compares
# every score of a version, by default the newest, with PyTorch's. Fails where one differs by more than 1e-5, in bf16
# 1e-2, or the AUC by more than 1e-4.
#
# DINGHY: the binary, by default build/release/server/dinghy.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 2 ] || [ $# = 3 ] || { sed -n '2,7s/^# \?//p' "$0"; exit 2; }
out=$1 model=$2
dinghy=${DINGHY:-build/release/server/dinghy}
name=$(head -1 "$out/$model/requests.jsonl" | python3 -c 'import json, sys; print(json.load(sys.stdin)["request"]["model"])')
bundles=$out/models/$name
version=${3:-$(ls "$bundles" | sort -n | tail -1)}
tolerance=1e-5
if grep -q '"precision": *"BF16"' "$bundles/$version/bundle.json"; then tolerance=1e-2; fi

work=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || { kill -TERM "$server" && wait "$server"; } || true
  rm -rf "$work"
}
trap cleanup EXIT

"$dinghy" ingest --store "rocksdb:$work/histories" "$out/events.jsonl"
"$dinghy" serve --model_root "$out/models" --store "rocksdb:$work/histories" --listen 127.0.0.1:0 --allow_emulation \
  --metrics_listen 127.0.0.1:0 --port_file "$work/port" 2>"$work/server.log" &
server=$!
for _ in $(seq 600); do
  [ ! -s "$work/port" ] || break
  kill -0 "$server" || { cat "$work/server.log"; exit 1; }
  sleep 0.1
done
"$dinghy" replay --server "127.0.0.1:$(cat "$work/port")" --version "$version" --history store --tolerance "$tolerance" \
  --log "$out/$model/requests.jsonl" --out "$work/served.jsonl"
"$dinghy" eval --json --log "$work/served.jsonl" >"$work/eval.json"
python3 - "$work/eval.json" "$tolerance" <<'PYTHON'
import json, sys
series = {(s["output"], s["source"]): s for s in json.load(open(sys.argv[1]))["series"]}
for (output, source), served in series.items():
    if source == "served":
        reference = series[output, "pytorch"]
        gap = abs(served["auc"] - reference["auc"])
        print(f"{output}: {served['labelled']} candidates, AUC {served['auc']:.6f}, PyTorch's {reference['auc']:.6f}, "
              f"largest score difference {reference['max_abs_difference']:.2e}")
        assert gap <= 1e-4 and reference["max_abs_difference"] <= float(sys.argv[2])
        assert reference["compared"] == reference["candidates"]
PYTHON
