"""The importer of RecBole: DIN and SASRec against plain PyTorch, what it refuses."""

import unittest

import numpy as np

from dinghy_export.importers.recbole import Requests, build_din, build_sasrec
from dinghy_export.importers.recbole_dataset import ItemData, ItemField
from dinghy_export.importers.weights import ImportRefused, Weights
from recbole_reference import (
    HISTORIES, LENGTH, REQUESTS, arrays, din_config, din_items, din_reference, din_shapes, random_tensors,
    sasrec_config, sasrec_items, sasrec_reference, sasrec_shapes, score)


class DinTest(unittest.TestCase):
    def test_as_pytorch(self):
        for extra, pooling, hidden, start in ((("year", "class"), "mean", (6, 4), 1), (("year", "class"), "sum", (5,),
                                                                                       1), ((), "mean", (6, 4, 3), 1),
                                              (("class",), "mean", (6, 4), 1), (("year",), "mean", (6, 4), 0)):
            with self.subTest(extra=extra, pooling=pooling, hidden=hidden, start=start):
                state = random_tensors(din_shapes(extra, hidden, start))
                built = build_din(Weights(arrays(state)), din_config(pooling_mode=pooling,
                                                                     mlp_hidden_size=list(hidden)), din_items(extra),
                                  REQUESTS, "din")
                candidates = [1, 5, 8, 3]
                for history in HISTORIES:
                    expected = [
                        din_reference(state, extra, pooling, hidden, start, history, item) for item in candidates
                    ]
                    np.testing.assert_allclose(score(built, candidates, history), expected, rtol=0, atol=1e-8)

    def test_unknown_items(self):
        state = random_tensors(din_shapes(()))
        built = build_din(Weights(arrays(state)), din_config(), din_items(()), REQUESTS, "din")
        self.assertEqual(score(built, [2], [4, 999, 5]), score(built, [2], [4, 5]))
        self.assertEqual(score(built, [999], [4, 5]), score(built, [0], [4, 5]))
        strict = build_din(Weights(arrays(state)), din_config(), din_items(()), Requests(("view",), "REFUSE"), "din")
        with self.assertRaisesRegex(ValueError, "999"):
            score(strict, [999], [4, 5])

    def test_says_what_it_leaves_out(self):
        built = build_din(Weights(arrays(random_tensors(din_shapes()))), din_config(), din_items(), REQUESTS, "din")
        self.assertEqual(built.notes,
                         ["user features are left out: RecBole's DIN embeds them and then does not use them"])
        self.assertEqual(built.manifest["sequences"], [{
            "name": "history", "actions": ["view"], "maxLength": LENGTH, "keep": "NEWEST", "pad": "RIGHT",
            "skipPadOf": "history.item_id"
        }])

    def test_refused(self):
        tensors = arrays(random_tensors(din_shapes()))
        embedded = din_items()
        embedded.numerical = ["price"]
        valueless = din_items()
        valueless.values = {}
        norm = "dnn_mlp_layers.mlp_layers.2.running_var"
        for changes, items, without, message in (({"pooling_mode": "max"}, din_items(), (),
                                                  "pooling_mode.*expected mean or sum, got 'max'"),
                                                 ({"numerical_features": ["price"]}, embedded, (),
                                                  "numerical_features.*expected no item field, got price"),
                                                 ({"MAX_ITEM_LIST_LENGTH": None}, din_items(), (),
                                                  "MAX_ITEM_LIST_LENGTH.*positive whole number, got None"),
                                                 ({"mlp_hidden_size": [6]}, din_items(), (),
                                                  "expected 1 layers as mlp_hidden_size says, got 2"),
                                                 ({}, valueless, (),
                                                  'field "year": expected its values for every item, got none'),
                                                 ({}, din_items(("class",)), (),
                                                  r"item.embedding.weight.*expected shape \[9, any\], got \[13, 3\]"),
                                                 ({}, din_items(), (norm,), f'tensor "{norm}"')):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                kept = {name: array for name, array in tensors.items() if name not in without}
                build_din(Weights(kept), din_config(**changes), items, REQUESTS, "din")
        with self.assertRaisesRegex(ImportRefused, "float_embedding_table.item.*not supported"):
            build_din(
                Weights({**tensors, "embedding_layer.float_embedding_table.item.embedding.weight": np.zeros((2, 3))}),
                din_config(), din_items(), REQUESTS, "din")
        with self.assertRaisesRegex(ImportRefused, "other.weight"):
            build_din(Weights({**tensors, "other.weight": np.zeros((2, 3))}), din_config(), din_items(), REQUESTS,
                      "din")


class SasrecTest(unittest.TestCase):
    def test_as_pytorch(self):
        for changes in ({}, {"n_layers": 1, "hidden_act": "relu"}, {"hidden_act": "swish"}, {"hidden_act": "tanh"},
                        {"hidden_act": "sigmoid", "layer_norm_eps": 1e-5}):
            with self.subTest(**changes):
                config = sasrec_config(**changes)
                state = random_tensors(sasrec_shapes(config["n_layers"]))
                built = build_sasrec(Weights(arrays(state)), config, sasrec_items(), REQUESTS, "sasrec")
                for history in HISTORIES[1:]:
                    expected = sasrec_reference(state, config, history, [0, 1, 5, 8])
                    np.testing.assert_allclose(score(built, [0, 1, 5, 8], history), expected, rtol=1e-6, atol=1e-7)
                self.assertEqual(score(built, [1, 5], []).tolist(), [0.0, 0.0])

    def test_refused(self):
        tensors = arrays(random_tensors(sasrec_shapes(2)))
        for changes, items, message in (({"hidden_act": "mish"}, sasrec_items(),
                                         "hidden_act.*expected one of gelu, relu, swish, tanh, sigmoid, got 'mish'"), ({
                                             "n_heads": 4
                                         }, sasrec_items(), "hidden_size.*expected a multiple of n_heads 4, got 6"),
                                        ({"layer_norm_eps": None}, sasrec_items(), "layer_norm_eps.*got None"),
                                        ({"n_layers": 1}, sasrec_items(), "trm_encoder.layer.1"),
                                        ({"n_layers": 3}, sasrec_items(), "trm_encoder.layer.2"),
                                        ({"MAX_ITEM_LIST_LENGTH": 7}, sasrec_items(),
                                         r"position_embedding.*expected shape \[7, 6\], got \[5, 6\]"),
                                        ({}, ItemData([ItemField("item_id", "token",
                                                                 4)]), "expected 9 internal ids.*got 4")):
            with self.subTest(message=message), self.assertRaisesRegex(ImportRefused, message):
                build_sasrec(Weights(tensors), sasrec_config(**changes), items, REQUESTS, "sasrec")


if __name__ == "__main__":
    unittest.main()
