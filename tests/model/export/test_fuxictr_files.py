"""FuxiCTR's DIN from the files that training leaves."""

import argparse
import json
import os
import pickle
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers import fuxictr
from dinghy_export.importers.fuxictr_dataset import dataset_of, read_dataset, read_params
from dinghy_export.importers.options import levels_of
from dinghy_export.importers.weights import ImportRefused
from fuxictr_modules import CATEGORIES, ITEMS, MAX_LEN, Net, PAIR, PARAMS, USERS, id_spec, specs_of, vocabulary


MODEL_CONFIG = """
Base:
    embedding_dim: 40
    verbose: 1
DIN_books:
    model: DIN
    dataset_id: books
    embedding_dim: 4
    din_target_field: [!!python/tuple [item_id, cate_id]]
    din_sequence_field: [!!python/tuple [click_history, cate_history]]
    attention_hidden_units: [8, 5]
    dnn_hidden_units: [11, 3]
    net_dropout: 0
"""
DATASET_CONFIG = """
other:
    feature_cols: []
books:
    feature_cols:
        - {name: [userid, item_id, cate_id], active: True, dtype: str, type: categorical}
        - {name: price, active: True, dtype: float, type: numeric, fill_na: 1.5}
        - {name: click_history, active: True, dtype: str, type: sequence, padding: pre}
        - {name: cate_history, active: True, dtype: str, type: sequence, padding: pre}
"""


class Stands:  # for classes of FuxiCTR and scikit-learn, which are not here
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class LevelsTest(unittest.TestCase):
    def test_each_feature_has_one(self):
        self.assertEqual(levels_of(["a,b", "c"], ["d"]), {"a": "USER", "b": "USER", "c": "USER", "d": "CANDIDATE"})
        with self.assertRaisesRegex(ImportRefused, 'feature "b": expected --user or --candidate to name it, got both'):
            levels_of(["a,b"], ["b"])


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return path

    def test_configuration(self):
        self.write("config/model_config.yaml", MODEL_CONFIG)
        self.write("config/dataset_config.yaml", DATASET_CONFIG)
        params = read_params(os.path.join(self.folder, "config"), "DIN_books")
        self.assertEqual((params["embedding_dim"], params["verbose"]), (4, 1))
        self.assertEqual(params["din_target_field"], [("item_id", "cate_id")])
        self.assertEqual(len(params["feature_cols"]), 4)
        logged = self.write("log.json", json.dumps({name: str(value) for name, value in params.items()}))
        self.assertEqual(read_params(logged), params)
        for experiment, message in ((None, "expected --experiment"), ("DIN_films", 'expected experiment "DIN_films"')):
            with self.assertRaisesRegex(ImportRefused, message):
                read_params(os.path.join(self.folder, "config"), experiment)
        with self.assertRaisesRegex(ImportRefused, "expected YAML or JSON"):
            read_params(self.write("bad.yaml", "a: !!python/object/apply:os.system [echo]"))

    def test_whole_import(self):
        """From files as FuxiCTR leaves them, through the command's own function."""
        self.write("config/model_config.yaml", MODEL_CONFIG)
        self.write("config/dataset_config.yaml", DATASET_CONFIG)
        specs = specs_of()
        self.write(
            "data/feature_map.json", json.dumps({"labels": ["clk"], "features": [{k: v} for k, v in specs.items()]})
        )
        texts = {
            "userid": vocabulary("u{}", USERS),
            "item_id": vocabulary("{}", ITEMS),
            "cate_id": vocabulary("c{}", CATEGORIES),
        }
        texts["click_history"], texts["cate_history"] = texts["item_id"], texts["cate_id"]
        self.write("data/feature_vocab.json", json.dumps(texts))
        net = Net(specs, PARAMS, PAIR)
        checkpoint = os.path.join(self.folder, "DIN_books.model")
        torch.save(net.state_dict(), checkpoint)
        parser = argparse.ArgumentParser()
        for option in ("--checkpoint", "--name", "--data", "--created"):
            parser.add_argument(option, default="")
        fuxictr.add_arguments(parser)
        args = parser.parse_args(
            [
                "--checkpoint",
                checkpoint,
                "--name",
                "books",
                "--config",
                os.path.join(self.folder, "config"),
                "--experiment",
                "DIN_books",
                "--data_dir",
                os.path.join(self.folder, "data"),
                "--actions",
                "click_history=click,buy",
                "--user",
                "userid",
                "--candidate",
                "price",
            ]
        )
        built = fuxictr.import_model(args)
        inputs = {
            "userid": [3],
            "item_id": [5],
            "cate_id": [CATEGORIES - 1],
            "price": [1.5],
            "click_history": [[0, 0, 0, 0, 7, 8]],
            "cate_history": [[0, 0, 0, 0, 2, 3]],
        }
        tensors = {
            name: torch.tensor(value, dtype=torch.float32 if name == "price" else torch.int64)
            for name, value in inputs.items()
        }
        with torch.no_grad():
            expected = float(net(tensors)[0])
        # price and cate_id are missing or unseen: filled in as FuxiCTR does.
        request = {
            "user": [features.strings("userid", ["u3"])],
            "candidates": [features.ints("item_id", [5]), features.strings("cate_id", ["never seen"])],
            "sequences": [
                {
                    "sequence": "click_history",
                    "columns": [features.ints("item_id", [7, 8]), features.strings("cate_id", ["c2", "c3"])],
                }
            ],
        }
        got = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["clk"]
        self.assertAlmostEqual(got[0], expected, delta=2e-6)
        self.assertEqual(built.manifest["sequences"][0]["actions"], ["click", "buy"])
        self.assertEqual(built.manifest["itemFeature"], "item_id")

    def test_processor(self):
        """Padding and scaling come from the pickle, of which nothing is run."""
        self.write(
            "data/feature_map.json",
            json.dumps(
                {
                    "labels": ["clk"],
                    "features": [
                        {"price": {"type": "numeric"}},
                        {"age": {"type": "numeric"}},
                        {"rank": {"type": "numeric"}},
                        {"click_history": id_spec("sequence", ITEMS)},
                    ],
                }
            ),
        )
        scaler = type("StandardScaler", (Stands,), {})(mean_=np.array([2.0]), scale_=np.array([0.5]))
        squeezer = type("MinMaxScaler", (Stands,), {})(min_=np.array([-0.5]), scale_=np.array([0.25]), clip=False)
        processor = Stands(
            feature_cols=[],
            processor_dict={
                "price::normalizer": Stands(normalizer=scaler),
                "age::normalizer": Stands(normalizer=squeezer),
                "click_history::tokenizer": Stands(padding="pre", max_len=MAX_LEN),
            },
        )
        globals().update(StandardScaler=type(scaler), MinMaxScaler=type(squeezer))
        self.write("data/feature_processor.pkl", pickle.dumps(processor))
        dataset = read_dataset(os.path.join(self.folder, "data"), {}, {}, {})
        self.assertEqual(dataset.padding, {"click_history": "pre"})
        self.assertEqual(dataset.scaling["rank"], (0.0, 1.0))
        self.assertEqual(dataset.scaling["price"], (2.0, 0.5))
        mean, stddev = dataset.scaling["age"]
        self.assertAlmostEqual((3.0 - mean) / stddev, 3.0 * 0.25 - 0.5)
        scaler.mean_ = None
        self.write("data/feature_processor.pkl", pickle.dumps(processor))
        with self.assertRaisesRegex(ImportRefused, "expected a fitted StandardScaler or MinMaxScaler"):
            read_dataset(os.path.join(self.folder, "data"), {}, {}, {})

    def test_tokens_that_stand_for_two_rows(self):
        self.write("data/feature_map.json", json.dumps({"features": [{"item_id": id_spec("categorical", 4)}]}))
        self.write("data/feature_vocab.json", '{"item_id": {"__PAD__": 0, "5": 1, "5": 2, "__OOV__": 3}}')
        with self.assertRaisesRegex(ImportRefused, r'expected each token once, got "5" with rows \[1, 2\]'):
            read_dataset(os.path.join(self.folder, "data"), {}, {}, {})

    def test_feature_map(self):
        content = {"features": [{"a": {"type": "numeric"}}, {"b": {"type": "numeric"}}]}
        dataset = dataset_of(content, {"use_features": ["b"], "feature_specs": [{"name": ["b"], "embedding_dim": 3}]})
        self.assertEqual(dataset.features, {"b": {"type": "numeric", "embedding_dim": 3}})
        for params, message in (
            ({"use_features": ["c"]}, "use_features"),
            ({"feature_specs": [{"name": "c"}]}, "feature_specs"),
        ):
            with self.assertRaisesRegex(ImportRefused, f'{message}: expected features of feature_map.json, got "c"'):
                dataset_of(content, params)
        with self.assertRaisesRegex(ImportRefused, "got one of FuxiCTR 1"):
            dataset_of({"feature_specs": {}}, {})


if __name__ == "__main__":
    unittest.main()
