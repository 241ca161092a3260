"""MovieLens-1M: trains the reference models and writes what serves and replays them.

    python3 -m dinghy_export.movielens --data ../shared/data/ml-1m --out data/ml_next --task next --model din_sasrec

Two tasks.
  rating  Is a rating 4 or more? A user's last 20 % are the test. The history of a request is all that was rated before
          it, with the action (like, dislike) as a side feature; consecutive ratings share a request, and so a history.
  next    The user's last liked item against a random unseen one. Training: up to 40 liked ones before it with a random
          unseen one each; the history is the newest 50 liked before the positive.
In both, a user's newest training examples choose the epoch. The data has no times: rating number i of a user is at
score_logs.index_time(i), and a request at the time of the rating it asks about.

--out gets events.jsonl (the store), models/ (bundles; a model root) and a folder per model with weights, log.jsonl,
metrics.json and requests.jsonl (the test as ScoreLogs with PyTorch's scores). --compare reads the test scores of all models of
--out and prints AUCs with paired bootstrap intervals by user. Interrupted training goes on where it stopped.
"""

import argparse
import gzip
import json
import os
import time
from dataclasses import dataclass

import numpy as np
import torch

from dinghy_export import outputs, score_logs, training
from dinghy_export.bundle import write_lines
from dinghy_export.precision import PRECISIONS, TABLES
from dinghy_export.models import (VARIANTS, IdFeature, ModelSpec, NumericFeature, ReferenceModel, SequenceSpec, Table)

GENRES = ("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
          "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western")
GENRE_FIRST_ROW = 2  # after pad and OOV
MOVIES = 3953  # ids are 1 to 3952; row 0 is padding
HISTORY = 50
CHUNK = 10  # ratings that share a request
TRAIN_POSITIVES = 40


@dataclass
class MovieLens:
    """Ratings by user in time order: those of user u are begin[u] to begin[u + 1]; users start at 1."""
    items: np.ndarray
    liked: np.ndarray
    begin: np.ndarray
    users: int
    genres: np.ndarray  # [MOVIES, most genres] rows of the genre table, padded with -1
    genre_names: dict  # item -> names
    gender: np.ndarray  # by user; index 0 is unused
    age: np.ndarray  # years
    occupation: np.ndarray


def load(folder):
    with gzip.open(os.path.join(folder, "interactions_time_order.tsv.gz"), "rt") as file:
        rows = np.loadtxt(file, skiprows=1, dtype=np.int64)
    if not (np.diff(rows[:, 0]) >= 0).all():
        raise ValueError("interactions_time_order.tsv.gz: expected users in rising order")
    users = int(rows[-1, 0])
    begin = np.searchsorted(rows[:, 0], np.arange(users + 2))
    names = {}
    with open(os.path.join(folder, "movies.dat"), encoding="latin-1") as file:
        for line in file:
            item, _, genres = line.rstrip("\n").split("::")
            names[int(item)] = genres.split("|")
    table = np.full((MOVIES, max(len(genres) for genres in names.values())), -1, np.int64)
    for item, genres in names.items():
        table[item, :len(genres)] = [GENRES.index(genre) + GENRE_FIRST_ROW for genre in genres]
    with open(os.path.join(folder, "user_features.csv"), encoding="utf-8") as file:
        header = file.readline().strip().split(",")
        values = np.loadtxt(file, delimiter=",")
    if header[:3] != ["gender", "age", "occupation_0"] or len(values) != users:
        raise ValueError(f"user_features.csv: expected gender, age, occupations of {users} users, got {len(values)}")
    values = np.vstack([np.zeros(values.shape[1]), values])
    return MovieLens(rows[:, 1], rows[:, 2], begin, users, table, names, values[:, 0].astype(np.int64),
                     np.rint(values[:, 1] * 56).astype(np.float32), values[:, 2:].argmax(1))


def make_spec(task, variant, ml):
    genre = {"file": {"path": "genres.txt", "firstRow": GENRE_FIRST_ROW}}
    action = {"file": {"path": "actions.txt", "firstRow": 0}}
    files = {"genres.txt": list(GENRES)}
    tables = {"item": Table(MOVIES, 48, zero_row=0), "genre": Table(GENRE_FIRST_ROW + len(GENRES), 16, zero_row=0),
              "gender": Table(3, 4, zero_row=2), "occupation": Table(22, 8, zero_row=21)}
    if task == "rating":
        tables["action"] = Table(2, 16)
        files["actions.txt"] = ["like", "dislike"]
        sequence = SequenceSpec("rated", ("like", "dislike"), HISTORY, ("item", "genre"), side=(
            IdFeature("action", "action", action, type="STRING", source="EVENT", unknown="REFUSE"),))
    else:
        sequence = SequenceSpec("liked", ("like",), HISTORY, ("item", "genre"))
    age = ml.age[1:]
    return ModelSpec(
        name=f"ml1m_{task}_{variant}", variant=variant, tables=tables, files=files,
        candidate=(
            IdFeature("item", "item", {"identity": {"rows": MOVIES}}, pad_row=0, unknown="PAD_ROW",
                      negative="PAD_ROW"),
            IdFeature("genre", "genre", genre, bag="BAG_MEAN", type="STRING", source="CATALOG", pad_row=0, oov_row=1,
                      missing_id="PAD_ROW")),
        sequences=(sequence,),
        user=(
            IdFeature("gender", "gender", {"identity": {"rows": 2}}, oov_row=2, missing_id="OOV_ROW"),
            NumericFeature("age", round(float(age.mean()), 3), round(float(age.std()), 3),
                           missing=round(float(age.mean()), 3)),
            IdFeature("occupation", "occupation", {"identity": {"rows": 21}}, oov_row=21, missing_id="OOV_ROW")),
        outputs=("like" if task == "rating" else "next",), **SETTINGS[task]["model"])


# What the quick runs on the validation part chose.
SETTINGS = {
    "rating": {"model": {"attention_hidden": (32, 16), "tower_hidden": (128, 64), "dropout": 0.2},
               "train": {"epochs": 4, "batch_requests": 64, "learning_rate": 1e-3, "table_weight_decay": 0.02}},
    "next": {"model": {"attention_hidden": (32, 16), "attention_normalization": "SOFTMAX", "tower_hidden": (128, 64),
                       "dropout": 0.2},
             "train": {"epochs": 2, "batch_requests": 128, "learning_rate": 1e-3, "table_weight_decay": 0.02}},
}


@dataclass
class Split:
    """Requests with what their serving form needs: user and rating number (both of the user) of each."""
    data: training.Requests
    users: np.ndarray
    numbers: np.ndarray


def _split(ml, sequence, events, starts, stops, counts, items, labels, output, users, numbers):
    name = sequence.name
    columns = {f"{name}.item": events["item"], f"{name}.genre": ml.genres[events["item"]]}
    if "action" in events:
        columns[f"{name}.action"] = events["action"]
    users = np.asarray(users)
    data = training.Requests(
        candidates={"item": items, "genre": ml.genres[items]}, offsets=np.r_[0, np.cumsum(counts)].astype(np.int64),
        events={name: columns}, starts={name: np.asarray(starts)}, stops={name: np.asarray(stops)},
        labels={output: np.asarray(labels, np.float32)}, groups=users,
        user={"gender": ml.gender[users], "age": ml.age[users], "occupation": ml.occupation[users]})
    return Split(data, users, np.asarray(numbers))


def rating_splits(ml, spec):
    """Train, validation (the ratings from 75 to 80 % of a user) and test (the last 20 %)."""
    parts = {"train": [], "validation": [], "test": []}
    for user in range(1, ml.users + 1):
        begin, end = ml.begin[user], ml.begin[user + 1]
        count = end - begin
        bounds = (0, count * 3 // 4, count * 4 // 5, count)
        for part, low, high in zip(parts, bounds, bounds[1:]):
            for first in range(low, high, CHUNK):
                parts[part].append((user, begin, first, min(first + CHUNK, high)))
    events = {"item": ml.items, "action": 1 - ml.liked}  # like is row 0
    result = {}
    for part, rows in parts.items():
        user, begin, first, last = np.array(rows).T
        index = np.concatenate([np.arange(b + f, b + l) for _, b, f, l in rows])
        result[part] = _split(ml, spec.sequences[0], events, begin, begin + first, last - first, ml.items[index],
                              ml.liked[index], spec.outputs[0], user, first)
    return result


def next_splits(ml, spec, seed):
    """Train, validation (the liked item before the last) and test (the last). Each has one random unseen negative."""
    rng = np.random.default_rng(seed)
    catalog = np.unique(ml.items)
    where = np.flatnonzero(ml.liked)  # of all liked ratings
    liked_begin = np.searchsorted(where, ml.begin)
    parts = {"train": [], "validation": [], "test": []}
    for user in range(1, ml.users + 1):
        low, high = liked_begin[user], liked_begin[user + 1]
        if high == low:
            continue
        seen = set(ml.items[ml.begin[user]:ml.begin[user + 1]].tolist())
        train_high = max(low, high - 2)
        chosen = [("test", high - 1)]
        if high - low >= 2:
            chosen.append(("validation", high - 2))
        chosen += [("train", i) for i in range(max(low, train_high - TRAIN_POSITIVES), train_high)]
        for part, position in chosen:
            while True:
                negative = int(catalog[rng.integers(len(catalog))])
                if negative not in seen:
                    break
            parts[part].append((user, low, position, where[position] - ml.begin[user], negative))
    events = {"item": ml.items[where]}
    result = {}
    for part, rows in parts.items():
        user, low, position, number, negative = np.array(rows).T
        items = np.stack([events["item"][position], negative], axis=1).reshape(-1)
        result[part] = _split(ml, spec.sequences[0], events, low, position, np.full(len(rows), 2), items,
                              np.tile([1.0, 0.0], len(rows)), spec.outputs[0], user, number)
    return result


def make_splits(task, ml, spec, seed):
    return rating_splits(ml, spec) if task == "rating" else next_splits(ml, spec, seed)


def catalog(ml):
    """The item catalog, as protobuf JSON: genres of every movie."""
    items = sorted(ml.genre_names)
    genres = [genre for item in items for genre in ml.genre_names[item]]
    return {"columns": [score_logs.column("item", items),
                        score_logs.column("genre", genres, [len(ml.genre_names[item]) for item in items])]}


def events(ml):
    for user in range(1, ml.users + 1):
        begin, end = ml.begin[user], ml.begin[user + 1]
        for index in range(end - begin):
            action = "like" if ml.liked[begin + index] else "dislike"
            yield score_logs.event(str(user), index, int(ml.items[begin + index]), action)


def request_logs(ml, spec, split, scores):
    """ScoreLogs of a split, histories left to the store."""
    data, output = split.data, spec.outputs[0]
    for request, user in enumerate(split.users):
        part = slice(data.offsets[request], data.offsets[request + 1])
        yield score_logs.score_log(
            f"{user}-{split.numbers[request]}", spec.name, str(user), score_logs.index_time(split.numbers[request]),
            [score_logs.column("gender", [int(ml.gender[user])]), score_logs.column("age", [float(ml.age[user])]),
             score_logs.column("occupation", [int(ml.occupation[user])])],
            [score_logs.column("item", data.candidates["item"][part])],
            {output: data.labels[output][part]}, {output: scores[part]})


def inline_history(ml, spec, user, number):
    """The SequenceData that the store gives for a request at rating `number` of a user."""
    sequence = spec.sequences[0]
    begin = ml.begin[user]
    index = [i for i in range(number) if "dislike" in sequence.actions or ml.liked[begin + i]][-sequence.max_length:]
    columns = [score_logs.column("item", ml.items[[begin + i for i in index]])] if index else []
    if index and sequence.side:
        columns.append(score_logs.column("action", ["like" if ml.liked[begin + i] else "dislike" for i in index]))
    return [{"sequence": sequence.name, "eventTimeMs": [str(score_logs.index_time(i)) for i in index],
             "columns": columns}]


def run(args):
    training.limit_threads(args.threads)
    ml = load(args.data)
    spec = make_spec(args.task, args.model, ml)
    splits = make_splits(args.task, ml, spec, args.seed)
    folder = os.path.join(args.out, args.model)
    print(f"{spec.name}: " + ", ".join(
        f"{name} {len(s.data)} requests, {s.data.offsets[-1]} candidates" for name, s in splits.items()), flush=True)
    settings = dict(SETTINGS[args.task]["train"])
    if args.epochs:
        settings["epochs"] = args.epochs
    torch.manual_seed(args.seed)
    began = time.time()
    result = training.train(ReferenceModel(spec), splits["train"].data, splits["validation"].data,
                            training.TrainOptions(folder=folder, seed=args.seed, **settings))
    test = splits["test"]
    scores = training.predict(result.model, test.data)[spec.outputs[0]]
    metrics = outputs.write_metrics(args.out, folder, spec, result, test.data, scores,
                                     {"seed": args.seed, **settings})
    print(json.dumps(metrics), flush=True)
    logs = list(request_logs(ml, spec, test, scores))
    write_lines(os.path.join(folder, "requests.jsonl"), logs)
    if not os.path.exists(os.path.join(args.out, "events.jsonl")):
        write_lines(os.path.join(args.out, "events.jsonl"), events(ml))
    chosen = outputs.spread(test.data, spec)
    requests = [{**logs[i]["request"], "sequences": inline_history(ml, spec, int(test.users[i]), int(test.numbers[i]))}
                for i in chosen]
    bundle = outputs.write_model(args.out, result, requests, f"MovieLens-1M, task {args.task}", metrics, catalog(ml),
                                 args.precision, args.tables)
    print(f"wrote {folder} and {bundle} after {time.time() - began:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = os.environ.get("DINGHY_SHARED", "../shared")
    parser.add_argument("--data", default=os.path.join(shared, "data", "ml-1m"),
                        help="folder of the data; default $DINGHY_SHARED/data/ml-1m")
    parser.add_argument("--out", required=True, help="output folder, one per task")
    parser.add_argument("--task", choices=("rating", "next"), required=True)
    parser.add_argument("--model", choices=VARIANTS)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32",
                        help="bf16: writes a second version of the bundle, in bf16")
    parser.add_argument("--tables", choices=TABLES, default="f32",
                        help="f16, i8: the second version, or one, has its tables in that type")
    parser.add_argument("--compare", action="store_true", help="compare the trained models of --out")
    parser.add_argument("--epochs", type=int, help="instead of the task's own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.compare:
        print(outputs.compare(args.out, VARIANTS))
    elif args.model:
        if not os.path.exists(os.path.join(args.data, "interactions_time_order.tsv.gz")):
            parser.error(f"--data {args.data}: there is no interactions_time_order.tsv.gz")
        run(args)
    else:
        parser.error("expected --model or --compare")


if __name__ == "__main__":
    main()
