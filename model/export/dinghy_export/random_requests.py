"""Random requests that fit a manifest, its edges among them.

    for title, request in random_requests(built, seed=1): ...

They cover: no history, one behavior, a full history and one that is cut, padding that is sent as behaviors, unknown ids,
one candidate and many. Only values that the features take are drawn, so that every request is answered.
"""

import numpy as np

from dinghy_export import features
from dinghy_export.features import RequestError, column_rows

TIME_MS = 1717200000000
STEP_MS = 1000
UNKNOWN_INTEGER = 987654321987
NEGATIVE_INTEGER = -5
UNKNOWN_TEXT = "an item that nobody knows"
MANY_CANDIDATES = 150


def random_requests(built, seed=20240601) -> list:
    """(title, ScoreRequest) pairs, sequences inline. `built`: a Built."""
    draw = _Draw(built, np.random.RandomState(seed))
    longest = {sequence["name"]: sequence["maxLength"] for sequence in built.manifest["sequences"]}

    def lengths(of):
        return {name: of(most) for name, most in longest.items()}

    pairs = [
        ("random", draw.request(5, lengths(lambda most: max(1, most // 2)))),
        ("many candidates", draw.request(MANY_CANDIDATES, lengths(lambda most: max(1, most // 3)))),
        ("one candidate", draw.request(1, lengths(lambda most: min(2, most)))),
    ]
    if longest:
        pairs += [
            ("empty history", draw.request(3, lengths(lambda most: 0))),
            ("one behavior", draw.request(3, lengths(lambda most: 1))),
            ("full history", draw.request(3, lengths(lambda most: most))),
            ("history to be cut", draw.request(3, lengths(lambda most: most + 7))),
        ]
    for title, every in (("padding among behaviors", 2), ("only padding", 1)):
        request = draw.with_padding(draw.request(3, lengths(lambda most: most)), every)
        if request is not None:
            pairs.append((title, request))
    if draw.can_be_unknown():
        pairs.append(("unknown ids", draw.request(4, lengths(lambda most: min(5, most)), unknown=0.5)))
    return pairs


class _Draw:
    def __init__(self, built, random):
        self.manifest, self.built, self.random = built.manifest, built, random
        self.catalog = {column["feature"]: column_rows(column) for column in (built.catalog or {}).get("columns", [])}

    def request(self, candidates, lengths, unknown=0.0):
        request = {
            "model": self.manifest["name"],
            "userId": "golden",
            "requestTimeMs": TIME_MS,
            "user": [],
            "candidates": [],
            "sequences": [],
        }
        for feature in self.manifest["features"]:
            if feature["level"] == "USER":
                request["user"].append(self.column(feature, feature["name"], 1, unknown))
            elif feature["level"] == "CANDIDATE" and not self.in_catalog(feature):
                request["candidates"].append(self.column(feature, feature["name"], candidates, unknown))
        for name, length in lengths.items():
            columns = []
            for feature in self.manifest["features"]:
                if feature.get("sequence") == name and "timeSince" not in feature and not self.in_catalog(feature):
                    columns.append(self.column(feature, feature["name"].split(".", 1)[1], length, unknown))
            ages = np.sort(self.random.randint(1, 1 + self.longest_age(name), length))[::-1]
            request["sequences"].append(
                {"sequence": name, "eventTimeMs": [TIME_MS - int(age) for age in ages], "columns": columns}
            )
        return request

    def with_padding(self, request, every):
        """The request with every so-manieth behavior one that takes the pad row of its sequence's skipPadOf; None where
        no sequence has it, or no such id is taken."""
        features_by_name = {feature["name"]: feature for feature in self.manifest["features"]}
        skipped = {
            sequence["name"]: features_by_name[sequence["skipPadOf"]]
            for sequence in self.manifest["sequences"]
            if sequence.get("skipPadOf")
        }
        changed = False
        for data in request["sequences"]:
            feature = skipped.get(data["sequence"])
            padding = None if feature is None else self.padding_id(feature)
            for column in data["columns"] if padding is not None else ():
                if column["feature"] == feature["name"].split(".", 1)[1]:
                    (values,) = (column[kind]["values"] for kind in ("ints", "strings") if kind in column)
                    values[::every] = [padding] * len(values[::every])
                    changed = True
        try:
            self.built.encoder().encode(request)
        except RequestError:  # such as of a behavior that the catalog does not hold
            return None
        return request if changed else None

    def padding_id(self, feature):
        """An id that takes the feature's pad row; None: there is none."""
        kind = feature["id"]
        if "identity" in kind:
            return kind["padRow"] if kind["padRow"] < kind["identity"]["rows"] else None
        if kind.get("unknown") == "PAD_ROW" and "file" in kind:
            return UNKNOWN_INTEGER if kind["type"] == "INT64" else UNKNOWN_TEXT
        return None

    def longest_age(self, sequence):
        boundaries = [
            int(edge)
            for feature in self.manifest["features"]
            if feature.get("sequence") == sequence
            for edge in feature.get("timeSince", {}).get("boundariesMs", [])
        ]
        return 2 * max(boundaries, default=500 * STEP_MS)

    def in_catalog(self, feature):
        field = feature["name"].split(".", 1)[1] if feature["level"] == "SEQUENCE" else feature["name"]
        return feature["from"] == "CATALOG" and field in self.catalog

    def can_be_unknown(self):
        return any(
            feature["id"].get("unknown") in ("OOV_ROW", "PAD_ROW")
            for feature in self.manifest["features"]
            if "id" in feature
        )

    def column(self, feature, name, rows, unknown):
        if "id" not in feature:
            width = feature["vector"]["dim"] if "vector" in feature else 1
            mean, stddev = (
                feature.get("numeric", {}).get(part, usual) for part, usual in (("mean", 0.0), ("stddev", 1.0))
            )
            values = (self.random.randn(rows * width) * stddev + mean).astype(np.float32)
            sizes = [width] * rows if "vector" in feature else None
            return features.floats(name, [float(str(value)) for value in values], sizes)
        kind = feature["id"]
        sizes = [1] * rows if kind["bag"] == "SINGLE" else [int(size) for size in self.random.randint(0, 5, rows)]
        ids = [self.one_id(feature, unknown) for _ in range(sum(sizes))]
        if unknown > 0:  # not left to chance
            for index, strange in enumerate(self.strange_ids(kind)[: len(ids)]):
                ids[index] = strange
        make = features.ints if kind["type"] == "INT64" else features.strings
        return make(name, ids, None if kind["bag"] == "SINGLE" else sizes)

    @staticmethod
    def strange_ids(kind):
        """An id beyond the vocabulary and a negative one, of those that the feature takes."""
        strange = []
        if kind.get("unknown") in ("OOV_ROW", "PAD_ROW"):
            strange.append(UNKNOWN_INTEGER if kind["type"] == "INT64" else UNKNOWN_TEXT)
        if kind["type"] == "INT64" and kind.get("negative") in ("OOV_ROW", "PAD_ROW"):
            strange.append(NEGATIVE_INTEGER)
        return strange

    def one_id(self, feature, unknown):
        kind = feature["id"]
        takes_unknown = kind.get("unknown") in ("OOV_ROW", "PAD_ROW")
        if takes_unknown and self.random.rand() < unknown:
            return UNKNOWN_INTEGER if kind["type"] == "INT64" else UNKNOWN_TEXT
        item = self.item_of_catalog(feature)
        if item is not None:
            return item
        if "identity" in kind:
            rows = [
                row
                for row in (self.random.randint(kind["identity"]["rows"]) for _ in range(20))
                if row not in (kind.get("padRow"), kind.get("oovRow"))
            ]
            return int(rows[0]) if rows else 0
        if "file" in kind:
            tokens = self.built.vocabularies[kind["file"]["path"]]
            token = tokens[self.random.randint(len(tokens))]
            return int(token) if kind["type"] == "INT64" else str(token)
        number = int(self.random.randint(1, 10**9))
        return number if kind["type"] == "INT64" else f"id {number}"

    def item_of_catalog(self, feature):
        item = self.manifest["itemFeature"]
        if feature["name"].split(".", 1)[-1] != item or item not in self.catalog:
            return None
        items = self.catalog[item][1]
        return items[self.random.randint(len(items))]
