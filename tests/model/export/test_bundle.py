"""Bundles: safetensors, the manifest against proto/bundle.proto, golden requests, COMPLETE."""

import hashlib
import json
import os
import re
import struct
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import bundle, features, safetensors
from dinghy_export.goldens import golden_requests, scores_of
from dinghy_export.manifest import encoder_of, manifest_of, provenance, tensors_of
from dinghy_export.models import (
    VARIANTS,
    IdFeature,
    ModelSpec,
    NumericFeature,
    ReferenceModel,
    SequenceSpec,
    Table,
    TimeSince,
)

SOURCE = os.environ.get("DINGHY_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..", ".."))
CATALOG = {
    "columns": [
        features.ints("item", list(range(2, 30))),
        features.ints("genre", [2 + item % 5 for item in range(56)], [2] * 28),
    ]
}


def make_spec(variant):
    rows = {"pad_row": 0, "oov_row": 1}
    city = features.murmur3(3, 8, 2, ["Porto"], remainder="FLOOR")
    return ModelSpec(
        name="small",
        variant=variant,
        tables={"item": Table(30, 8, 0), "genre": Table(8, 4, 0), "city": Table(10, 4), "time": Table(4, 4)},
        user=(
            NumericFeature("age", 40.0, 10.0, missing=40.0),
            IdFeature("city", "city", city, type="STRING", missing_id="OOV_ROW", **rows),
        ),
        candidate=(
            IdFeature("item", "item", features.identity(30), **rows),
            IdFeature(
                "genre",
                "genre",
                features.identity(8),
                bag="BAG_MEAN",
                source="CATALOG",
                missing_id="PAD_ROW",
                **rows,
            ),
        ),
        sequences=(
            SequenceSpec("clicks", ("click",), 6, ("item", "genre"), time_since=TimeSince("time", (10, 100, 1000))),
            SequenceSpec("purchases", ("purchase",), 4, ("item",)),
        ),
        outputs=("click", "purchase"),
    )


def make_request():
    return {
        "userId": "u1",
        "requestTimeMs": 5000,
        "user": [features.floats("age", [31.5]), features.strings("city", ["Porto"])],
        "candidates": [features.ints("item", [2, 9, 29])],
        "sequences": [
            {"sequence": "clicks", "eventTimeMs": [100, 4000, 4995], "columns": [features.ints("item", [5, 9, 7])]},
            {"sequence": "purchases", "eventTimeMs": [90, 4001], "columns": [features.ints("item", [8, 3])]},
        ],
    }


def make_model(variant="din_sasrec"):
    torch.manual_seed(5)
    return ReferenceModel(make_spec(variant)).eval()


def write(root, variant="din_sasrec"):
    model = make_model(variant)
    origin = provenance("a test", "nothing", "2024-01-01T00:00:00Z", seed=5)
    goldens = golden_requests(model, [make_request()], CATALOG)
    return bundle.write_bundle(root, 1, manifest_of(model, origin), tensors_of(model), goldens, CATALOG)


def parse_proto(path):
    """message -> field in lowerCamelCase -> (type, optional, repeated, is an enum, in a oneof)."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"//.*", "", file.read())
    messages, stack, enums = {}, [], set(re.findall(r"enum\s+(\w+)", text))
    pattern = r"(message|enum|oneof)\s+(\w+)\s*\{|(optional|repeated)?\s*([\w.]+|map<[^>]*>)\s+(\w+)\s*=\s*\d+\s*;|\}"
    for match in re.finditer(pattern, text):
        if match.group(1):
            stack.append((match.group(1), match.group(2)))
            if match.group(1) == "message":
                messages[match.group(2)] = {}
        elif match.group(0) == "}":
            stack.pop()
        elif stack and stack[-1][0] != "enum":
            owner = [name for kind, name in stack if kind == "message"][-1]
            name = re.sub(r"_(\w)", lambda letter: letter.group(1).upper(), match.group(5))
            kind = match.group(4)
            messages[owner][name] = (
                kind,
                match.group(3) == "optional",
                match.group(3) == "repeated",
                kind in enums,
                stack[-1][0] == "oneof",
            )
    return messages


def parse_optional(path):
    """(message, field in lowerCamelCase) of what the loader lets be absent: the list kOptional of its source."""
    with open(path, encoding="utf-8") as file:
        text = re.search(r"kOptional\[\] = \{(.*?)\};", file.read(), re.S).group(1)
    pairs = (name.split(".")[-2:] for name in re.findall(r'^\s*"([\w.]+)"', text, re.M))
    return {(message, re.sub(r"_(\w)", lambda letter: letter.group(1).upper(), field)) for message, field in pairs}


OPTIONAL = parse_optional(os.path.join(SOURCE, "model", "manifest.cc"))


class SafetensorsTest(unittest.TestCase):
    def test_round_trip(self):
        tensors = {
            "b": np.arange(6, dtype=np.float32).reshape(2, 3),
            "a": np.array([-0.5], dtype=np.float32),
            "none": np.zeros((0, 4), dtype=np.float32),
            "half": np.array([[1.5, -65504.0]], dtype=np.float16),
            "integers": np.array([[-127, 0, 5]], dtype=np.int8),
        }
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.safetensors")
            safetensors.write(path, tensors)
            with open(path, "rb") as file:
                content = file.read()
            read = safetensors.read(path)
        (size,) = struct.unpack_from("<Q", content)
        self.assertEqual(size % 8, 0)
        header = json.loads(content[8 : 8 + size])
        self.assertEqual(header["b"], {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]})
        self.assertEqual(header["half"], {"dtype": "F16", "shape": [1, 2], "data_offsets": [28, 32]})
        self.assertEqual(header["integers"], {"dtype": "I8", "shape": [1, 3], "data_offsets": [32, 35]})
        self.assertEqual(len(content), 8 + size + 35)
        self.assertEqual(sorted(read), sorted(tensors))
        for name in tensors:
            np.testing.assert_array_equal(read[name], tensors[name])
            self.assertEqual(read[name].dtype, tensors[name].dtype)

    def test_refuses_what_no_server_would_load(self):
        with self.assertRaisesRegex(ValueError, '"w": expected float32, float16 or int8, got float64'):
            safetensors.serialize({"w": np.zeros(2)})
        with self.assertRaisesRegex(ValueError, '"w": it holds NaN'):
            safetensors.serialize({"w": np.array([np.nan], dtype=np.float32)})


class ManifestTest(unittest.TestCase):
    def check(self, messages, kind, value, where):
        fields = messages[kind]
        self.assertLessEqual(set(value), set(fields), f"{where}: unknown fields of {kind}")
        for name, (field_kind, optional, repeated, is_enum, in_oneof) in fields.items():
            if name not in value:
                required = (optional or is_enum) and not repeated and not in_oneof and (kind, name) not in OPTIONAL
                self.assertFalse(required, f"{where}: {kind}.{name} is missing")
                continue
            self.assertIsNotNone(value[name], f"{where}.{name}")
            if field_kind in messages:
                for index, item in enumerate(value[name] if repeated else [value[name]]):
                    self.check(messages, field_kind, item, f"{where}.{name}[{index}]")

    def tensors_named(self, value):
        if isinstance(value, list):
            return set().union(*map(self.tensors_named, value), set())
        if not isinstance(value, dict):
            return set()
        names = {value[key] for key in ("weight", "bias", "tensor") if value.get(key)}
        return names | set().union(*map(self.tensors_named, value.values()), set())

    def test_every_field_of_the_contract(self):
        messages = parse_proto(os.path.join(SOURCE, "proto", "bundle.proto"))
        self.assertEqual(messages["SelfAttention"]["inputScale"], ("float", True, False, False, False))
        self.assertEqual(messages["Feature"]["level"], ("Level", False, False, True, False))
        for variant in VARIANTS:
            with self.subTest(variant):
                model = make_model(variant)
                manifest = manifest_of(model, provenance("a", "b", "c"))
                self.check(messages, "BundleManifest", manifest, variant)
                for feature in manifest["features"]:
                    if feature["level"] == "SEQUENCE":
                        self.assertIn(feature["sequence"], ("clicks", "purchases"))
                    policies = str(feature)
                    self.assertTrue("OOV_ROW" not in policies or "oovRow" in feature["id"])
                    self.assertTrue("PAD_ROW" not in policies or "padRow" in feature["id"])
                self.assertEqual(self.tensors_named(manifest), set(tensors_of(model)))

    def test_inputs_come_earlier(self):
        for variant in VARIANTS:
            manifest = manifest_of(make_model(variant), provenance("a", "b", "c"))
            known = {feature["name"] for feature in manifest["features"]}
            for layer in manifest["layers"]:
                attention = layer.get("targetAttention", {})
                terms = layer.get("add", layer.get("multiply", {})).get("terms", [])
                inputs = layer.get("inputs", []) + [name for term in terms for name in term["inputs"]]
                inputs += attention.get("query", []) + attention.get("keys", []) + attention.get("values", [])
                self.assertTrue(inputs)
                self.assertLessEqual(set(inputs), known, layer["name"])
                known.add(layer["name"])
            self.assertLessEqual({output["input"] for output in manifest["outputs"]}, known)


class BundleTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)

    def read(self, folder, path):
        with open(os.path.join(folder, path), "rb") as file:
            return file.read()

    def test_complete_lists_every_file(self):
        folder = write(self.root.name)
        self.assertEqual(folder, os.path.join(self.root.name, "small", "1"))
        self.assertEqual(os.listdir(os.path.dirname(folder)), ["1"])
        complete = self.read(folder, "COMPLETE")
        entries = json.loads(complete)["files"]
        paths = [entry["path"] for entry in entries]
        self.assertEqual(paths, sorted(set(os.listdir(folder)) - {"COMPLETE"}))
        self.assertEqual(
            paths, ["bundle.json", "catalog.json", "golden.jsonl", "tables.safetensors", "weights.safetensors"]
        )
        for entry in entries:
            content = self.read(folder, entry["path"])
            self.assertEqual(entry["size"], len(content))
            self.assertEqual(entry["sha256"], hashlib.sha256(content).hexdigest())
        self.assertEqual(bundle.digest(folder), hashlib.sha256(complete).hexdigest())

    def test_the_same_arguments_give_the_same_bytes(self):
        first = write(os.path.join(self.root.name, "a"))
        second = write(os.path.join(self.root.name, "b"))
        self.assertEqual(bundle.digest(first), bundle.digest(second))

    def test_a_version_is_never_replaced(self):
        folder = write(self.root.name)
        digest = bundle.digest(folder)
        with self.assertRaisesRegex(FileExistsError, "this version exists"):
            write(self.root.name)
        self.assertEqual(bundle.digest(folder), digest)

    def test_a_failure_leaves_nothing(self):
        manifest = {"name": "small", "tables": [{"name": "item", "tensor": "item.weight", "dim": 2}]}
        with self.assertRaisesRegex(ValueError, '"item.weight": it is not among'):
            bundle.write_bundle(self.root.name, 1, manifest, {}, [])
        with self.assertRaisesRegex(ValueError, '"../x": expected a free name'):
            bundle.write_bundle(self.root.name, 1, {"name": "small"}, {}, [], vocabularies={"../x": ["a"]})
        self.assertEqual(os.listdir(os.path.join(self.root.name, "small")), [])

    def test_a_folder_of_another_place(self):
        for name in ("", ".", "..", "../x", "a/b", ".new"):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "name: expected one that a folder can have"):
                bundle.write_bundle(self.root.name, 1, {"name": name}, {}, [])
        for version in (0, -1, 2**63):
            with self.subTest(version), self.assertRaisesRegex(ValueError, f"version: expected .*, got {version}"):
                bundle.write_bundle(self.root.name, version, {"name": "small"}, {}, [])
        self.assertEqual(os.listdir(self.root.name), [])

    def test_weights_are_the_module_s(self):
        folder, model = write(self.root.name), make_model()
        tables = safetensors.read(os.path.join(folder, "tables.safetensors"))
        weights = safetensors.read(os.path.join(folder, "weights.safetensors"))
        self.assertEqual(sorted(tables), ["city.weight", "genre.weight", "item.weight", "time.weight"])
        np.testing.assert_array_equal(tables["item.weight"], model.tables["item"].weight.detach().numpy())
        for name, tensor in tensors_of(model).items():
            np.testing.assert_array_equal({**tables, **weights}[name], tensor)

    def test_goldens_cover_the_edges(self):
        folder, model = write(self.root.name), make_model()
        goldens = [json.loads(line) for line in self.read(folder, "golden.jsonl").splitlines()]
        by_name = {golden["request"]["requestId"]: golden for golden in goldens}
        self.assertGreaterEqual(len(goldens), 8)

        def behaviors(name):
            return [len(data["eventTimeMs"]) for data in by_name[name]["request"]["sequences"]]

        self.assertEqual(behaviors("empty history"), [0, 0])
        self.assertEqual(behaviors("one behavior"), [1, 1])
        self.assertEqual(behaviors("full history"), [6, 4])
        self.assertEqual(behaviors("history to be cut"), [13, 11])
        unknown = by_name["unknown items"]["request"]["candidates"][0]["ints"]["values"]
        self.assertTrue(unknown[0] > 30 and unknown[1] < 0)
        inline = {column["feature"] for column in by_name["new item with its own features"]["request"]["candidates"]}
        self.assertEqual(inline, {"item", "genre"})
        self.assertGreaterEqual(len(by_name["many candidates"]["outputs"][0]["scores"]), 100)
        encoder = encoder_of(model.spec, CATALOG)
        for name, golden in by_name.items():
            request = golden["request"]
            self.assertEqual(request["model"], "small")
            self.assertNotIn("bundleDigest", golden)
            self.assertEqual(golden["tolerance"], 1e-5)
            for data in request["sequences"]:
                times = data["eventTimeMs"]
                self.assertEqual(times, sorted(times))
                self.assertTrue(all(time < request["requestTimeMs"] for time in times))
            scores = scores_of(model, encoder, request)
            self.assertEqual([output["output"] for output in golden["outputs"]], ["click", "purchase"])
            for output in golden["outputs"]:
                np.testing.assert_allclose(output["scores"], scores[output["output"]], rtol=0, atol=1e-7, err_msg=name)

    def test_every_variant(self):
        for variant in VARIANTS:
            with self.subTest(variant):
                folder = write(os.path.join(self.root.name, variant), variant)
                sequences = json.loads(self.read(folder, "bundle.json"))["sequences"]
                self.assertEqual(len(sequences), 0 if variant == "no_history" else 2)
                for line in self.read(folder, "golden.jsonl").splitlines():
                    sent = json.loads(line)["request"].get("sequences", [])
                    self.assertEqual(len(sent), len(sequences))


if __name__ == "__main__":
    unittest.main()
