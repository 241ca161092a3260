"""The importer of TorchEasyRec: its MLPs and sequence encoders against plain PyTorch."""

import re
import unittest

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.evaluate import evaluate
from dinghy_export.importers import torcheasyrec_layers as layers
from dinghy_export.importers.torcheasyrec_layers import Columns, MlpSpec
from dinghy_export.importers.weights import ImportRefused
from dinghy_export.manifest import provenance
from torcheasyrec_reference import State, din, mlp, multi_window, self_attention

SPECS = [
    MlpSpec([5, 3]),
    MlpSpec([4], "Dice"),
    MlpSpec([5, 3], "Dice", use_bn=True),
    MlpSpec([4, 4, 2], "nn.PReLU", bias=False),
    MlpSpec([3], "nn.LeakyReLU(negative_slope=0.3)", use_bn=True),
    MlpSpec([3], "nn.GELU"),
    MlpSpec([3], "nn.GELU(approximate='tanh')"),
    MlpSpec([3, 2], "nn.Sigmoid"),
    MlpSpec([3, 2], "nn.Tanh"),
    MlpSpec([3, 2], "nn.SiLU"),
    MlpSpec([3, 2], "")
]


def vectors(query_width, width):
    """A builder with a query and a history of vectors."""
    builder = Builder("m", "item")
    builder.table("item", np.zeros((1, 1), dtype=np.float32))
    builder.sequence("history", ["view"], 6, keep="NEWEST", pad="NONE")
    builder.feature(features.id_feature("item", "CANDIDATE", "item", features.identity(1)))
    builder.feature(features.vector_feature("query", "CANDIDATE", query_width))
    builder.feature(features.vector_feature("history.vector", "SEQUENCE", width, source="EVENT"))
    return builder, Columns([("query", query_width)]), Columns([("history.vector", width)])


def value(builder, name, query, sequence):
    request = {
        "candidates": [features.ints("item", [0]),
                       features.floats("query", list(query), [len(query)])], "sequences": [{
                           "sequence": "history", "columns": [
                               features.floats("vector", [x for row in sequence for x in row],
                                               [len(row) for row in sequence])
                           ]
                       }]
    }
    built = builder.build(provenance("a", "b", "c"))
    return evaluate(built.manifest, built.tensors, built.encoder().encode(request)).values[name][0]


def random_vectors(rows, width, seed):
    return np.random.RandomState(seed).randn(rows, width).astype(np.float32)


class LayersTest(unittest.TestCase):
    def test_mlp(self):
        query, history = random_vectors(1, 4, 1)[0], random_vectors(2, 3, 2)
        for spec in [
                *SPECS,
                MlpSpec([5, 3], use_ln=True),
                MlpSpec([4], "Dice", use_ln=True),
                MlpSpec([4], "", use_ln=True)
        ]:
            with self.subTest(spec=spec):
                state = State()
                expected = mlp(state, "m", torch.tensor(query).double()[None], spec)[0]
                builder, columns, _ = vectors(4, 3)
                result = layers.add_mlp(builder, state.weights(), "m", "tower", columns, spec)
                self.assertEqual(result.width(), spec.hidden_units[-1])
                np.testing.assert_allclose(value(builder,
                                                 result.names()[0], query, history), expected, rtol=0, atol=1e-7)

    def test_din_encoder(self):
        for spec in SPECS:
            for query_width in (3, 2):
                state = State()
                query = random_vectors(1, query_width, 1)[0]
                for rows in (0, 1, 5):
                    with self.subTest(spec=spec, query_width=query_width, rows=rows):
                        history = random_vectors(rows, 3, 4)
                        expected = din(state, "e", torch.tensor(query).double(), torch.tensor(history).double(), spec)
                        builder, columns, sequence = vectors(query_width, 3)
                        weights = state.weights()
                        layers.add_din_encoder(builder, weights, "e", "out", columns, sequence, spec)
                        weights.finish()
                        np.testing.assert_allclose(value(builder, "out", query, history), expected, rtol=0, atol=1e-7)

    def test_multi_window(self):
        spec, windows = MlpSpec([5, 3], "Dice", use_bn=True), [1, 2, 1]
        state, query = State(), random_vectors(1, 2, 1)[0]
        for newest_first in (False, True):
            for rows in (0, 1, 2, 6):
                with self.subTest(newest_first=newest_first, rows=rows):
                    history = random_vectors(rows, 3, 4)  # oldest first, as a request has it
                    inside = history[::-1].copy() if newest_first else history
                    expected = multi_window(state, "e",
                                            torch.tensor(query).double(),
                                            torch.tensor(inside).double(), spec, windows)
                    builder, columns, sequence = vectors(2, 3)
                    out = layers.add_multi_window_din_encoder(builder, state.weights(), "e", "out", columns, sequence,
                                                              spec, windows, newest_first)
                    self.assertEqual(out.parts, [("out", 9), ("query", 2), (None, 1)])
                    np.testing.assert_allclose(value(builder, "out", query, history), expected[:9], rtol=0, atol=1e-7)
                    weight = np.arange(24.0).reshape(2, 12)
                    self.assertEqual(out.kept(weight).tolist(), np.delete(weight, 11, axis=1).tolist())

    def test_self_attention(self):
        for width, heads in ((4, 2), (6, 1), (9, 3)):
            state = State()
            for rows in (0, 1, 5):
                with self.subTest(width=width, heads=heads, rows=rows):
                    history = random_vectors(rows, 3, 4)
                    expected = self_attention(state, "e", torch.tensor(history).double(), width, heads)
                    if rows == 0:
                        self_attention(state, "e", torch.zeros(1, 3, dtype=torch.float64), width, heads)
                    builder, _, sequence = vectors(2, 3)
                    layers.add_self_attention_encoder(builder, state.weights(), "e", "out", sequence, width, heads)
                    np.testing.assert_allclose(value(builder, "out", [0.0, 0.0], history), expected, rtol=0, atol=2e-6)

    def test_pooling_and_simple_attention(self):
        query = random_vectors(1, 3, 1)[0]
        for rows in (0, 1, 5):
            history = random_vectors(rows, 3, 4)
            builder, columns, sequence = vectors(3, 3)
            layers.add_pooling_encoder(builder, "e", "sum", sequence, "sum")
            layers.add_pooling_encoder(builder, "e", "mean", sequence)
            layers.add_simple_attention(builder, "e", "simple", columns, sequence)
            double = history.astype(np.float64)
            weights = np.exp(double @ query)
            np.testing.assert_allclose(value(builder, "sum", query, history), double.sum(axis=0), atol=1e-9)
            np.testing.assert_allclose(value(builder, "mean", query, history),
                                       double.sum(axis=0) / max(rows, 1), atol=1e-9)
            np.testing.assert_allclose(value(builder, "simple", query, history),
                                       weights @ double / max(weights.sum(), 1e-9), atol=1e-7)

    def test_refused(self):
        wide, narrow = Columns([("query", 4)]), Columns([("query", 2)])
        builder, _, sequence = vectors(4, 3)
        state = State()
        mlp(state, "m", torch.zeros(1, 4, dtype=torch.float64), MlpSpec([3]))
        weights = state.weights()
        add = lambda query, spec: layers.add_din_encoder(builder, weights, "e", "out", query, sequence, spec)
        for call, message in (
            (lambda: add(wide, MlpSpec([3])), '"e": expected a query no wider than the sequence, 3, got 4'),
            (lambda: layers.add_simple_attention(builder, "e", "out", narrow, sequence),
             '"e": expected a query as wide as the sequence, 3, got 2'),
            (lambda: add(narrow, MlpSpec([3], use_ln=True)),
             '"e.mlp" use_ln: expected false, got true'), (lambda: add(narrow, MlpSpec([])),
                                                           '"e.mlp" hidden_units: expected at least one, got none'),
            (lambda: layers.add_mlp(builder, weights, "m", "t1", wide, MlpSpec([3], "nn.Hardswish")),
             '"m.mlp.0.perceptron.1" activation: expected Dice or one of nn.ReLU'),
            (lambda: layers.add_mlp(builder, weights, "m", "t2", wide, MlpSpec([3], "nn.ReLU6(inplace=True)")),
             "got nn.ReLU6"),
            (lambda: layers.add_mlp(builder, weights, "m", "t3", wide, MlpSpec([3], "nn.Softplus(2)")),
             "expected name=value, got '2'"),
            (lambda: layers.add_mlp(builder, weights, "m", "t4", wide, MlpSpec([3], "Dice")),
             "perceptron.1.bn.running_mean"),
            (lambda: layers.add_mlp(builder, weights, "m", "t5", wide, MlpSpec([3], use_bn=True, use_ln=True)),
             "use_ln"), (lambda: layers.add_pooling_encoder(builder, "e", "out", sequence, "max"),
                         "expected sum or mean, got max"),
            (lambda: layers.add_self_attention_encoder(builder, weights, "e", "out", sequence, 6, 4),
             "multiple of num_heads 4, got 6"), (lambda: layers.add_multi_window_din_encoder(
                 builder, weights, "e", "out", narrow, sequence, MlpSpec([3]), [2, 0], True),
                                                 "windows_len: expected sizes of at least 1")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                call()


if __name__ == "__main__":
    unittest.main()
