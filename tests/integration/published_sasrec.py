#!/usr/bin/python3
"""published_sasrec.py: the weights that SASRec.pytorch publishes for MovieLens-1M, served from a store over gRPC.

Imports them with golden requests that the repository's own computation gave, ingests the histories of all 6,040 users,
scores each one's 101 candidates through a server, and expects the published ranking: NDCG@10 0.593972, HR@10 0.820530,
within 0.0005. Then the same weights with every wrong wiring: the importer refuses them, and so does `dinghy validate`
where somebody writes such a bundle by hand.

DINGHY_SOURCE: the repository, DINGHY: the binary, DINGHY_SHARED: by default ../shared beside the repository. Exit code
77: the data is not there.
"""

import array
import contextlib
import copy
import glob
import gzip
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

SOURCE = os.environ["DINGHY_SOURCE"]
DINGHY = os.environ["DINGHY"]
SHARED = os.environ.get("DINGHY_SHARED", os.path.join(SOURCE, "..", "shared"))
sys.path.insert(0, os.path.join(SOURCE, "model", "export"))

from dinghy_export import features  # noqa: E402
from dinghy_export.__main__ import main  # noqa: E402
from dinghy_export.bundle import write_bundle, write_lines  # noqa: E402
from dinghy_export.importers.sasrec_pytorch import WIRINGS, build_sasrec  # noqa: E402
from dinghy_export.importers.weights import Weights  # noqa: E402
from dinghy_export.score_logs import index_time  # noqa: E402

WEIGHTS = os.path.join(SHARED, "data", "sasrec-pmixer")
MOVIES = os.path.join(SHARED, "data", "ml-1m")
NDCG, HIT_RATE, ALLOWED = 0.593972, 0.820530, 0.0005
CANDIDATES = 101


def run():
    if not os.path.isdir(WEIGHTS) or not os.path.isdir(MOVIES):
        print(f"SKIPPED: no folders {WEIGHTS} and {MOVIES}; set DINGHY_SHARED")
        return 77
    (checkpoint,) = glob.glob(os.path.join(WEIGHTS, "SASRec.epoch=860.*.pth"))
    histories = read_histories()
    assert len(histories) == 6040
    with tempfile.TemporaryDirectory() as work:
        logs = expected_logs(histories)
        expected = os.path.join(work, "expected.jsonl")
        write_lines(expected, logs)
        models = os.path.join(work, "models")
        code, text = run_import(checkpoint, "original", expected, models)
        assert code == 0, text
        print(text.strip())
        refuse_wrong_wirings(checkpoint, expected, logs, work)
        rank_all(histories, models, work)
    return 0


# --- Data -----------------------------------------------------------------------------------------------------------


def read_histories():
    """user -> items in the order of time, the last one to be predicted."""
    histories = defaultdict(list)
    with gzip.open(os.path.join(MOVIES, "ml-1m.txt.gz"), "rt", encoding="ascii") as file:
        for line in file:
            user, item = line.split()
            histories[int(user)].append(int(item))
    return histories


def read_candidates():
    """user -> 101 items; the first is the one that the user took."""
    values = array.array("h")
    with open(os.path.join(MOVIES, "eval_candidates_seed42.i16"), "rb") as file:
        values.frombytes(file.read())
    if sys.byteorder == "big":
        values.byteswap()
    return {
        1 + row: list(values[row * CANDIDATES : (row + 1) * CANDIDATES]) for row in range(len(values) // CANDIDATES)
    }


def expected_logs(histories):
    """ScoreLogs of what the published module gave; the histories whole, so that the bundle has to cut them."""
    with open(os.path.join(WEIGHTS, "golden_epoch860.json"), encoding="utf-8") as file:
        cases = json.load(file)["cases"]
    logs = []
    for case in cases:
        before = histories[case["user"]][:-1]
        assert before[-200:] == case["seq"], f"user {case['user']}"
        logs.append(
            {
                "request": {
                    "requestId": f"user {case['user']}",
                    "userId": str(case["user"]),
                    "candidates": [features.ints("item", case["items"])],
                    "sequences": [{"sequence": "history", "columns": [features.ints("item", before)]}],
                },
                "outputs": [{"output": "logit", "scores": case["logits"]}],
            }
        )
    return logs


# --- Wrong wirings --------------------------------------------------------------------------------------------------


def run_import(checkpoint, wiring, expected, models):
    """Exit code and what was printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main(
            [
                "import",
                "--from",
                "sasrec-pytorch",
                "--checkpoint",
                checkpoint,
                "--wiring",
                wiring,
                "--action",
                "rate",
                "--expected",
                expected,
                "--name",
                "movies",
                "--version",
                "1",
                "--out",
                models,
                "--data",
                "MovieLens-1M",
                "--created",
                "2024-06-25T00:00:00Z",
            ]
        )
    return code, out.getvalue()


def refuse_wrong_wirings(checkpoint, expected, logs, work):
    for wiring in WIRINGS:
        if wiring == "original":
            continue
        code, text = run_import(checkpoint, wiring, expected, os.path.join(work, "wrong"))
        assert code == 1, f"{wiring}: imported"
        reason = "the library gave" if WIRINGS[wiring].pad_position else "so many are in wiring original"
        assert text.startswith("refused: ") and reason in text, text
        print(f"{wiring}: {text.strip()}")
    right = build_sasrec(Weights.of_file(checkpoint), name="movies", wiring="original", heads=1)
    goldens = [{**log, "request": {**log["request"], "model": "movies"}, "tolerance": 1e-4} for log in logs]
    root = os.path.join(work, "by_hand")
    folder = write_bundle(root, 1, right.manifest, right.tensors, goldens)
    accepted = subprocess.run([DINGHY, "validate", folder], capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stderr
    for version, wiring in enumerate((wiring for wiring in WIRINGS if wiring != "original"), 2):
        manifest = copy.deepcopy(right.manifest)
        attention = manifest["layers"][0]["selfAttention"]
        attention["wiring"], attention["pads"] = WIRINGS[wiring].order, WIRINGS[wiring].pads
        for block in attention["blocks"]:
            block["ffn"][0]["activation"] = WIRINGS[wiring].activation
        folder = write_bundle(root, version, manifest, right.tensors, goldens)
        refused = subprocess.run([DINGHY, "validate", folder], capture_output=True, text=True)
        text = refused.stdout + refused.stderr
        assert (
            refused.returncode == 1 and "golden" in text and "logit" in text
        ), f"{wiring}: {refused.returncode} {text}"
        print(f"{wiring} by hand: {text.strip().splitlines()[0]}")


# --- The ranking ----------------------------------------------------------------------------------------------------


def rank_all(histories, models, work):
    """Every event is in the store, the one to be predicted too: the request's time, which is that one's, hides it."""
    events, requests = os.path.join(work, "events.tsv"), os.path.join(work, "requests.jsonl")
    with open(events, "w", encoding="ascii") as file:
        file.write("user_id\tevent_time_ms\taction\titem_id\tevent_id\n")
        for user, items in histories.items():
            file.writelines(f"{user}\t{index_time(index)}\trate\t{item}\t{index}\n" for index, item in enumerate(items))
    candidates = read_candidates()
    for user, items in histories.items():
        assert candidates[user][0] == items[-1]
    write_lines(
        requests,
        (
            {
                "request": {
                    "requestId": str(user),
                    "model": "movies",
                    "userId": str(user),
                    "requestTimeMs": index_time(len(items) - 1),
                    "candidates": [features.ints("item", candidates[user])],
                }
            }
            for user, items in histories.items()
        ),
    )
    store = f"rocksdb:{work}/histories"
    subprocess.run([DINGHY, "ingest", "--store", store, events], check=True)
    with serving(models, store, work) as address:
        begin = time.monotonic()
        subprocess.run(
            [
                DINGHY,
                "replay",
                "--server",
                address,
                "--history",
                "store",
                "--compare_only",
                "--concurrency",
                "2",
                "--out",
                f"{work}/served.jsonl",
                requests,
            ],
            check=True,
        )
        print(f"{len(histories)} requests of {CANDIDATES} candidates in {time.monotonic() - begin:.1f} s")
    gain = hits = users = 0
    with open(f"{work}/served.jsonl", encoding="utf-8") as file:
        for line in file:
            log = json.loads(line)
            assert not log.get("degradations"), log["degradations"]
            (scores,) = [output["scores"] for output in log["outputs"]]
            assert len(scores) == CANDIDATES
            users += 1
            rank = sum(score > scores[0] for score in scores[1:])
            if rank < 10:
                gain, hits = gain + 1 / math.log2(rank + 2), hits + 1
    print(
        f"{users} users: NDCG@10 {gain / users:.6f} (published {NDCG}), HR@10 {hits / users:.6f} (published {HIT_RATE})"
    )
    assert users == len(histories)
    assert abs(gain / users - NDCG) <= ALLOWED and abs(hits / users - HIT_RATE) <= ALLOWED


@contextlib.contextmanager
def serving(models, store, work):
    port = os.path.join(work, "port")
    with open(os.path.join(work, "server.log"), "w+", encoding="utf-8") as log:
        server = subprocess.Popen(
            [
                DINGHY,
                "serve",
                "--model_root",
                models,
                "--store",
                store,
                "--listen",
                "127.0.0.1:0",
                "--metrics_listen",
                "off",
                "--port_file",
                port,
            ],
            stderr=log,
        )
        try:
            while not os.path.exists(port) or os.path.getsize(port) == 0:
                if server.poll() is not None:
                    log.seek(0)
                    raise AssertionError(log.read())
                time.sleep(0.05)
            with open(port, encoding="utf-8") as file:
                yield "127.0.0.1:" + file.read().strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


if __name__ == "__main__":
    sys.exit(run())
