"""The importer of TorchEasyRec: its text format, MLPs and encoders, and whole models against plain PyTorch; what it refuses."""

import contextlib
import io
import json
import os
import re
import tempfile
import unittest

import numpy as np
import torch
from torch import nn

from dinghy_export import features
from dinghy_export.__main__ import main
from dinghy_export.builder import Builder
from dinghy_export.evaluate import evaluate
from dinghy_export.goldens import golden_requests_of
from dinghy_export.importers import torcheasyrec_layers as layers
from dinghy_export.importers.text_format import parse
from dinghy_export.importers.torcheasyrec import build_model
from dinghy_export.importers.torcheasyrec_features import Settings
from dinghy_export.importers.torcheasyrec_layers import Columns, MlpSpec
from dinghy_export.importers.weights import ImportRefused, Weights
from dinghy_export.manifest import provenance


class TextFormatTest(unittest.TestCase):
    def test_reads(self):
        config = parse('''a: "x" 'y' # a comment
            b { c: -1.5e3; d: TRUE, d: [1, 0x10] } e: [ { f: 017 }, < f: 2 > ]
            g: "\\x1d\\n\\344\\270\\255" h: -inf i {}''', "t")
        self.assertEqual(config.names(), ["a", "b", "e", "g", "h", "i"])
        self.assertEqual((config.text("a"), config.text("g")), ("xy", "\x1d\n中"))
        self.assertEqual(config.numbers("h"), [-np.inf])
        self.assertEqual([inner.integer("f") for inner in config.messages("e")], [15, 2])
        inner = config.message("b")
        self.assertEqual(inner.numbers("c"), [-1500.0])
        self.assertEqual(config.message("i").names(), [])
        self.assertIsNone(config.message("none"))
        self.assertEqual(config.integer("none", 7), 7)

    def test_refused(self):
        for text, message in (("a {", "line 1: expected the name of a field or }, got the end"),
                              ("a: 1\nb 3", "line 2: expected \":\" or a message after \"b\", got '3'"),
                              ("a: {b: }", "expected a value of \"b\", got '}'"), ("a: ?", "expected protobuf's text format"),
                              ("a: [1", "expected a value of \"a\", got the end"), ("}", "the name of a field, got '}'")):
            with self.subTest(text=text), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                parse(text, "t")
        config = parse("a: 1 a: 2 b: maybe c: -1 d: 'x' e { f: 1 g: 2 }", "t")
        for read, message in ((lambda: config.integer("a"), 't "a": expected one value, got 2'),
                              (lambda: config.flag("b"), 't "b": expected true or false, got maybe'),
                              (lambda: config.integer("c"), 't "c": expected a whole number, got -1'),
                              (lambda: config.integer("e"), 't "e": expected a whole number, got a message'),
                              (lambda: config.message("d"), "t \"d\": expected a message, got 'x'"),
                              (lambda: config.text("b"), "t \"b\": expected text, got 'maybe'"),
                              (lambda: config.word("d"), "t \"d\": expected a name, got 'x'")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                read()
        inner = config.message("e")
        self.assertEqual(inner.integer("f"), 1)
        with self.assertRaisesRegex(ImportRefused, 't e "g": this field is not supported here'):
            inner.finish()


# --- A plain PyTorch of the modules, over a state dict --------------------------------------------------------------


class State:
    """Random tensors, made when they are first asked for."""

    def __init__(self, seed=1):
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors = {}

    def __call__(self, name, *shape):
        if name not in self.tensors:
            values = torch.randn(shape, generator=self.generator, dtype=torch.float64) * 0.5
            if name.endswith("running_var"):
                values = values.abs() + 0.3
            self.tensors[name] = values.float().double()
        assert tuple(self.tensors[name].shape) == shape
        return self.tensors[name]

    def weights(self):
        return Weights({name: tensor.float().numpy() for name, tensor in self.tensors.items()})


def linear(state, name, x, rows, bias=True):
    y = x @ state(f"{name}.weight", rows, x.shape[-1]).T
    return y + state(f"{name}.bias", rows) if bias else y


def norm(state, name, x, affine=True):
    width = x.shape[-1]
    x = (x - state(f"{name}.running_mean", width)) / torch.sqrt(state(f"{name}.running_var", width) + 1e-5)
    return x * state(f"{name}.weight", width) + state(f"{name}.bias", width) if affine else x


def mlp(state, name, x, spec, dim=2):
    for index, rows in enumerate(spec.hidden_units):
        step = f"{name}.mlp.{index}.perceptron"
        x = linear(state, f"{step}.0", x, rows, spec.bias and not spec.use_bn)
        place = 1
        if spec.use_bn:
            x = norm(state, f"{step}.{1 if dim == 2 else 2}", x)
            place = 2 if dim == 2 else 4
        if spec.use_ln:
            x = nn.functional.layer_norm(x, [rows], state(f"{step}.1.weight", rows), state(f"{step}.1.bias", rows), 1e-5)
            place = 2
        if spec.activation == "Dice":
            p = torch.sigmoid(norm(state, f"{step}.{place}.bn", x, affine=False))
            x = p * x + state(f"{step}.{place}.alpha", rows) * (1 - p) * x
        elif spec.activation == "nn.PReLU":
            x = nn.functional.prelu(x, state(f"{step}.{place}.weight", 1))
        elif spec.activation:
            x = eval(spec.activation if "(" in spec.activation else f"{spec.activation}()", {"nn": nn})(x)
    return x


def din(state, name, query, sequence, spec):
    """query [width], sequence [behaviors, width]."""
    if len(sequence) == 0:
        sequence = torch.zeros(1, sequence.shape[1], dtype=torch.float64)  # a pad, of weight 1
    query = torch.cat([query, torch.zeros(sequence.shape[1] - len(query), dtype=torch.float64)]).expand_as(sequence)
    x = mlp(state, f"{name}.mlp" if name else "mlp", torch.cat([query, sequence, query - sequence, query * sequence], 1), spec, 3)
    scores = linear(state, f"{name}.linear" if name else "linear", x, 1)[:, 0]
    return torch.softmax(scores, 0) @ sequence


def multi_window(state, name, query, sequence, spec, windows):
    padded = torch.cat([query, torch.zeros(sequence.shape[1] - len(query), dtype=torch.float64)])
    queries = padded.expand_as(sequence)
    x = linear(state, f"{name}.linear", mlp(state, f"{name}.mlp", torch.cat([sequence, queries * sequence, queries], 1), spec, 3), 1)
    weighted = nn.functional.prelu(x, state(f"{name}.active.weight", 1)) * sequence
    pieces, begin = [], 0
    for window in windows:
        piece = weighted[begin : begin + window]
        pieces.append(piece.sum(dim=0) / max(1, len(piece)))
        begin += window
    return torch.cat([*pieces, padded])


def self_attention(state, name, sequence, width, heads):
    if len(sequence) == 0:
        return torch.zeros(width, dtype=torch.float64)
    rows = [linear(state, f"{name}._{part}", sequence, width)[:, None] for part in ("query", "key", "value")]
    inner = f"{name}._multihead_attn"
    mixed, _ = nn.functional.multi_head_attention_forward(
        *rows, width, heads, state(f"{inner}.in_proj_weight", 3 * width, width), state(f"{inner}.in_proj_bias", 3 * width),
        None, None, False, 0.0, state(f"{inner}.out_proj.weight", width, width), state(f"{inner}.out_proj.bias", width),
        training=False)
    return mixed[:, 0].sum(dim=0) / len(sequence)


# --- Layers ---------------------------------------------------------------------------------------------------------

SPECS = [MlpSpec([5, 3]), MlpSpec([4], "Dice"), MlpSpec([5, 3], "Dice", use_bn=True), MlpSpec([4, 4, 2], "nn.PReLU", bias=False),
         MlpSpec([3], "nn.LeakyReLU(negative_slope=0.3)", use_bn=True), MlpSpec([3], "nn.GELU"), MlpSpec([3], "nn.GELU(approximate='tanh')"),
         MlpSpec([3, 2], "nn.Sigmoid"), MlpSpec([3, 2], "nn.Tanh"), MlpSpec([3, 2], "nn.SiLU"), MlpSpec([3, 2], "")]


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
    request = {"candidates": [features.ints("item", [0]), features.floats("query", list(query), [len(query)])],
               "sequences": [{"sequence": "history", "columns": [
                   features.floats("vector", [x for row in sequence for x in row], [len(row) for row in sequence])]}]}
    built = builder.build(provenance("a", "b", "c"))
    return evaluate(built.manifest, built.tensors, built.encoder().encode(request)).values[name][0]


def random_vectors(rows, width, seed):
    return np.random.RandomState(seed).randn(rows, width).astype(np.float32)


class LayersTest(unittest.TestCase):
    def test_mlp(self):
        query, history = random_vectors(1, 4, 1)[0], random_vectors(2, 3, 2)
        for spec in [*SPECS, MlpSpec([5, 3], use_ln=True), MlpSpec([4], "Dice", use_ln=True), MlpSpec([4], "", use_ln=True)]:
            with self.subTest(spec=spec):
                state = State()
                expected = mlp(state, "m", torch.tensor(query).double()[None], spec)[0]
                builder, columns, _ = vectors(4, 3)
                result = layers.add_mlp(builder, state.weights(), "m", "tower", columns, spec)
                self.assertEqual(result.width(), spec.hidden_units[-1])
                np.testing.assert_allclose(value(builder, result.names()[0], query, history), expected, rtol=0, atol=1e-7)

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
                    expected = multi_window(state, "e", torch.tensor(query).double(), torch.tensor(inside).double(), spec, windows)
                    builder, columns, sequence = vectors(2, 3)
                    out = layers.add_multi_window_din_encoder(builder, state.weights(), "e", "out", columns, sequence, spec,
                                                              windows, newest_first)
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
            np.testing.assert_allclose(value(builder, "mean", query, history), double.sum(axis=0) / max(rows, 1), atol=1e-9)
            np.testing.assert_allclose(value(builder, "simple", query, history), weights @ double / max(weights.sum(), 1e-9), atol=1e-7)

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
                (lambda: add(narrow, MlpSpec([3], use_ln=True)), '"e.mlp" use_ln: expected false, got true'),
                (lambda: add(narrow, MlpSpec([])), '"e.mlp" hidden_units: expected at least one, got none'),
                (lambda: layers.add_mlp(builder, weights, "m", "t1", wide, MlpSpec([3], "nn.Hardswish")),
                 '"m.mlp.0.perceptron.1" activation: expected Dice or one of nn.ReLU'),
                (lambda: layers.add_mlp(builder, weights, "m", "t2", wide, MlpSpec([3], "nn.ReLU6(inplace=True)")), "got nn.ReLU6"),
                (lambda: layers.add_mlp(builder, weights, "m", "t3", wide, MlpSpec([3], "nn.Softplus(2)")), "expected name=value, got '2'"),
                (lambda: layers.add_mlp(builder, weights, "m", "t4", wide, MlpSpec([3], "Dice")), "perceptron.1.bn.running_mean"),
                (lambda: layers.add_mlp(builder, weights, "m", "t5", wide, MlpSpec([3], use_bn=True, use_ln=True)), "use_ln"),
                (lambda: layers.add_pooling_encoder(builder, "e", "out", sequence, "max"), "expected sum or mean, got max"),
                (lambda: layers.add_self_attention_encoder(builder, weights, "e", "out", sequence, 6, 4), "multiple of num_heads 4, got 6"),
                (lambda: layers.add_multi_window_din_encoder(builder, weights, "e", "out", narrow, sequence, MlpSpec([3]), [2, 0], True),
                 "windows_len: expected sizes of at least 1")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                call()


# --- Whole models ---------------------------------------------------------------------------------------------------

CONFIG = '''
train_input_path: "t" eval_input_path: "e" model_dir: "m"
train_config { num_epochs: 1 }
data_config { batch_size: 8 dataset_type: ParquetDataset fg_mode: FG_DAG label_fields: "clk" }
feature_configs { id_feature { feature_name: "user_id" expression: "user:user_id" num_buckets: 9 embedding_dim: 4 } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" normalizer: "method=zscore,mean=30,standard_deviation=5.0" } }
feature_configs { id_feature { feature_name: "ad" expression: "item:ad" num_buckets: 8 embedding_dim: 4 embedding_name: "ad_emb" } }
feature_configs { id_feature { feature_name: "cate" expression: "item:cate" vocab_list: ["a", "b", "c"] embedding_dim: 3 } }
feature_configs { id_feature { feature_name: "tags" expression: "item:tags" num_buckets: 6 embedding_dim: 2 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "image" expression: "item:image" value_dim: 2 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
feature_configs { expr_feature { feature_name: "unused" expression: "price * 2" } }
feature_configs {
  sequence_feature {
    sequence_name: "clicks" sequence_length: 5 sequence_delim: "|"
    features { id_feature { feature_name: "ad" expression: "item:ad" num_buckets: 8 embedding_dim: 4 embedding_name: "ad_emb" } }
    features { id_feature { feature_name: "cate" expression: "item:cate" vocab_list: ["a", "b", "c"] embedding_dim: 3 } }
    features { raw_feature { feature_name: "dwell" expression: "user:dwell" } }
  }
}
model_config {
  feature_groups { group_name: "deep" feature_names: ["user_id", "age", "ad", "cate", "tags", "image", "price"] group_type: DEEP %(nested)s }
  feature_groups { group_name: "seq" feature_names: ["cate", "ad", "clicks__ad", "clicks__cate", "clicks__dwell"] group_type: SEQUENCE }
  %(model)s
  metrics { auc {} }
  %(loss)s
}
'''
NESTED = '''
sequence_groups { group_name: "inner" feature_names: ["ad", "clicks__ad", "clicks__dwell"] }
sequence_encoders { multi_window_din_encoder { input: "inner" windows_len: [1, 3] attn_mlp { hidden_units: [3] } } }
sequence_encoders { pooling_encoder { input: "inner" pooling_type: "sum" } }
sequence_encoders { din_encoder { input: "inner" attn_mlp { hidden_units: [4] activation: "Dice" } } }
sequence_encoders { self_attention_encoder { input: "inner" multihead_attn_dim: 4 num_heads: 2 } }'''
DIN = '''multi_tower_din {
  towers { input: "deep" mlp { hidden_units: [6, 5] use_bn: true activation: "Dice" dropout_ratio: 0.1 } }
  din_towers { input: "seq" attn_mlp { hidden_units: [5, 3] } }
  final { hidden_units: [4] use_ln: true }
}'''
BINARY = "losses { binary_cross_entropy {} }"
AD_BAG, AD_SEQ = "emb_impls.__BASE__.ebc.embedding_bags.ad_emb", "seq_emb_impls.__BASE__.ec_dict.4.embeddings.ad_emb"
CATES = {"a": 2, "b": 3, "c": 4}

CATALOG = [{"ad": ad, "cate": cate, "tags": tags, "image": [ad / 4, 0.5], "price": ad * 1.5} for ad, cate, tags in
           ((0, "a", [1, 2]), (1, "b", []), (2, "c", [5]), (3, "new", [0, 0, 3]), (7, "a", [4]))]


def config_text(nested=NESTED, model=DIN, loss=BINARY):
    return CONFIG % {"nested": nested, "model": model, "loss": loss}


def settings(**changes):
    return Settings(**{"item": "ad", "actions": {"clicks": ("click",)}, "keep": "NEWEST", "newest_first": True, "catalog": CATALOG,
                       **changes})


def model_reference(state, user, age, clicks, ad, nested=True):
    """The logit. `clicks`: (ad, dwell) pairs, newest first as the data has them."""
    items = {row["ad"]: row for row in CATALOG}
    group = "model.embedding_group"
    double = lambda values: torch.tensor(values, dtype=torch.float64)
    row = items[ad]
    cate = CATES.get(row["cate"], 1)
    tags = state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.tags_emb.weight", 6, 2)
    deep = [state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.user_id_emb.weight", 9, 4)[user], double([(age - 30) / 5]),
            state(f"{group}.{AD_BAG}.weight", 8, 4)[ad],
            state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.cate_emb.weight", 5, 3)[cate],
            tags[row["tags"]].mean(dim=0) if row["tags"] else torch.zeros(2, dtype=torch.float64),
            double(row["image"]), double([row["price"]])]
    ads, cates = state(f"{group}.{AD_SEQ}.weight", 8, 4), state(f"{group}.seq_emb_impls.__BASE__.ec_dict.3.embeddings.cate_emb.weight", 5, 3)
    own = state(f"{group}.seq_emb_impls.__BASE__.ec_dict.3.embeddings.clicks__cate_emb.weight", 5, 3)
    width = 4 + 3 + 1
    behaviors = [torch.cat([ads[clicked], own[CATES.get(items[clicked]["cate"], 1)], double([dwell])]) for clicked, dwell in clicks]
    behaviors = torch.stack(behaviors) if behaviors else torch.zeros(0, width, dtype=torch.float64)
    inner = torch.cat([behaviors[:, :4], behaviors[:, 7:]], dim=1)
    deep = torch.cat(deep)
    if nested:
        encoders = f"{group}._group_name_to_seq_encoders.deep"
        deep = torch.cat([deep, multi_window(state, f"{encoders}.0", ads[ad], inner, MlpSpec([3]), [1, 3]), inner.sum(dim=0),
                          din(state, f"{encoders}.2", ads[ad], inner, MlpSpec([4], "Dice")),
                          self_attention(state, f"{encoders}.3", inner, 4, 2)])
    tower = mlp(state, "model.towers.deep", deep[None], MlpSpec([6, 5], "Dice", use_bn=True))[0]
    interest = din(state, "model.din_towers.0", torch.cat([cates[cate], ads[ad]]), behaviors, MlpSpec([5, 3]))
    final = mlp(state, "model.final_mlp", torch.cat([tower, interest])[None], MlpSpec([4], use_ln=True))
    return final


def requested(user, age, clicks, ads):
    """`clicks` oldest first, as requests have them."""
    return {"user": [features.ints("user_id", [user], [1]), features.floats("age", [age])],
            "candidates": [features.ints("ad", ads)],
            "sequences": [{"sequence": "clicks", "columns": [features.ints("ad", [ad for ad, _ in clicks]),
                                                              features.floats("dwell", [dwell for _, dwell in clicks])]}]}


CLICKS = [(1, 0.5), (7, 0.25), (3, 2.0), (2, -1.0), (0, 0.125), (1, 1.5), (2, 3.0)]


class ModelTest(unittest.TestCase):
    def state(self, classes=1, nested=True):
        state = State()
        for clicks in ([], CLICKS[:1]):
            final = model_reference(state, 1, 30, clicks, 0, nested)
        linear(state, "model.output_mlp", final, classes)
        return state

    def check(self, built, state, output, of, nested=True):
        for user, age, count in ((1, 31.0, 0), (3, 25.0, 1), (8, 60.0, 4), (0, 30.0, 7)):
            clicks = CLICKS[:count]
            request = requested(user, age, clicks, [0, 1, 2, 3, 7])
            scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores[output]
            expected = [of(model_reference(state, user, age, clicks[::-1][:5], ad, nested)[0]) for ad in (0, 1, 2, 3, 7)]
            np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-6)

    def test_multi_tower_din(self):
        state = self.state()
        built = build_model(state.weights(), parse(config_text(), "c"), settings(), "m")
        self.check(built, state, "probs", lambda final: torch.sigmoid(linear(state, "model.output_mlp", final, 1))[0])
        self.assertEqual(len(golden_requests_of(built)), 8)

    def test_without_encoders(self):
        state = self.state(nested=False)
        built = build_model(state.weights(), parse(config_text(nested=""), "c"), settings(newest_first=None), "m")
        self.check(built, state, "probs", lambda final: torch.sigmoid(linear(state, "model.output_mlp", final, 1))[0], nested=False)

    def test_outputs(self):
        state = self.state(classes=2)
        two = config_text(loss="num_class: 2 losses { softmax_cross_entropy {} } losses { jrc_loss { session_name: 's' } }")
        built = build_model(state.weights(), parse(two, "c"), settings(), "m")
        self.check(built, state, "probs1", lambda final: torch.softmax(linear(state, "model.output_mlp", final, 2), 0)[1])
        state = self.state()
        built = build_model(state.weights(), parse(config_text(loss="losses { l2_loss {} }"), "c"), settings(), "m")
        self.check(built, state, "y", lambda final: linear(state, "model.output_mlp", final, 1)[0])

    def test_encoded(self):
        """fg_mode FG_NONE: rows come as pyfg gives them, whatever made them."""
        text = config_text().replace("fg_mode: FG_DAG", "").replace('num_buckets: 9', 'hash_bucket_size: 1000 fg_encoded_default_value: "5"')
        text = text.replace(', mean=30,standard_deviation=5.0', '')
        state = self.state()
        catalog = [{**row, "cate": CATES.get(row["cate"], 1)} for row in CATALOG]
        built = build_model(state.weights(), parse(text, "c"), settings(catalog=catalog), "m")
        given = requested(5, 0.4, CLICKS[:3], [2])
        missing = {**given, "user": given["user"][1:]}
        scores = [evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["probs"] for request in (given, missing)]
        self.assertEqual(scores[0], scores[1])
        final = model_reference(state, 5, 32.0, CLICKS[:3][::-1], 2)[0]
        np.testing.assert_allclose(scores[0], torch.sigmoid(linear(state, "model.output_mlp", final, 1)), atol=1e-6)

    def test_max_seq_length(self):
        state = self.state()
        text = config_text(NESTED.replace("pooling_type", "max_seq_length: 5 pooling_type"))
        built = build_model(state.weights(), parse(text, "c"), settings(), "m")
        self.assertEqual(built.manifest["sequences"], [{"name": "clicks", "actions": ["click"], "maxLength": 5, "keep": "NEWEST", "pad": "NONE"}])
        nested = '''sequence_groups { feature_names: ["ad", "clicks__ad", "clicks__dwell"] }
                    sequence_encoders { pooling_encoder { max_seq_length: 2 } }'''
        tower = 'multi_tower { towers { input: "deep" mlp { hidden_units: [3] } } final { hidden_units: [2] } }'
        for changes, message in (({"newest_first": None}, "got nothing"), ({"newest_first": False}, "got oldest first"),
                                 ({"keep": "OLDEST"}, "in the order oldest first")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, f"max_seq_length.*{message}"):
                build_model(state.weights(), parse(config_text(nested, tower), "c"), settings(**changes), "m")
        for encoder, message in (("self_attention_encoder { max_seq_length: 2 }", "divides by its full length"),
                                 ("pooling_encoder { max_seq_length: 2 } } sequence_encoders { pooling_encoder {}", "got 2, 5")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                text = config_text(nested.replace("pooling_encoder { max_seq_length: 2 }", encoder), tower)
                build_model(state.weights(), parse(text, "c"), settings(), "m")

    def test_refused(self):
        state = self.state()
        for old, new, changes, message in (
                ("multi_tower_din {", "deepfm {", {}, 'model_config "model": expected multi_tower or multi_tower_din, got deepfm'),
                ('"price"]', '"unused"]', {}, 'feature "unused": c feature_configs "expr_feature": expected an id_feature'),
                ('"price"]', '"prize"]', {}, 'feature "prize": expected it in feature_configs, got none of that name'),
                ("num_buckets: 9", "hash_bucket_size: 9", {}, "its source is not open; send the row numbers that it gives, with --encoded"),
                ("num_buckets: 9", "zch { zch_size: 9 }", {}, 'feature "user_id": expected num_buckets or vocab_list, got zch'),
                ("num_buckets: 9", "num_buckets: 10", {}, 'id_feature "num_buckets": expected the 9 rows of the table, got 10'),
                ("num_buckets: 9", "num_buckets: 9 weighted: true", {}, 'feature "user_id": expected false, got true'),
                ("method=zscore,mean=30,standard_deviation=5.0", "method=log10", {}, "expected zscore or minmax, got method=log10"),
                ('expression: "item:price"', 'expression: "item:price" autodis {} embedding_dim: 4', {}, '"autodis": this field is not supported'),
                ('expression: "item:price"', 'expression: "item:price" boundaries: [1, 2] embedding_dim: 4', {}, "price_emb.weight"),
                ('expression: "item:price"', 'expression: "context:price"', {}, 'feature "price": expected to know whether it is the same'),
                ("group_type: SEQUENCE", "group_type: JAGGED_SEQUENCE", {}, 'group_type": expected DEEP or SEQUENCE, got JAGGED_SEQUENCE'),
                ("group_type: SEQUENCE", "group_type: SEQUENCE embedding_name_suffix: 'x'", {}, '"embedding_name_suffix": this field is not supported'),
                ("metrics {", "variational_dropout {} metrics {", {}, "it scales features at inference too"),
                ("losses {", "num_class: 3 losses {", {}, 'model_config "num_class": expected 1 with binary_cross_entropy, got 3'),
                ("binary_cross_entropy", "recon_loss", {}, 'model_config "losses": expected losses of one prediction'),
                ('label_fields: "clk"', "negative_sampler {}", {}, "models with sampled negatives are not supported"),
                ("use_ln: true", "use_ln: false", {}, "model.final_mlp.mlp.0.perceptron.1"),
                ('input: "seq"', 'input: "deep"', {}, 'sequence group "deep": expected in feature_groups'),
                ("", "", {"newest_first": None}, "expected the order of behaviors in the training data, --order, got none"),
                ("", "", {"actions": {"other": ("click",)}}, 'sequence "clicks": expected the actions of its events, got none'),
                ("", "", {"item": "brand"}, 'item feature "brand": expected one that the model reads'),
                ("", "", {"catalog": [{"ad": "1"}]}, "catalog \"ad\": expected ints, got '1'"),
                ("", "", {"catalog": [{"cate": "a"}]}, 'catalog: expected "ad" in every line, got line 1 without'),
                ("", "", {"user": ("ad",), "candidate": ("ad",)}, "expected --user or --candidate, got both")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, re.escape(message)):
                build_model(state.weights(), parse(config_text().replace(old, new, 1), "c"), settings(**changes), "m")

    def test_command(self):
        state = self.state()
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)
            torch.save({name: tensor.float() for name, tensor in state.tensors.items()}, path("model.pth"))
            with open(path("pipeline.config"), "w", encoding="utf-8") as file:
                file.write(config_text())
            with open(path("items.jsonl"), "w", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in CATALOG))

            def run(checkpoint, *more):
                output = io.StringIO()
                with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                    code = main(["import", "--from", "torcheasyrec", "--checkpoint", checkpoint, "--config", path("pipeline.config"),
                                 "--name", "m", "--version", "1", "--out", folder, "--item", "ad", "--action", "clicks=click",
                                 "--keep", "newest", "--order", "newest-first", "--catalog", path("items.jsonl"), *more])
                return code, output.getvalue()

            code, output = run(path("model.pth"))
            self.assertEqual((code, os.path.exists(path("m/1/COMPLETE"))), (0, True), output)
            self.assertRegex(run(folder)[1], "expected a file, got a folder.*format_utils dcp_to_torch")
            self.assertRegex(run(path("model.pth"), "--action", "=x")[1], "--action: expected SEQUENCE=ACTION or ACTION, got '=x'")


if __name__ == "__main__":
    unittest.main()
