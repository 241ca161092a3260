"""The encoder: vocabularies and their policies, catalogs, missing values, histories, hashes."""

import unittest

import numpy as np

from dinghy_export import features, hashing
from dinghy_export.features import CANDIDATE, SEQUENCE, USER, FeatureEncoder, RequestError, collate

CATALOG = {
    "columns": [
        features.ints("item", [2, 3, 4]),
        features.ints("genre", [1, 2, 3], [1, 2, 0]),
        features.floats("price", [10.0, 30.0], [1, 1, 0]),
    ]
}


def make_encoder():
    items = features.identity(10)
    return FeatureEncoder(
        [features.sequence("clicks", ["click"], 3)],
        [
            features.id_feature("item", CANDIDATE, "item", items),
            features.id_feature(
                "genre", CANDIDATE, "genre", features.identity(5), source="CATALOG", bag="BAG_MEAN", missing_id="PAD_ROW"
            ),
            features.numeric_feature("price", CANDIDATE, 20.0, 10.0, source="CATALOG", missing=20.0),
            features.id_feature("clicks.item", SEQUENCE, "item", items, source="EVENT"),
            features.id_feature(
                "clicks.genre", SEQUENCE, "genre", features.identity(5), source="CATALOG", bag="BAG_SUM",
                missing_id="PAD_ROW"
            ),
            features.time_since_feature("clicks.time", "time", [10, 100]),
            features.numeric_feature("age", USER, 3, 2, missing=1),
        ],
        "item",
        CATALOG,
    )


def make_request(**changes):
    request = {
        "requestTimeMs": 1000,
        "user": [features.floats("age", [7.0])],
        "candidates": [features.ints("item", [2, 3, 99])],
        "sequences": [
            {
                "sequence": "clicks",
                "eventTimeMs": [1, 2, 900, 991],
                "columns": [features.ints("item", [1, 2, 3, 4])],
            }
        ],
    }
    return {**request, **changes}


class HashTest(unittest.TestCase):
    def test_murmur3_of_every_tail_length(self):
        vectors = {  # from the reference implementation
            (b"", 0): 0, (b"", 1): 0x514E28B7, (b"", 0xFFFFFFFF): 0x81F16F39,
            (b"\xff\xff\xff\xff", 0): 0x76293B50, (b"!Ce\x87", 0): 0xF55B516B, (b"!Ce\x87", 0x5082EDEE): 0x2362F9DE,
            (b"!Ce", 0): 0x7E4A8634, (b"!C", 0): 0xA0F7B07A, (b"!", 0): 0x72661CF4,
            (b"Hello, world!", 0x9747B28C): 0x24884CBA, (("π" * 8).encode(), 0x9747B28C): 0xD58063C1,
            (b"a" * 256, 0x9747B28C): 0x37405BDC, (b"foo", 0): 4138058784, (b"foo", 42): 2972666014,
        }
        for (data, seed), expected in vectors.items():
            self.assertEqual(hashing.murmur3_32(data, seed), expected, (data, seed))

    def test_farm_fingerprint64_of_every_path(self):
        vectors = {  # length -> hash, from the C++ library
            0: 0x9AE16A3B2F90404F, 3: 0x373A2B2A12E0C581, 7: 0x960838FBC6D9C975, 12: 0x12A0D52D6F922439,
            20: 0x9C9EAF52A36E5A4C, 40: 0xF74F22348CADE37F, 64: 0xF03EAC52D3535, 65: 0xFB360C5023F60DB6,
            128: 0x33EF435F17AF1739, 129: 0xC30A81B637D2E4DD, 200: 0x51320A19A60CBD6E,
        }
        for size, expected in vectors.items():
            data = bytes((index * 37 + 11) & 255 for index in range(size))
            self.assertEqual(hashing.farm_fingerprint64(data), expected, size)

    def test_input_bytes(self):
        self.assertEqual(hashing.hash_input(-5, "TEXT"), b"-5")
        self.assertEqual(hashing.hash_input(-1, "INT64_LE"), b"\xff" * 8)

    def test_remainders_of_negative_hashes(self):
        # By published vectors "foo" has the signed hash -156908512; "akqlrggi" is made to have the most negative one,
        # whose absolute value scikit-learn takes as 2^31.
        vectors = {
            ("foo", "UNSIGNED", 1000): 4138058784 % 1000, ("foo", "FLOOR", 1000): -156908512 % 1000,
            ("foo", "ABSOLUTE", 1000): 156908512 % 1000, ("akqlrggi", "UNSIGNED", 1000): 648,
            ("akqlrggi", "FLOOR", 1000): 352, ("akqlrggi", "ABSOLUTE", 1000): 648,
            ("akqlrggi", "UNSIGNED", 2**31 - 1): 1, ("akqlrggi", "FLOOR", 2**31 - 1): 2**31 - 2,
            ("akqlrggi", "ABSOLUTE", 2**31 - 1): 1, ("", "UNSIGNED", 7): 0, ("", "FLOOR", 7): 0, ("", "ABSOLUTE", 7): 0,
        }
        for (text, remainder, buckets), expected in vectors.items():
            hashed = hashing.murmur3_32(text.encode())
            self.assertEqual(hashing.murmur3_bucket(hashed, remainder, buckets), expected, (text, remainder, buckets))
        self.assertEqual(hashing.murmur3_32(b"akqlrggi"), 2**31)
        with self.assertRaisesRegex(ValueError, "remainder: expected UNSIGNED, FLOOR or ABSOLUTE, got 'SIGNED'"):
            hashing.murmur3_bucket(1, "SIGNED", 5)

    def test_farm_hash_is_tensorflows_to_hash_bucket_fast(self):
        for texts, buckets, expected in (("abcd", 10, [9, 2, 2, 5]), (("Hello", "TensorFlow", "2.x"), 3, [0, 2, 2])):
            got = [hashing.farm_fingerprint64(text.encode()) % buckets for text in texts]
            self.assertEqual(got, expected)
        self.assertEqual(hashing.farm_fingerprint64(b"a"), 12917804110809363939)
        self.assertEqual(hashing.farm_fingerprint64(b""), 11160318154034397263)
        self.assertEqual(hashing.farm_fingerprint64(b"hello world"), 6381520714923946011)
        self.assertEqual(hashing.farm_fingerprint64(b"1234567890123456"), 17239105360639788068)

    def test_examples_hold(self):
        vocabulary = features.murmur3(17, 64, 2, ["Porto"], remainder="UNSIGNED")["murmur3"]
        row = 2 + hashing.murmur3_32(b"Porto", 17) % 64
        self.assertEqual(vocabulary["examples"][0], {"text": "Porto", "row": row})
        self.assertEqual(vocabulary["remainder"], "UNSIGNED")
        feature = features.id_feature("city", USER, "city", {"murmur3": vocabulary}, type="STRING")
        encoder = FeatureEncoder([], [feature], "item")
        encoded = encoder.encode({"user": [features.strings("city", ["Porto"])]})
        self.assertEqual(encoded.values["city"].tolist(), [row])
        self.assertEqual(features.table_rows(feature), 66)

    def test_examples_tell_what_they_are_examples_of(self):
        def row(vocabulary, example, **changes):
            changed = {**vocabulary, **changes}
            data = hashing.hash_input(example, changed["input"])
            hashed = hashing.murmur3_32(data, changed["seed"])
            return changed["firstRow"] + hashing.murmur3_bucket(hashed, changed["remainder"], changed["buckets"])

        for buckets in (1, 2, 3, 4, 97, 1000, 1 << 20, 2**31 - 3):
            for remainder in hashing.REMAINDERS:
                for first, kind in (("", "TEXT"), (0, "TEXT"), (0, "INT64_LE")):
                    vocabulary = features.murmur3(5, buckets, 2, [first], kind, remainder=remainder)["murmur3"]
                    ids = [next(v for k, v in e.items() if k != "row") for e in vocabulary["examples"]]
                    rows = [example["row"] for example in vocabulary["examples"]]
                    self.assertEqual(rows, [row(vocabulary, value) for value in ids])
                    self.assertTrue(buckets == 1 or buckets ** len(ids) >= 10**6, (buckets, ids))
                    for other in hashing.REMAINDERS:
                        same = rows == [row(vocabulary, value, remainder=other) for value in ids]
                        power = buckets & (buckets - 1) == 0 and "ABSOLUTE" not in (remainder, other)
                        self.assertEqual(same, other == remainder or buckets <= 2 or power, (buckets, remainder, other))
                    if first == 0 and buckets > 1:
                        other = "TEXT" if kind == "INT64_LE" else "INT64_LE"
                        self.assertNotEqual(rows, [row(vocabulary, value, input=other) for value in ids])

    def test_rows_of_the_trainer_are_proof(self):
        rows = {"foo": 2 + -156908512 % 1000}
        vocabulary = features.murmur3(0, 1000, 2, rows, remainder="FLOOR")["murmur3"]
        self.assertEqual(vocabulary["examples"][0], {"text": "foo", "row": rows["foo"]})
        with self.assertRaisesRegex(ValueError, "murmur3: examples: expected row 490 of 'foo', got 786"):
            features.murmur3(0, 1000, 2, rows, remainder="UNSIGNED")
        with self.assertRaisesRegex(ValueError, "farmHash: examples: expected at least one id, got none"):
            features.farm_hash(10, 0, [])
        with self.assertRaisesRegex(ValueError, "farmHash: buckets: expected at least 1, got 0"):
            features.farm_hash(0, 0, ["a"])

    def test_farm_hash_vocabulary(self):
        vocabulary = features.farm_hash(buckets=100, first_row=1, examples=[42], hash_input="INT64_LE")
        row = 1 + hashing.farm_fingerprint64((42).to_bytes(8, "little")) % 100
        self.assertEqual(vocabulary["farmHash"]["examples"][0], {"integer": 42, "row": row})
        feature = features.id_feature("item", CANDIDATE, "item", vocabulary)
        encoded = FeatureEncoder([], [feature], "item").encode({"candidates": [features.ints("item", [42])]})
        self.assertEqual(encoded.values["item"].tolist(), [row])


class EncoderTest(unittest.TestCase):
    def test_rows_and_catalog(self):
        encoded = make_encoder().encode(make_request())
        self.assertEqual(encoded.values["item"].tolist(), [2, 3, 1])  # 99 is out of the vocabulary
        self.assertEqual(encoded.values["genre"].tolist(), [[1, -1], [2, 3], [-1, -1]])
        self.assertEqual(encoded.values["price"].tolist(), [[-1.0], [1.0], [0.0]])
        self.assertEqual(encoded.values["age"].tolist(), [[2.0]])

    def test_history_keeps_the_newest(self):
        encoded = make_encoder().encode(make_request())
        self.assertEqual(encoded.lengths, {"clicks": 3})
        self.assertEqual(encoded.values["clicks.item"].tolist(), [2, 3, 4])
        self.assertEqual(encoded.values["clicks.genre"].tolist(), [[1, -1], [2, 3], [-1, -1]])
        self.assertEqual(encoded.values["clicks.time"].tolist(), [2, 2, 0])  # ages 998, 100, 9

    def test_behaviors_on_the_pad_row_are_left_out_of_all_columns(self):
        def encode(items, keep="NEWEST", **policies):
            base = make_encoder().features
            ten = features.identity(10)
            clicked = features.id_feature("clicks.item", SEQUENCE, "item", ten, source="EVENT", **policies)
            encoder = FeatureEncoder(
                [features.sequence("clicks", ["click"], 4, keep, pad="RIGHT", skip_pad_of="clicks.item")],
                [clicked if feature["name"] == "clicks.item" else feature for feature in base],
                "item",
                CATALOG,
            )
            times = [1, 2, 900, 950, 991][: len(items)]
            sequences = [{"sequence": "clicks", "eventTimeMs": times, "columns": [features.ints("item", items)]}]
            return encoder.encode(make_request(sequences=sequences))

        encoded = encode([2, 0, 3, 0, 4])
        self.assertEqual(encoded.lengths, {"clicks": 2})
        self.assertEqual(encoded.values["clicks.item"].tolist(), [3, 4])
        self.assertEqual(encoded.values["clicks.genre"].tolist(), [[2, 3], [-1, -1]])
        self.assertEqual(encoded.values["clicks.time"].tolist(), [2, 0])
        self.assertEqual(encode([2, 0, 3, 0, 4], keep="OLDEST").values["clicks.item"].tolist(), [2, 3])
        # An id that takes the pad row by a policy counts like a pad.
        self.assertEqual(encode([2, 77, 3], unknown="PAD_ROW").values["clicks.item"].tolist(), [2, 3])
        self.assertEqual(encode([2, -7, 3], negative="PAD_ROW").values["clicks.item"].tolist(), [2, 3])
        self.assertEqual(encode([2, 77, 3]).values["clicks.item"].tolist(), [2, 1, 3])
        empty = encode([0, 0])
        self.assertEqual(empty.lengths, {"clicks": 0})
        for name, rows in empty.values.items():
            if name.startswith("clicks."):
                self.assertEqual(len(rows), 0, name)

    def test_what_cannot_be_skipped_by(self):
        for name in ("clicks.genre", "clicks.time", "item", "clicks.shop"):
            sequence = features.sequence("clicks", ["click"], 4, skip_pad_of=name)
            encoder = FeatureEncoder([sequence], make_encoder().features, "item", CATALOG)
            with self.assertRaisesRegex(ValueError, f'"clicks": skipPadOf: expected a SINGLE id feature.*got "{name}"'):
                encoder.encode(make_request())

    def test_inline_columns_win_over_the_catalog(self):
        columns = [features.ints("item", [2, 3, 99]), features.ints("genre", [4, 4, 1, 2], [1, 1, 2])]
        encoded = make_encoder().encode(make_request(candidates=columns))
        self.assertEqual(encoded.values["genre"].tolist(), [[4, -1], [4, -1], [1, 2]])

    def test_missing_values(self):
        encoder = make_encoder()
        self.assertEqual(encoder.encode(make_request(user=[])).values["age"].tolist(), [[-1.0]])
        columns = [features.ints("item", [2, 3, 4]), features.floats("price", [40.0], [0, 1, 0])]
        encoded = encoder.encode(make_request(candidates=columns))
        self.assertEqual(encoded.values["price"].tolist(), [[0.0], [2.0], [0.0]])
        feature = features.id_feature("item", CANDIDATE, "item", features.identity(5))
        encoder = FeatureEncoder([], [feature, features.numeric_feature("age", USER)], "item")
        with self.assertRaisesRegex(RequestError, '"age" is missing'):
            encoder.encode({"candidates": [features.ints("item", [1])]})

    def test_policies(self):
        def rows(values, **policies):
            feature = features.id_feature("item", CANDIDATE, "item", features.identity(5), pad_row=0, oov_row=1, **policies)
            request = {"candidates": [features.ints("item", values)]}
            return FeatureEncoder([], [feature], "item").encode(request).values["item"].tolist()

        self.assertEqual(rows([4, 5, -1], unknown="OOV_ROW", negative="PAD_ROW"), [4, 1, 0])
        with self.assertRaisesRegex(RequestError, "item.*-1"):
            rows([-1], negative="REFUSE")
        with self.assertRaisesRegex(RequestError, "item.*5"):
            rows([5], unknown="REFUSE")

    def test_file_vocabulary(self):
        vocabulary = features.file_vocabulary("items.txt", 2)
        feature = features.id_feature("item", CANDIDATE, "item", vocabulary, type="STRING")
        encoder = FeatureEncoder([], [feature], "item", vocabularies={"items.txt": ["a", "b"]})
        encoded = encoder.encode({"candidates": [features.strings("item", ["b", "a", "c"])]})
        self.assertEqual(encoded.values["item"].tolist(), [3, 2, 1])
        self.assertEqual(features.table_rows(feature, tokens=2), 4)

    def test_vocabulary_of_a_trainer_with_pad_first_and_oov_last(self):
        cases = (("STRING", ["i7", "i9"], features.strings), ("INT64", ["70", "50"], features.ints))
        for type, tokens, column in cases:
            feature = features.id_feature(
                "item", CANDIDATE, "item", features.file_vocabulary("items.txt", 1), type=type, pad_row=0, oov_row=3
            )
            values = ["i9", "i7", "i8"] if type == "STRING" else [50, 70, 60]
            encoder = FeatureEncoder([], [feature], "item", vocabularies={"items.txt": tokens})
            encoded = encoder.encode({"candidates": [column("item", values)]})
            self.assertEqual(encoded.values["item"].tolist(), [2, 1, 3])
            self.assertEqual(features.table_rows(feature, tokens=2), 4)

    def test_unequal_columns(self):
        columns = [features.ints("item", [2, 3, 4]), features.floats("price", [1.0])]
        with self.assertRaisesRegex(RequestError, '"price": expected 3 rows, got 1'):
            make_encoder().encode(make_request(candidates=columns))

    def test_collate_pads_at_the_end(self):
        encoder = make_encoder()
        small = make_request(candidates=[features.ints("item", [4])], sequences=[])
        batch = collate([encoder.encode(make_request()), encoder.encode(small)])
        self.assertEqual(batch.values["clicks.item"].tolist(), [[2, 3, 4], [0, 0, 0]])
        self.assertEqual(batch.values["genre"][1].tolist(), [[-1, -1]] * 3)
        self.assertEqual(batch.lengths["clicks"].tolist(), [3, 0])
        self.assertEqual(batch.candidates.tolist(), [3, 1])
        empty = collate([encoder.encode(small)])
        self.assertEqual(tuple(empty.values["clicks.item"].shape), (1, 1))
        self.assertEqual(empty.values["price"].dtype.is_floating_point, True)
        self.assertEqual(encoder.encode(small).values["price"].dtype, np.float32)


if __name__ == "__main__":
    unittest.main()
