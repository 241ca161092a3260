"""The importer of RecBole: its checkpoints and datasets, read without RecBole, and the command line."""

import contextlib
import io
import os
import pickle
import sys
import tempfile
import types
import unittest
from enum import Enum

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.__main__ import main
from dinghy_export.evaluate import evaluate
from dinghy_export.importers.checkpoint import read_checkpoint
from dinghy_export.importers.recbole import Requests, build_din, build_sasrec
from dinghy_export.importers.recbole_dataset import Sources, config_of, find_items
from dinghy_export.importers.weights import ImportRefused, Weights
from recbole_reference import (
    CLASSES, ITEMS, REQUESTS, YEARS, arrays, din_config, din_reference, din_shapes, random_tensors, sasrec_config,
    sasrec_items, sasrec_reference, sasrec_shapes, score)

TOKENS = {
    "item_id": ["[PAD]", *(f"i{row}" for row in range(1, ITEMS))], "year": ["[PAD]", "1990", "1991", "1992"],
    "class": ["[PAD]", "drama", "film noir", "war"]
}


@contextlib.contextmanager
def recbole_modules():
    """Classes where RecBole has them, so that what is pickled names them; they are gone when it is read."""
    class Config:
        def __init__(self, values):
            self.final_config_dict = values

    class FeatureType(Enum):
        TOKEN, FLOAT, TOKEN_SEQ, FLOAT_SEQ = "token", "float", "token_seq", "float_seq"

    class Holder:
        def __init__(self, **values):
            self.__dict__.update(values)

    classes = {
        "recbole.config.configurator": {"Config": Config}, "recbole.utils.enum_type": {"FeatureType": FeatureType},
        "recbole.data.interaction": {"Interaction": type("Interaction", (Holder,), {})},
        "recbole.data.dataset": {"SequentialDataset": type("SequentialDataset", (Holder,), {})},
        "recbole.model.layers": {"ContextSeqEmbLayer": type("ContextSeqEmbLayer", (Holder,), {})}
    }
    names = {"recbole", "recbole.config", "recbole.utils", "recbole.data", "recbole.model", *classes}
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    for module, members in classes.items():
        for name, kind in members.items():
            kind.__module__, kind.__qualname__ = module, name
            setattr(sys.modules[module], name, kind)
    try:
        yield types.SimpleNamespace(**{name: kind for members in classes.values() for name, kind in members.items()})
    finally:
        for name in names:
            del sys.modules[name]


def dataset_of(recbole, item_feat):
    kinds = {"item_id": "token", "year": "token", "class": "token_seq", "price": "float"}
    return recbole.SequentialDataset(field2id_token={name: np.array(tokens) for name, tokens in TOKENS.items()},
                                     item_feat=item_feat,
                                     field2type={name: recbole.FeatureType(kind) for name, kind in kinds.items()})


class FilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def path(self, name):
        return os.path.join(self.folder, name)

    def save_din(self, embedded=True):
        self.state = random_tensors(din_shapes())
        with recbole_modules() as recbole:
            tensors = {
                "item_id": torch.arange(ITEMS), "year": torch.tensor(YEARS), "price": torch.zeros(ITEMS),
                "class": torch.tensor(CLASSES)
            }
            layer = recbole.ContextSeqEmbLayer(dataset=dataset_of(recbole, recbole.Interaction(interaction=tensors)))
            torch.save(
                {
                    "config": recbole.Config({**din_config(), "dataset": "tiny", "seed": 7}), "epoch": 1,
                    "state_dict": {name: tensor.float() for name, tensor in self.state.items()
                                  }, "other_parameter": {"embedding_layer": layer} if embedded else None
                }, self.path("DIN.pth"))
        return self.path("DIN.pth")

    def run_import(self, *arguments):
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(
                ["import", "--from", "recbole", "--name", "m", "--version", "1", "--out", self.folder, *arguments])
        return code, output.getvalue() + errors.getvalue()

    def test_din_brings_its_dataset(self):
        checkpoint = read_checkpoint(self.save_din())
        items = find_items(checkpoint.objects, Sources(), config_of(checkpoint.objects))
        self.assertEqual([(item.name, item.kind, item.rows) for item in items.fields], [("item_id", "token", ITEMS),
                                                                                        ("year", "token", 4),
                                                                                        ("class", "token_seq", 4)])
        self.assertEqual((items.values["year"], items.values["class"], items.numerical), (YEARS, CLASSES, ["price"]))
        built = build_din(Weights.of_checkpoint(checkpoint), config_of(checkpoint.objects), items, REQUESTS, "din")
        request = {
            "candidates": [features.strings("item_id", ["i1", "i8"])], "sequences": [{
                "sequence": "history", "columns": [features.strings("item_id", ["i3", "i7", "nobody knows it"])]
            }]
        }
        scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["score"]
        expected = [din_reference(self.state, ("year", "class"), "mean", (6, 4), 1, [3, 7], item) for item in (1, 8)]
        np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-8)
        self.assertEqual(built.vocabularies["class.txt"], TOKENS["class"][1:])

    def test_command(self):
        code, output = self.run_import("--checkpoint", self.save_din(), "--unknown", "pad", "--action", "view")
        self.assertEqual((code, os.path.exists(self.path("m/1/COMPLETE"))), (0, True), output)

    def test_item_file_in_place_of_a_dataset(self):
        for name, tokens in TOKENS.items():
            with open(self.path(f"{name}.tokens"), "w", encoding="utf-8") as file:
                file.write("".join(f"{token}\n" for token in tokens[1:]))
        with open(self.path("tiny.item"), "w", encoding="utf-8") as file:
            file.write(
                "year:token\titem_id:token\tprice:float\tclass:token_seq\n1991\ti2\t0.5\twar,drama\n\ti1\t0.1\t\n"
                "1990\ti2\t0.5\twar\n1990\tleft out\t0.5\twar\n")
        config = din_config(seq_separator=",", load_col={"inter": ["user_id"], "item": "*"})
        sources = Sources(vocabularies={name: self.path(f"{name}.tokens") for name in TOKENS},
                          item_features=self.path("tiny.item"))
        items = find_items({}, sources, config)
        self.assertEqual([item.name for item in items.fields], ["item_id", "year", "class"])
        self.assertEqual(items.values["year"], [0, 0, 2] + [0] * (ITEMS - 3))
        self.assertEqual(items.values["class"][:4], [[], [], [3, 1], []])
        partly = find_items({}, sources, din_config(seq_separator=",", load_col={"item": ["item_id", "class"]}))
        self.assertEqual([item.name for item in partly.fields], ["item_id", "class"])
        cut = find_items({}, sources, din_config(seq_separator=",", seq_len={"class": 1}))
        self.assertEqual(cut.values["class"][2], [3])
        with open(self.path("tiny.item"), "a", encoding="utf-8") as file:
            file.write("2024\ti3\t0.5\twar\n")
        with self.assertRaisesRegex(ImportRefused, "line 6: expected tokens of \"year\" that training saw, got '2024'"):
            find_items({}, sources, config)

    def test_saved_dataset(self):
        with recbole_modules() as recbole, open(self.path("tiny-SequentialDataset.pth"), "wb") as file:
            pickle.dump(dataset_of(recbole, None), file)
        items = find_items({}, Sources(dataset=self.path("tiny-SequentialDataset.pth")), sasrec_config())
        self.assertEqual([(item.name, item.tokens) for item in items.fields], [("item_id", TOKENS["item_id"])])
        state = random_tensors(sasrec_shapes(2))
        built = build_sasrec(Weights(arrays(state)), sasrec_config(), items, REQUESTS, "sasrec")
        request = {
            "candidates": [features.strings("item_id", ["i4"])],
            "sequences": [{"sequence": "history", "columns": [features.strings("item_id", ["i3", "i7"])]}]
        }
        scores = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["score"]
        np.testing.assert_allclose(scores, sasrec_reference(state, sasrec_config(), [3, 7], [4]), rtol=1e-6)

    def test_integers(self):
        items = sasrec_items()
        items.fields[0].tokens = ["[PAD]", *map(str, range(101, 100 + ITEMS))]
        requests = Requests(("view",), "REFUSE", integer=("item_id",))
        built = build_sasrec(Weights(arrays(random_tensors(sasrec_shapes(2)))), sasrec_config(), items, requests,
                             "sasrec")
        self.assertEqual(score(built, [102], [101, 105]).shape, (1,))
        items.fields[0].tokens[3] = "0103"
        with self.assertRaisesRegex(ImportRefused,
                                    "expected decimal numbers, as it is to come as integers, got '0103'"):
            build_sasrec(Weights(arrays(random_tensors(sasrec_shapes(2)))), sasrec_config(), items, requests, "sasrec")

    def test_refused(self):
        path = self.save_din(embedded=False)
        arguments = ("--checkpoint", path, "--unknown", "refuse", "--action", "view")
        self.assertRegex(self.run_import(*arguments)[1], 'field "item_id": expected its tokens, got none')
        self.assertRegex(
            self.run_import(*arguments, "--vocabulary", "item_id")[1], "expected FIELD=FILE, got 'item_id'")
        self.assertRegex(self.run_import(*arguments, "--dataset", path)[1], "expected a dataset that RecBole saved")
        self.assertEqual(self.run_import(*arguments)[0], 1)
        torch.save({"state_dict": {"a": torch.zeros(2)}}, path)
        self.assertRegex(self.run_import(*arguments)[1], 'expected "config" as RecBole\'s trainer saves it')
        with recbole_modules() as recbole:
            torch.save(
                {
                    "config": recbole.Config({"model": "BERT4Rec", "ITEM_ID_FIELD": "item_id"}),
                    "state_dict": {"a": torch.zeros(2)}
                }, path)
        self.assertRegex(self.run_import(*arguments, "--internal_ids")[1], "expected one of DIN, SASRec, got BERT4Rec")


if __name__ == "__main__":
    unittest.main()
