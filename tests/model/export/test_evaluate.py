"""The float64 evaluator: rows against PyTorch's own modules, models against cases worked out by hand, against the
reference models of this package and the bundle of the demo."""

import json
import os
import unittest

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dinghy_export import features, safetensors
from dinghy_export.builder import Builder
from dinghy_export.evaluate import EvaluationError, evaluate
from dinghy_export.evaluate_rows import activate, batch_norm, dense, layer_norm
from dinghy_export.features import FeatureEncoder
from dinghy_export.manifest import provenance
from torch_messages import Tensors, close, randomize, seeded

ORIGIN = provenance("PyTorch", "random numbers", "2024-06-01T00:00:00Z")
DEMO = os.path.join(os.environ.get("DINGHY_SOURCE", "."), "deploy", "demo", "models", "shop", "1")


class RowsTest(unittest.TestCase):
    def setUp(self):
        self.x = torch.cat(
            [seeded(7, 6) * 3, torch.zeros(1, 6), torch.full((1, 6), 1000.0), torch.full((1, 6), -1000.0)]
        ).double()

    def test_activations(self):
        tensors = Tensors()
        alpha = tensors.put(seeded(6))
        for name, parameters, function in (
            ("LINEAR", {}, lambda x: x),
            ("RELU", {}, torch.relu),
            ("SIGMOID", {}, torch.sigmoid),
            ("TANH", {}, torch.tanh),
            ("SILU", {}, functional.silu),
            ("LEAKY_RELU", {"slope": 0.125}, lambda x: functional.leaky_relu(x, 0.125)),
            ("PRELU", {"alpha": alpha}, lambda x: functional.prelu(x, seeded(6))),
            ("GELU_ERF", {}, functional.gelu),
            ("GELU_TANH", {}, lambda x: functional.gelu(x, approximate="tanh")),
            ("DICE", {"alpha": alpha}, lambda x: torch.sigmoid(x) * x + seeded(6) * (1 - torch.sigmoid(x)) * x),
        ):
            with self.subTest(name):
                close(self, activate(name, parameters, self.x.numpy(), tensors.__getitem__), function(self.x))

    def test_batch_norm_and_dice(self):
        for affine in (True, False):
            module = randomize(nn.BatchNorm1d(6, eps=1e-3, affine=affine))
            tensors = Tensors()
            message = {
                "mean": tensors.put(module.running_mean),
                "variance": tensors.put(module.running_var),
                "weight": tensors.put(module.weight) if affine else "",
                "bias": tensors.put(module.bias) if affine else "",
                "epsilon": 1e-3,
            }
            close(self, batch_norm(message, self.x.numpy(), tensors.__getitem__), module(self.x))
            alpha = seeded(1)
            p = torch.sigmoid(module(self.x))
            close(
                self,
                activate("DICE", {"alpha": tensors.put(alpha), "norm": message}, self.x.numpy(), tensors.__getitem__),
                p * self.x + alpha * (1 - p) * self.x,
            )
            linear = randomize(nn.Linear(6, 6, bias=affine))
            close(
                self,
                dense({**tensors.linear(linear, "TANH"), "norm": message}, self.x.numpy(), tensors.__getitem__),
                torch.tanh(module(linear(self.x))),
            )

    def test_layer_norm(self):
        module = randomize(nn.LayerNorm(6, eps=1e-8))
        tensors = Tensors()
        close(self, layer_norm(tensors.norm(module), self.x.numpy(), tensors.__getitem__), module(self.x))


class EvaluateTest(unittest.TestCase):
    def builder(self, pad="NONE", bag="SINGLE"):
        b = Builder("m", item_feature="item")
        b.table("item", seeded(10, 2).float())
        b.sequence("s", ["a"], 4, keep="NEWEST", pad=pad)
        ids = dict(pad_row=3, oov_row=1)
        b.feature(features.id_feature("item", "CANDIDATE", "item", features.identity(10), **ids))
        b.feature(
            features.id_feature("s.item", "SEQUENCE", "item", features.identity(10), source="EVENT", bag=bag, **ids)
        )
        b.feature(features.vector_feature("s.v", "SEQUENCE", 2, source="EVENT"))
        b.feature(features.numeric_feature("age", "USER", 1.0, 2.0))
        return b

    def evaluate(self, b, length=2, calibration=None, link="SIGMOID", sizes=None):
        b.output("click", b.layers[-1]["name"], link, **(calibration or {}))
        built = b.build(ORIGIN)
        ids = [4, 5, 6, 7, 8, 9][: sum(sizes) if sizes else length]
        request = {
            "user": [features.floats("age", [4.0])],
            "candidates": [features.ints("item", [2, 9, 4])],
            "sequences": [
                {
                    "sequence": "s",
                    "columns": [
                        features.ints("item", ids, sizes),
                        features.floats("v", list(range(2 * length)), [2] * length),
                    ],
                }
            ],
        }
        return evaluate(built.manifest, built.tensors, built.encoder().encode(request)), b.tensors[
            "item.weight"
        ].astype(float)

    def test_levels_and_elementwise_layers(self):
        b = self.builder()
        b.layer("pooled", "pooling", inputs=["s.item", "s.v"], method="SUM")
        b.layer("sum", "add", terms=[{"inputs": ["item", "age"]}, {"inputs": ["age", "item"]}])
        b.layer("product", "multiply", terms=[{"inputs": ["age", "age"]}, {"inputs": ["s.item"]}])
        b.layer("logit", "dot", left=["pooled"], right=["item", "item"])
        result, table = self.evaluate(b, link="RAW")
        close(self, result.values["pooled"], np.concatenate([table[4] + table[5], [2.0, 4.0]])[None])
        close(self, result.values["sum"][1], [table[9][0] + 1.5, table[9][1] + table[9][0], 1.5 + table[9][1]])
        close(self, result.values["product"], 1.5 * table[[4, 5]])
        rows = table[[2, 9, 4]]
        close(self, result.scores["click"], rows @ (table[4] + table[5]) + rows @ np.array([2.0, 4.0]))

    def test_pads_take_the_pad_row_and_zeros(self):
        for pad in ("LEFT", "RIGHT"):
            b = self.builder(pad)
            b.layer(
                "interest",
                "targetAttention",
                query=["item"],
                keys=["s.item"],
                values=["s.item", "s.v"],
                dot={},
                normalization="SOFTMAX",
                empty="PAD_VALUE",
                mask=0.5,
            )
            b.layer("logit", "dot", left=["interest"], right=["interest"])
            result, table = self.evaluate(b, length=1)
            weights = np.exp([table[2] @ table[4], 0.5, 0.5, 0.5])
            expected = weights / weights.sum() @ np.array([[*table[4], 0, 1]] + 3 * [[*table[3], 0, 0]])
            close(self, result.values["interest"][0], expected)
            self.assertEqual(result.values["s.item"].shape, (1, 2))
            b = self.builder(pad)
            b.layer("last", "pooling", inputs=["s.item", "s.v"], method="LAST", empty="PAD_VALUE")
            b.layer("logit", "dot", left=["last"], right=["last"])
            result, table = self.evaluate(b, length=0)
            close(self, result.values["last"], [[*table[3], 0, 0]])
            self.assertEqual(result.scores["click"].shape, (3,))

    def test_bags(self):
        for bag, share in (("BAG_SUM", 1), ("BAG_MEAN", 2)):
            b = self.builder("LEFT", bag)
            b.layer("mean", "pooling", inputs=["s.item"], method="SUM", empty="PAD_VALUE")
            b.layer("logit", "dot", left=["mean"], right=["item"])
            result, table = self.evaluate(b, length=3, sizes=[2, 0, 1])
            close(self, result.values["s.item"], [(table[4] + table[5]) / share, [0, 0], table[6]])

    def test_calibrations(self):
        for calibration, function in (
            ({}, lambda p: p),
            ({"negativeDownsampling": {"rate": 0.1}}, lambda p: p / (p + (1 - p) / 0.1)),
            ({"platt": {"slope": 0.5, "intercept": -1.0}}, lambda p: 1 / (1 + np.exp(1 - 0.5 * np.log(p / (1 - p))))),
            (
                {"piecewiseLinear": {"x": [0.4, 0.6], "y": [0.2, 0.2]}},
                lambda p: np.where(p < 0.4, p / 2, np.where(p < 0.6, 0.2, 0.2 + (p - 0.6) * 2)),
            ),
        ):
            b = self.builder()
            b.layer("logit", "dot", left=["item"], right=["item"])
            result, table = self.evaluate(b, calibration=calibration)
            p = 1 / (1 + np.exp(-(table[[2, 9, 4]] ** 2).sum(1)))
            close(self, result.scores["click"], function(p))

    def test_what_has_no_value_is_refused(self):
        b = self.builder("RIGHT")
        b.layer(
            "rows",
            "selfAttention",
            inputs=["s.item"],
            blocks=[],
            heads=1,
            wiring="PRE_NORM",
            causal=False,
            inputScale=1.0,
            pads="MASKED",
        )
        b.layer("last", "pooling", inputs=["rows"], method="LAST", empty="PAD_VALUE")
        b.layer("logit", "dot", left=["last"], right=["item"])
        with self.assertRaisesRegex(EvaluationError, 'output "click": it reads a pad behavior that has no value'):
            self.evaluate(b, length=0)
        b = self.builder()
        b.layer("logit", "dense", inputs=["item", "s.v"], weight="w", bias="", activation="LINEAR")
        b.layer("x", "add", terms=[{"inputs": ["item"]}, {"inputs": ["s.item"]}])
        with self.assertRaisesRegex(EvaluationError, 'layer "logit": .*expected one level above USER'):
            self.evaluate(b)


class DemoTest(unittest.TestCase):
    def test_golden_requests_of_the_demo(self):
        """Their scores are PyTorch's: two sequences and outputs, self-attention, target attention, many features."""
        with open(os.path.join(DEMO, "bundle.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        with open(os.path.join(DEMO, "catalog.json"), encoding="utf-8") as file:
            catalog = json.load(file)
        tensors = {}
        for name in ("weights", "tables"):
            tensors.update(safetensors.read(os.path.join(DEMO, f"{name}.safetensors")))
        tokens = {}
        for feature in manifest["features"]:
            path = feature.get("id", {}).get("file", {}).get("path")
            if path:
                with open(os.path.join(DEMO, path), encoding="utf-8") as file:
                    tokens[path] = file.read().splitlines()
        encoder = FeatureEncoder(manifest["sequences"], manifest["features"], manifest["itemFeature"], catalog, tokens)
        compared = 0
        with open(os.path.join(DEMO, "golden.jsonl"), encoding="utf-8") as file:
            for golden in map(json.loads, file):
                scores = evaluate(manifest, tensors, encoder.encode(golden["request"])).scores
                for output in golden["outputs"]:
                    difference = np.abs(scores[output["output"]] - output["scores"]).max(initial=0.0)
                    self.assertLess(difference, 2e-6, golden["request"]["requestId"])
                    compared += len(output["scores"])
        self.assertGreater(compared, 500)


if __name__ == "__main__":
    unittest.main()
