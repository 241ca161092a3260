"""MovieLens and MIND converters over small made-up files of the same format: what a log's request finds in the store is
the history that PyTorch scored, and splits never look ahead."""

import contextlib
import gzip
import io
import json
import os
import sys
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch

from dinghy_export import mind, movielens, score_logs, training
from dinghy_export.features import collate
from dinghy_export.manifest import encoder_of
from dinghy_export.models import VARIANTS, ReferenceModel

USERS = 7


def write_movielens(folder):
    rng = np.random.default_rng(1)
    with gzip.open(os.path.join(folder, "interactions_time_order.tsv.gz"), "wt") as file:
        file.write("movielens_user\tmovielens_movie\tlabel_rating_ge4\tsasrec_user\tsasrec_item_or_0\n")
        for user in range(1, USERS + 1):
            for item in rng.permutation(np.arange(1, 301))[:20 + 25 * user]:
                file.write(f"{user}\t{item}\t{int(user != 1 and rng.random() < 0.6)}\t{user}\t{item}\n")
    with open(os.path.join(folder, "movies.dat"), "w", encoding="latin-1") as file:
        for item in range(1, 301):
            genres = rng.permutation(movielens.GENRES)[:1 + item % 3]
            file.write(f"{item}::Caf\u00e9 {item} (1999)::{'|'.join(genres)}\n")
    with open(os.path.join(folder, "user_features.csv"), "w", encoding="utf-8") as file:
        file.write(",".join(["gender", "age"] + [f"occupation_{i}" for i in range(21)]) + "\n")
        for user in range(USERS):
            one_hot = [str(float(i == user % 21)) for i in range(21)]
            file.write(",".join([str(float(user % 2)), str((18 + user) / 56)] + one_hot) + "\n")


def write_mind(folder):
    rng = np.random.default_rng(2)
    histories = {f"U{user}": [f"N{n}" for n in rng.integers(0, 40, 12 * user)] for user in range(8)}
    with open(os.path.join(folder, mind.FILE), "w", encoding="utf-8") as file:
        for number in range(100):
            user = f"U{rng.integers(0, 8)}"
            shown = number // 3 + rng.permutation(30)[:rng.integers(2, 9)]  # news are new
            when = f"11/{9 + number // 24}/2019 {(number % 12) or 12}:05:09 {'AM' if number % 24 < 12 else 'PM'}"
            items = " ".join(f"N{item}-{int(place == 0)}" for place, item in enumerate(shown))
            file.write(f"{number}\t{user}\t{when}\t{' '.join(histories[user])}\t{items}\n")


def with_store(log, events, sequence, max_length):
    """The log's request with the sequence that a store with these events gives."""
    request = log["request"]
    found = [e for e in events if e["userId"] == request["userId"] and e["action"] in sequence.actions
             and int(e["eventTimeMs"]) < int(request["requestTimeMs"])]
    found = sorted(found, key=lambda e: (int(e["eventTimeMs"]), int(e["eventId"])))[-max_length:]
    items = [e["itemKey"] if "itemKey" in e else int(e["itemId"]) for e in found]
    columns = [score_logs.column("item", items)] if found else []
    if found and sequence.side:
        columns.append(score_logs.column("action", [e["action"] for e in found]))
    data = {"sequence": sequence.name, "eventTimeMs": [e["eventTimeMs"] for e in found], "columns": columns}
    return {**request, "sequences": [data]}


class ConverterTest(unittest.TestCase):

    def setUp(self):
        training.limit_threads(1)
        torch.manual_seed(1)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def check_logs(self, model, logs, events, catalog, inline):
        """Scores of the logs, with histories from the store, equal their references; `inline` gives the same ones."""
        spec = model.spec
        encoder = encoder_of(spec, catalog)
        self.assertGreater(len(logs), 4)
        for log, sequences in zip(logs, inline):
            request = with_store(json.loads(json.dumps(log)), events, spec.sequences[0], spec.sequences[0].max_length)
            self.assertEqual(request["sequences"], sequences)
            with torch.no_grad():
                scores = model.probabilities(collate([encoder.encode(request)]))
            for reference in log["references"]:
                self.assertEqual(reference["source"], "pytorch")
                np.testing.assert_allclose(scores[reference["output"]][0].numpy(), reference["scores"], atol=3e-6)

    def test_movielens_logs_replay_from_the_store(self):
        write_movielens(self.folder)
        ml = movielens.load(self.folder)
        events = list(movielens.events(ml))
        self.assertEqual(len({(e["userId"], e["eventTimeMs"]) for e in events}), len(ml.items))
        for task in ("rating", "next"):
            for variant in ("din_sasrec", "sasrec"):
                spec = movielens.make_spec(task, variant, ml)
                model = ReferenceModel(spec).eval()
                split = movielens.make_splits(task, ml, spec, seed=3)["test"]
                scores = training.predict(model, split.data)[spec.outputs[0]]
                logs = list(movielens.request_logs(ml, spec, split, scores))
                inline = [movielens.inline_history(ml, spec, u, n) for u, n in zip(split.users, split.numbers)]
                self.check_logs(model, logs, events, movielens.catalog(ml), inline)

    def test_movielens_rating_covers_each_rating_once(self):
        write_movielens(self.folder)
        ml = movielens.load(self.folder)
        splits = movielens.rating_splits(ml, movielens.make_spec("rating", "din", ml))
        self.assertEqual(sum(s.data.offsets[-1] for s in splits.values()), len(ml.items))
        for split in splits.values():
            # A request's history ends where its ratings begin.
            for request in range(len(split.data)):
                stop = split.data.stops["rated"][request]
                size = split.data.offsets[request + 1] - split.data.offsets[request]
                begin = split.data.offsets[request]
                np.testing.assert_array_equal(split.data.candidates["item"][begin:begin + size],
                                              ml.items[stop:stop + size])
                self.assertEqual(split.data.starts["rated"][request], ml.begin[split.users[request]])
        self.assertLess(splits["train"].numbers[splits["train"].users == 3].max(),
                        splits["test"].numbers[splits["test"].users == 3].min())

    def test_movielens_next_asks_for_the_last_liked(self):
        write_movielens(self.folder)
        ml = movielens.load(self.folder)
        splits = movielens.next_splits(ml, movielens.make_spec("next", "din", ml), seed=3)
        self.assertNotIn(1, splits["test"].users)  # liked nothing
        for part, split in splits.items():
            items = split.data.candidates["item"].reshape(-1, 2)
            for user, number, (positive, negative) in zip(split.users, split.numbers, items):
                mine = slice(ml.begin[user], ml.begin[user + 1])
                liked = np.flatnonzero(ml.liked[mine])
                self.assertEqual(ml.items[mine][number], positive)
                self.assertNotIn(negative, ml.items[mine])
                rank = len(liked) - 1 - int(np.flatnonzero(liked == number)[0])
                self.assertIn(rank, {"test": [0], "validation": [1], "train": range(2, 42)}[part])

    def test_mind_logs_replay_from_the_store(self):
        write_mind(self.folder)
        impressions = mind.load(self.folder)
        train, _, test = mind.divide(impressions)
        self.assertLessEqual(train[-1].time_ms, test[0].time_ms)
        spec = mind.make_spec("din_sasrec", mind.vocabulary(train))
        known = set(spec.files["items.txt"])
        self.assertTrue(any(item not in known for impression in test for item in impression.items))
        model = ReferenceModel(spec).eval()
        scores = training.predict(model, mind.make_requests(test, spec))["click"]
        logs = list(mind.request_logs(test, spec, scores))
        self.check_logs(model, logs, list(mind.events(impressions)), None,
                        [mind.inline_history(impression) for impression in test])

    def test_mind_refuses_a_history_that_changes(self):
        with open(os.path.join(self.folder, mind.FILE), "w", encoding="utf-8") as file:
            file.write("1\tU1\t11/9/2019 1:00:00 AM\tN1 N2\tN3-0\n2\tU1\t11/9/2019 2:00:00 AM\tN1\tN3-0\n")
        with self.assertRaisesRegex(ValueError, "line 2: user U1"):
            mind.load(self.folder)

    def test_command_writes_bundle_log_and_comparison(self):
        write_mind(self.folder)
        out = os.path.join(self.folder, "out")
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            for extra in (["--model", "no_history"], ["--model", "din"], ["--compare"]):
                arguments = ["mind", "--data", self.folder, "--out", out, "--epochs", "1", *extra]
                with mock.patch.object(sys, "argv", arguments):
                    mind.main()
        self.assertIn("minus no_history", text.getvalue())
        self.assertTrue(os.path.exists(os.path.join(out, "models", "mind_din", "1", "COMPLETE")))
        with open(os.path.join(out, "din", "requests.jsonl"), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 20)

    def test_variants_are_all_buildable(self):
        write_movielens(self.folder)
        ml = movielens.load(self.folder)
        for task in ("rating", "next"):
            for variant in VARIANTS:
                ReferenceModel(movielens.make_spec(task, variant, ml))


if __name__ == "__main__":
    unittest.main()
