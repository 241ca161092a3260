"""MIND (Microsoft News): trains the reference models on impressions and writes what serves and replays them.

    python3 -m dinghy_export.mind --data ../shared/data/mind --out data/mind --model din_sasrec

The first 80 % of the impressions by time train (the newest tenth of them chooses the epoch), the last 20 % are the
test. Items only: their ids are tokens of a vocabulary file made from the training part; a token seen once there, or
never, takes the OOV row, which is thereby trained. Click histories have no times: click number i of a user is at
score_logs.index_time(i).

--out gets events.jsonl (the store), models/ (bundles; a model root) and a folder per model with weights, log.jsonl,
metrics.json and requests.jsonl (the test as ScoreLogs with PyTorch's scores). --compare prints AUCs with paired bootstrap intervals.
"""

import argparse
import collections
import datetime
import json
import os
import time
from dataclasses import dataclass

import numpy as np
import torch

from dinghy_export import outputs, score_logs, training
from dinghy_export.bundle import write_lines
from dinghy_export.models import VARIANTS, IdFeature, ModelSpec, ReferenceModel, SequenceSpec, Table

FILE = "behaviors_MINDsmall_5000.tsv"
FIRST_ROW = 2  # after pad and OOV
HISTORY = 50
SETTINGS = {"epochs": 8, "batch_requests": 32, "learning_rate": 1e-3, "table_weight_decay": 0.1, "weight_decay": 0.01}


@dataclass
class Impression:
    id: str
    user: str
    time_ms: int
    history: list  # tokens, oldest first
    items: list  # tokens shown
    labels: list


def load(folder):
    """Impressions in time order. All impressions of a user must tell the same history: it is what the store holds."""
    impressions, histories = [], {}
    with open(os.path.join(folder, FILE), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            name, user, when, history, shown = line.rstrip("\n").split("\t")
            stamp = datetime.datetime.strptime(when, "%m/%d/%Y %I:%M:%S %p").replace(tzinfo=datetime.timezone.utc)
            history = history.split()
            if histories.setdefault(user, history) != history:
                raise ValueError(f"{FILE} line {number}: user {user}: expected the history of its other impressions")
            pairs = [entry.rsplit("-", 1) for entry in shown.split()]
            impressions.append(Impression(name, user, int(stamp.timestamp()) * 1000, history,
                                          [item for item, _ in pairs], [float(label) for _, label in pairs]))
    return sorted(impressions, key=lambda impression: (impression.time_ms, int(impression.id)))


def divide(impressions):
    """Train, validation and test impressions, by time."""
    test = len(impressions) * 8 // 10
    validation = test * 9 // 10
    return impressions[:validation], impressions[validation:test], impressions[test:]


def vocabulary(impressions):
    """Tokens seen at least twice, sorted."""
    counts = collections.Counter()
    users = set()
    for impression in impressions:
        counts.update(impression.items)
        if impression.user not in users:
            users.add(impression.user)
            counts.update(impression.history)
    return sorted(token for token, count in counts.items() if count >= 2)


def make_spec(variant, tokens):
    return ModelSpec(
        name=f"mind_{variant}", variant=variant, tables={"item": Table(FIRST_ROW + len(tokens), 32, zero_row=0)},
        files={"items.txt": tokens},
        candidate=(IdFeature("item", "item", {"file": {"path": "items.txt", "firstRow": FIRST_ROW}}, type="STRING",
                             pad_row=0, oov_row=1),),
        sequences=(SequenceSpec("clicks", ("click",), HISTORY, ("item",)),), outputs=("click",),
        attention_hidden=(32, 16), attention_normalization="SOFTMAX", tower_hidden=(64, 32), dropout=0.3)


def make_requests(impressions, spec):
    """Requests of impressions, with the histories of their users."""
    rows = {token: FIRST_ROW + line for line, token in enumerate(spec.files["items.txt"])}

    def encode(tokens):
        return np.array([rows.get(token, 1) for token in tokens], np.int64)

    stops = np.cumsum([len(impression.history) for impression in impressions])
    return training.Requests(
        candidates={"item": encode([item for impression in impressions for item in impression.items])},
        offsets=np.r_[0, np.cumsum([len(impression.items) for impression in impressions])],
        events={"clicks": {"clicks.item": encode([item for i in impressions for item in i.history])}},
        starts={"clicks": np.r_[0, stops[:-1]]}, stops={"clicks": stops},
        labels={"click": np.array([label for i in impressions for label in i.labels], np.float32)},
        groups=np.array([impression.user for impression in impressions]))


def events(impressions):
    users = {impression.user: impression.history for impression in impressions}
    for user, history in sorted(users.items()):
        for index, item in enumerate(history):
            yield score_logs.event(user, index, item, "click")


def request_logs(impressions, spec, scores):
    """ScoreLogs, histories left to the store."""
    begin = 0
    for impression in impressions:
        part = slice(begin, begin + len(impression.items))
        begin = part.stop
        yield score_logs.score_log(impression.id, spec.name, impression.user, impression.time_ms, [],
                                   [score_logs.column("item", impression.items)], {"click": impression.labels},
                                   {"click": scores[part]})


def inline_history(impression):
    """The SequenceData that the store gives for an impression."""
    history = impression.history[-HISTORY:]
    first = len(impression.history) - len(history)
    return [{"sequence": "clicks",
             "eventTimeMs": [str(score_logs.index_time(first + i)) for i in range(len(history))],
             "columns": [score_logs.column("item", history)] if history else []}]


def run(args):
    training.limit_threads(args.threads)
    impressions = load(args.data)
    parts = divide(impressions)
    spec = make_spec(args.model, vocabulary(parts[0]))
    train, validation, test = (make_requests(part, spec) for part in parts)
    print(f"{spec.name}: {len(train)} training, {len(validation)} validation, {len(test)} test impressions, "
          f"{len(spec.files['items.txt'])} known items", flush=True)
    settings = {**SETTINGS, **({"epochs": args.epochs} if args.epochs else {})}
    folder = os.path.join(args.out, args.model)
    torch.manual_seed(args.seed)
    began = time.time()
    result = training.train(ReferenceModel(spec), train, validation,
                            training.TrainOptions(folder=folder, seed=args.seed, **settings))
    scores = training.predict(result.model, test)["click"]
    metrics = outputs.write_metrics(args.out, folder, spec, result, test, scores, {"seed": args.seed, **settings})
    print(json.dumps(metrics), flush=True)
    logs = list(request_logs(parts[2], spec, scores))
    write_lines(os.path.join(folder, "requests.jsonl"), logs)
    write_lines(os.path.join(args.out, "events.jsonl"), events(impressions))
    requests = [{**logs[i]["request"], "sequences": inline_history(parts[2][i])} for i in outputs.spread(test, spec)]
    bundle = outputs.write_model(args.out, result, requests, "MIND-small, 5,000 impressions", metrics)
    print(f"wrote {folder} and {bundle} after {time.time() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("DINGHY_SHARED", "../shared")
    parser.add_argument("--data", default=os.path.join(shared, "data", "mind"),
                        help="folder of the data; default $DINGHY_SHARED/data/mind")
    parser.add_argument("--out", required=True, help="output folder")
    parser.add_argument("--model", choices=VARIANTS)
    parser.add_argument("--compare", action="store_true", help="compare the trained models of --out")
    parser.add_argument("--epochs", type=int, help=f"instead of {SETTINGS['epochs']}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.compare:
        print(outputs.compare(args.out, VARIANTS))
    elif args.model:
        if not os.path.exists(os.path.join(args.data, FILE)):
            parser.error(f"--data {args.data}: there is no {FILE}")
        run(args)
    else:
        parser.error("expected --model or --compare")


if __name__ == "__main__":
    main()
