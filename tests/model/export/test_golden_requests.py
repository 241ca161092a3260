"""Golden requests of a Built: the edges, tolerances that follow the outputs, wrong expectations that are refused."""

import os
import tempfile
import unittest

import numpy as np

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.bundle import to_json
from dinghy_export.evaluate import evaluate
from dinghy_export.goldens import GoldenMismatch, golden_requests_of, read_lines
from dinghy_export.manifest import provenance
from dinghy_export.random_requests import MANY_CANDIDATES, random_requests

ORIGIN = provenance("PyTorch", "random numbers", "2024-06-01T00:00:00Z")


def built_of(outputs=(("click", "SIGMOID"),), unknown="OOV_ROW"):
    """A model with every kind of feature: two sequences, a catalog, a vocabulary file, hashes, bags, numbers, times."""
    random = np.random.RandomState(1)
    b = Builder("m", item_feature="item")
    for name, rows, dim in (("item", 30, 3), ("genre", 9, 2), ("city", 52, 2), ("age", 4, 2)):
        b.table(name, random.randn(rows, dim))
    b.sequence("clicks", ["click"], 5, keep="NEWEST", pad="NONE")
    b.sequence("buys", ["buy"], 3, keep="OLDEST", pad="LEFT")
    ids = dict(pad_row=0, oov_row=1, unknown=unknown, negative="PAD_ROW")
    b.catalog = {
        "columns": [
            features.ints("item", list(range(2, 30))),
            features.ints("genre", [index % 9 for index in range(28)]),
        ]
    }
    b.vocabularies = {"cities.txt": [f"city {index}" for index in range(50)]}
    genre = features.identity(9)
    b.feature(features.id_feature("item", "CANDIDATE", "item", features.identity(30), **ids))
    b.feature(features.id_feature("genre", "CANDIDATE", "genre", genre, source="CATALOG", missing_id="PAD_ROW", **ids))
    b.feature(
        features.id_feature("city", "USER", "city", features.file_vocabulary("cities.txt", 2), type="STRING", **ids)
    )
    b.feature(
        features.id_feature(
            "tags", "USER", "genre", features.murmur3(7, 8, 1, ["a"], remainder="UNSIGNED"), type="STRING", bag="BAG_MEAN", **ids
        )
    )
    b.feature(features.numeric_feature("price", "CANDIDATE", 20.0, 5.0))
    b.feature(features.id_feature("clicks.item", "SEQUENCE", "item", features.identity(30), source="EVENT", **ids))
    b.feature(
        features.id_feature("clicks.genre", "SEQUENCE", "genre", genre, source="CATALOG", missing_id="OOV_ROW", **ids)
    )
    b.feature(features.time_since_feature("clicks.time", "age", [1000, 60000, 3600000]))
    b.feature(features.vector_feature("buys.image", "SEQUENCE", 4, source="EVENT"))
    b.layer("clicked", "pooling", inputs=["clicks.item", "clicks.genre", "clicks.time"], method="MEAN")
    b.layer("bought", "pooling", inputs=["buys.image"], method="LAST", empty="PAD_VALUE")
    inputs = ["item", "genre", "city", "tags", "price", "clicked", "bought"]
    for name, link in outputs:
        b.layer(name, "dense", inputs=inputs, **b.dense(name, random.randn(1, 3 + 2 + 2 + 2 + 1 + 7 + 4)))
        b.output(name, name, link)
    return b.build(ORIGIN)


def expected_of(built, change=0.0):
    request = {**random_requests(built)[0][1], "requestId": "from the library"}
    scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores
    return {
        "request": request,
        "outputs": [{"output": output, "scores": list(values + change)} for output, values in scores.items()],
    }


class RandomRequestsTest(unittest.TestCase):
    def test_edges(self):
        built = built_of()
        lengths, candidates = {}, {}
        for title, request in random_requests(built):
            encoded = built.encoder().encode(request)
            lengths[title], candidates[title] = encoded.lengths, encoded.candidates
        self.assertEqual(lengths["empty history"], {"clicks": 0, "buys": 0})
        self.assertEqual(lengths["one behavior"], {"clicks": 1, "buys": 1})
        self.assertEqual(lengths["full history"], {"clicks": 5, "buys": 3})
        self.assertEqual(lengths["history to be cut"], {"clicks": 5, "buys": 3})
        self.assertEqual(candidates["many candidates"], MANY_CANDIDATES)
        self.assertEqual(candidates["one candidate"], 1)
        unknown = built.encoder().encode(dict(random_requests(built))["unknown ids"])
        self.assertEqual(unknown.values["item"][:2].tolist(), [1, 0])  # beyond the vocabulary, and negative
        self.assertEqual(unknown.values["clicks.item"][:2].tolist(), [1, 0])
        cut = dict(random_requests(built))["history to be cut"]["sequences"][0]
        self.assertEqual(len(cut["eventTimeMs"]), 12)
        self.assertEqual(cut["eventTimeMs"], sorted(cut["eventTimeMs"]))

    def test_padding_that_is_sent_as_behaviors(self):
        built = built_of()
        self.assertFalse({"padding among behaviors", "only padding"} & set(dict(random_requests(built))))
        built.manifest["sequences"][0]["skipPadOf"] = "clicks.item"
        for feature in built.manifest["features"]:  # a behavior that the catalog does not hold
            if feature["name"] == "clicks.genre":
                feature.pop("missingId")
        self.assertFalse({"padding among behaviors", "only padding"} & set(dict(random_requests(built))))
        built = built_of()
        built.manifest["sequences"][0]["skipPadOf"] = "clicks.item"
        requests = dict(random_requests(built))
        for title, left in (("padding among behaviors", 2), ("only padding", 0)):
            request = requests[title]
            self.assertEqual(len(request["sequences"][0]["eventTimeMs"]), 5)
            self.assertEqual(built.encoder().encode(request).lengths, {"clicks": left, "buys": 3})

    def test_repeatable_and_refusing_models_get_no_unknown_ids(self):
        built = built_of(unknown="REFUSE")
        self.assertEqual(to_json(random_requests(built, 4)), to_json(random_requests(built, 4)))
        self.assertNotEqual(to_json(random_requests(built, 4)), to_json(random_requests(built, 5)))
        self.assertNotIn("unknown ids", dict(random_requests(built)))
        golden_requests_of(built)


class GoldenRequestsTest(unittest.TestCase):
    def test_tolerances_follow_the_outputs(self):
        self.assertEqual({log["tolerance"] for log in golden_requests_of(built_of())}, {1e-5})
        logs = golden_requests_of(built_of((("click", "SIGMOID"), ("score", "RAW"), ("buy", "SIGMOID"))))
        for log in logs:
            names = [output["output"] for output in log["outputs"]]
            self.assertEqual(log["request"]["outputs"], names)
            self.assertEqual(names, ["click", "buy"] if log["tolerance"] == 1e-5 else ["score"])
        self.assertEqual(len(logs), 2 * len(random_requests(built_of())))

    def test_expected_is_compared_and_kept(self):
        built = built_of()
        logs = golden_requests_of(built, expected=[expected_of(built, 4e-6)])
        self.assertEqual(logs[0]["request"]["requestId"], "from the library")
        self.assertAlmostEqual(
            float(logs[0]["outputs"][0]["scores"][0]), expected_of(built, 4e-6)["outputs"][0]["scores"][0], 6
        )
        self.assertEqual(built.notes, ["1 requests of the library's own: largest difference 4.0e-06"])

    def test_refusals(self):
        built = built_of()
        for change, message in (
            (
                lambda log: log["outputs"][0]["scores"].__setitem__(2, 0.5),
                'request "from the library": output "click", candidate 2: the library gave 0.5, this import gives .*; '
                "the bar is 1e-05",
            ),
            (lambda log: log["outputs"][0]["scores"].__setitem__(1, float("nan")), "candidate 1: the library gave nan"),
            (lambda log: log["outputs"][0]["scores"].pop(), 'output "click": expected 5 scores, got 4'),
            (lambda log: log.update(outputs=[]), "expected outputs of the library, got none"),
            (lambda log: log["outputs"][0].update(output="buy"), 'output "buy": expected one of click'),
            (lambda log: log["request"]["sequences"].pop(), 'sequence "buys": expected it inline .* got none'),
            (lambda log: log.pop("request"), "expected requests, line 1: expected a ScoreLog with a request"),
            (lambda log: log.update(outputs=5), "expected requests, line 1: expected a ScoreLog of proto/score_log.proto"),
            (lambda log: log["outputs"][0].pop("scores"), r"line 1: expected a ScoreLog .* \(KeyError: 'scores'\)"),
            (lambda log: log["request"]["candidates"][0].pop("feature"), r"line 1: .* \(KeyError: 'feature'\)"),
            (lambda log: log["outputs"][0].update(scores=[[1.0]]), r"expected 5 scores, got an array of shape \[1, 1\]"),
        ):
            log = expected_of(built)
            change(log)
            with self.subTest(message), self.assertRaisesRegex(GoldenMismatch, message):
                golden_requests_of(built, expected=[log])

    def test_lines_of_a_file(self):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "expected.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"a": 1}\n\n{"a": 2}\n')
            self.assertEqual(read_lines(path), [{"a": 1}, {"a": 2}])
            with open(path, "a", encoding="utf-8") as file:
                file.write("{")
            with self.assertRaisesRegex(ValueError, "expected.jsonl:4: expected a line of JSON"):
                read_lines(path)


if __name__ == "__main__":
    unittest.main()
