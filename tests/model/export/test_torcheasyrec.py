"""The importer of TorchEasyRec: whole models against plain PyTorch, what it refuses, the command line."""

import contextlib
import io
import json
import os
import re
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.__main__ import main
from dinghy_export.evaluate import evaluate
from dinghy_export.goldens import golden_requests_of
from dinghy_export.importers.text_format import parse
from dinghy_export.importers.torcheasyrec import build_model
from dinghy_export.importers.torcheasyrec_features import Settings
from dinghy_export.importers.torcheasyrec_layers import MlpSpec
from dinghy_export.importers.weights import ImportRefused
from torcheasyrec_reference import State, din, linear, mlp, multi_window, self_attention

CONFIG = '''
train_input_path: "t" eval_input_path: "e" model_dir: "m"
train_config { num_epochs: 1 }
data_config { batch_size: 8 dataset_type: ParquetDataset fg_mode: FG_DAG label_fields: "clk" }
feature_configs { id_feature { feature_name: "user_id" expression: "user:user_id" num_buckets: 9 embedding_dim: 4 } }
feature_configs { raw_feature {
  feature_name: "age" expression: "user:age" normalizer: "method=zscore,mean=30,standard_deviation=5.0" } }
feature_configs { id_feature {
  feature_name: "ad" expression: "item:ad" num_buckets: 8 embedding_dim: 4 embedding_name: "ad_emb" } }
feature_configs { id_feature {
  feature_name: "cate" expression: "item:cate" vocab_list: ["a", "b", "c"] embedding_dim: 3 } }
feature_configs { id_feature {
  feature_name: "tags" expression: "item:tags" num_buckets: 6 embedding_dim: 2 pooling: "mean" } }
feature_configs { raw_feature { feature_name: "image" expression: "item:image" value_dim: 2 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
feature_configs { expr_feature { feature_name: "unused" expression: "price * 2" } }
feature_configs {
  sequence_feature {
    sequence_name: "clicks" sequence_length: 5 sequence_delim: "|"
    features { id_feature {
      feature_name: "ad" expression: "item:ad" num_buckets: 8 embedding_dim: 4 embedding_name: "ad_emb" } }
    features { id_feature {
      feature_name: "cate" expression: "item:cate" vocab_list: ["a", "b", "c"] embedding_dim: 3 } }
    features { raw_feature { feature_name: "dwell" expression: "user:dwell" } }
  }
}
model_config {
  feature_groups {
    group_name: "deep" group_type: DEEP %(nested)s
    feature_names: ["user_id", "age", "ad", "cate", "tags", "image", "price"]
  }
  feature_groups {
    group_name: "seq" group_type: SEQUENCE
    feature_names: ["cate", "ad", "clicks__ad", "clicks__cate", "clicks__dwell"]
  }
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

CATALOG = [{"ad": ad, "cate": cate, "tags": tags, "image": [ad / 4, 0.5], "price": ad * 1.5}
           for ad, cate, tags in ((0, "a", [1, 2]), (1, "b", []), (2, "c", [5]), (3, "new", [0, 0, 3]), (7, "a", [4]))]


def config_text(nested=NESTED, model=DIN, loss=BINARY):
    return CONFIG % {"nested": nested, "model": model, "loss": loss}


def settings(**changes):
    return Settings(
        **{
            "item": "ad", "actions": {"clicks": (
                "click",)}, "keep": "NEWEST", "newest_first": True, "catalog": CATALOG, **changes
        })


def model_reference(state, user, age, clicks, ad, nested=True):
    """The logit. `clicks`: (ad, dwell) pairs, newest first as the data has them."""
    items = {row["ad"]: row for row in CATALOG}
    group = "model.embedding_group"
    double = lambda values: torch.tensor(values, dtype=torch.float64)
    row = items[ad]
    cate = CATES.get(row["cate"], 1)
    tags = state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.tags_emb.weight", 6, 2)
    deep = [
        state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.user_id_emb.weight", 9, 4)[user],
        double([(age - 30) / 5]),
        state(f"{group}.{AD_BAG}.weight", 8, 4)[ad],
        state(f"{group}.emb_impls.__BASE__.ebc.embedding_bags.cate_emb.weight", 5, 3)[cate],
        tags[row["tags"]].mean(dim=0) if row["tags"] else torch.zeros(2, dtype=torch.float64),
        double(row["image"]),
        double([row["price"]])
    ]
    ads, cates = state(f"{group}.{AD_SEQ}.weight", 8,
                       4), state(f"{group}.seq_emb_impls.__BASE__.ec_dict.3.embeddings.cate_emb.weight", 5, 3)
    own = state(f"{group}.seq_emb_impls.__BASE__.ec_dict.3.embeddings.clicks__cate_emb.weight", 5, 3)
    width = 4 + 3 + 1
    behaviors = [
        torch.cat([ads[clicked], own[CATES.get(items[clicked]["cate"], 1)],
                   double([dwell])]) for clicked, dwell in clicks
    ]
    behaviors = torch.stack(behaviors) if behaviors else torch.zeros(0, width, dtype=torch.float64)
    inner = torch.cat([behaviors[:, :4], behaviors[:, 7:]], dim=1)
    deep = torch.cat(deep)
    if nested:
        encoders = f"{group}._group_name_to_seq_encoders.deep"
        deep = torch.cat([
            deep,
            multi_window(state, f"{encoders}.0", ads[ad], inner, MlpSpec([3]), [1, 3]),
            inner.sum(dim=0),
            din(state, f"{encoders}.2", ads[ad], inner, MlpSpec([4], "Dice")),
            self_attention(state, f"{encoders}.3", inner, 4, 2)
        ])
    tower = mlp(state, "model.towers.deep", deep[None], MlpSpec([6, 5], "Dice", use_bn=True))[0]
    interest = din(state, "model.din_towers.0", torch.cat([cates[cate], ads[ad]]), behaviors, MlpSpec([5, 3]))
    final = mlp(state, "model.final_mlp", torch.cat([tower, interest])[None], MlpSpec([4], use_ln=True))
    return final


def requested(user, age, clicks, ads):
    """`clicks` oldest first, as requests have them."""
    return {
        "user": [features.ints("user_id", [user], [1]),
                 features.floats("age", [age])], "candidates": [features.ints("ad", ads)], "sequences": [{
                     "sequence": "clicks", "columns": [
                         features.ints("ad", [ad for ad, _ in clicks]),
                         features.floats("dwell", [dwell for _, dwell in clicks])
                     ]
                 }]
    }


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
            expected = [
                of(model_reference(state, user, age, clicks[::-1][:5], ad, nested)[0]) for ad in (0, 1, 2, 3, 7)
            ]
            np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-6)

    def test_multi_tower_din(self):
        state = self.state()
        built = build_model(state.weights(), parse(config_text(), "c"), settings(), "m")
        self.check(built, state, "probs", lambda final: torch.sigmoid(linear(state, "model.output_mlp", final, 1))[0])
        self.assertEqual(len(golden_requests_of(built)), 8)

    def test_without_encoders(self):
        state = self.state(nested=False)
        built = build_model(state.weights(), parse(config_text(nested=""), "c"), settings(newest_first=None), "m")
        self.check(built, state, "probs", lambda final: torch.sigmoid(linear(state, "model.output_mlp", final, 1))[0],
                   nested=False)

    def test_outputs(self):
        state = self.state(classes=2)
        two = config_text(
            loss="num_class: 2 losses { softmax_cross_entropy {} } losses { jrc_loss { session_name: 's' } }")
        built = build_model(state.weights(), parse(two, "c"), settings(), "m")
        self.check(built, state, "probs1",
                   lambda final: torch.softmax(linear(state, "model.output_mlp", final, 2), 0)[1])
        state = self.state()
        built = build_model(state.weights(), parse(config_text(loss="losses { l2_loss {} }"), "c"), settings(), "m")
        self.check(built, state, "y", lambda final: linear(state, "model.output_mlp", final, 1)[0])

    def test_encoded(self):
        """fg_mode FG_NONE: rows come as pyfg gives them, whatever made them."""
        text = config_text().replace("fg_mode: FG_DAG",
                                     "").replace('num_buckets: 9',
                                                 'hash_bucket_size: 1000 fg_encoded_default_value: "5"')
        text = text.replace(', mean=30,standard_deviation=5.0', '')
        state = self.state()
        catalog = [{**row, "cate": CATES.get(row["cate"], 1)} for row in CATALOG]
        built = build_model(state.weights(), parse(text, "c"), settings(catalog=catalog), "m")
        given = requested(5, 0.4, CLICKS[:3], [2])
        missing = {**given, "user": given["user"][1:]}
        scores = [
            evaluate(built.manifest, built.tensors,
                     built.encoder().encode(request)).scores["probs"] for request in (given, missing)
        ]
        self.assertEqual(scores[0], scores[1])
        final = model_reference(state, 5, 32.0, CLICKS[:3][::-1], 2)[0]
        np.testing.assert_allclose(scores[0], torch.sigmoid(linear(state, "model.output_mlp", final, 1)), atol=1e-6)

    def test_what_the_catalog_holds_in_vain_is_noted(self):
        note = "left out of the catalog: tag, which the model does not read there"
        misspelt = [{**row, "tag": row["tags"]} for row in CATALOG]
        for rows, noted in ((CATALOG, False), (misspelt, True)):
            built = build_model(self.state().weights(), parse(config_text(), "c"), settings(catalog=rows), "m")
            self.assertEqual(note in built.notes, noted)

    def test_max_seq_length(self):
        state = self.state()
        text = config_text(NESTED.replace("pooling_type", "max_seq_length: 5 pooling_type"))
        built = build_model(state.weights(), parse(text, "c"), settings(), "m")
        self.assertEqual(built.manifest["sequences"],
                         [{"name": "clicks", "actions": ["click"], "maxLength": 5, "keep": "NEWEST", "pad": "NONE"}])
        nested = '''sequence_groups { feature_names: ["ad", "clicks__ad", "clicks__dwell"] }
                    sequence_encoders { pooling_encoder { max_seq_length: 2 } }'''
        tower = 'multi_tower { towers { input: "deep" mlp { hidden_units: [3] } } final { hidden_units: [2] } }'
        for changes, message in (({"newest_first": None}, "got nothing"), ({"newest_first": False}, "got oldest first"),
                                 ({"keep": "OLDEST"}, "in the order oldest first")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, f"max_seq_length.*{message}"):
                build_model(state.weights(), parse(config_text(nested, tower), "c"), settings(**changes), "m")
        for encoder, message in (("self_attention_encoder { max_seq_length: 2 }", "divides by its full length"),
                                 ("pooling_encoder { max_seq_length: 2 } } sequence_encoders { pooling_encoder {}",
                                  "got 2, 5")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                text = config_text(nested.replace("pooling_encoder { max_seq_length: 2 }", encoder), tower)
                build_model(state.weights(), parse(text, "c"), settings(), "m")

    def test_refused(self):
        state = self.state()
        for old, new, changes, message in (
            ("multi_tower_din {", "deepfm {", {},
             'model_config "model": expected multi_tower or multi_tower_din, got deepfm'),
            ('"price"]', '"unused"]', {}, 'feature "unused": c feature_configs "expr_feature": expected an id_feature'),
            ('"price"]', '"prize"]', {}, 'feature "prize": expected it in feature_configs, got none of that name'),
            ("num_buckets: 9", "hash_bucket_size: 9", {},
             "its source is not open; send the row numbers that it gives, with --encoded"),
            ("num_buckets: 9", "zch { zch_size: 9 }", {},
             'feature "user_id": expected num_buckets or vocab_list, got zch'),
            ("num_buckets: 9", "num_buckets: 10", {},
             'id_feature "num_buckets": expected the 9 rows of the table, got 10'),
            ("num_buckets: 9", "num_buckets: 9 weighted: true", {}, 'feature "user_id": expected false, got true'),
            ("method=zscore,mean=30,standard_deviation=5.0", "method=log10", {},
             "expected zscore or minmax, got method=log10"), ('expression: "item:price"',
                                                              'expression: "item:price" autodis {} embedding_dim: 4',
                                                              {}, '"autodis": this field is not supported'),
            ('expression: "item:price"', 'expression: "item:price" boundaries: [1, 2] embedding_dim: 4', {},
             "price_emb.weight"), ('expression: "item:price"', 'expression: "context:price"', {},
                                   'feature "price": expected to know whether it is the same'),
            ("group_type: SEQUENCE", "group_type: JAGGED_SEQUENCE", {},
             'group_type": expected DEEP or SEQUENCE, got JAGGED_SEQUENCE'),
            ("group_type: SEQUENCE", "group_type: SEQUENCE embedding_name_suffix: 'x'", {},
             '"embedding_name_suffix": this field is not supported'), ("metrics {", "variational_dropout {} metrics {",
                                                                       {}, "it scales features at inference too"),
            ("losses {", "num_class: 3 losses {", {},
             'model_config "num_class": expected 1 with binary_cross_entropy, got 3'),
            ("binary_cross_entropy", "recon_loss", {}, 'model_config "losses": expected losses of one prediction'),
            ('label_fields: "clk"', "negative_sampler {}", {},
             "models with sampled negatives are not supported"), ("use_ln: true", "use_ln: false", {},
                                                                  "model.final_mlp.mlp.0.perceptron.1"),
            ('input: "seq"', 'input: "deep"', {}, 'sequence group "deep": expected in feature_groups'), ("", "", {
                "newest_first": None
            }, "expected the order of behaviors in the training data, --order, got none"), ("", "", {
                "actions": {"other": ("click",)}
            }, '--action: expected a sequence that the model reads (clicks), got "other"'), ("", "", {
                "actions": {}
            }, 'sequence "clicks": expected the actions of its events, --action clicks=ACTION, got none'), ("", "", {
                "item": "brand"
            }, 'item feature "brand": expected one that the model reads'), ("", "", {
                "catalog": [{"ad": "1"}]
            }, "catalog \"ad\": expected ints, got '1'"), ("", "", {"catalog": [{"cate": "a"}]},
                                                           'catalog: expected "ad" in every line, got line 1 without'),
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
                    code = main([
                        "import", "--from", "torcheasyrec", "--checkpoint", checkpoint, "--config",
                        path("pipeline.config"), "--name", "m", "--version", "1", "--out", folder, "--item", "ad",
                        "--action", "clicks=click", "--keep", "newest", "--order", "newest-first", "--catalog",
                        path("items.jsonl"), *more
                    ])
                return code, output.getvalue()

            code, output = run(path("model.pth"))
            self.assertEqual((code, os.path.exists(path("m/1/COMPLETE"))), (0, True), output)
            self.assertRegex(run(folder)[1], "expected a file, got a folder.*format_utils dcp_to_torch")
            self.assertRegex(
                run(path("model.pth"), "--action", "=x")[1], "--action: expected SEQUENCE=ACTION or ACTION, got '=x'")


if __name__ == "__main__":
    unittest.main()
