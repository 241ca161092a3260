"""What the importer of FuxiCTR's DIN cannot take it refuses, by name."""

import unittest

import numpy as np

from dinghy_export.importers.fuxictr import Serving, build_din
from dinghy_export.importers.fuxictr_dataset import Dataset
from dinghy_export.importers.weights import ImportRefused, Weights
from fuxictr_modules import CATEGORIES, DIM, LEVELS, Net, PAIR, PARAMS, USERS, id_spec, specs_of, vocabulary


class RefusalsTest(unittest.TestCase):
    def build(self, specs=None, change=None, serving=None, dataset=None, **params):
        specs = specs or specs_of()
        net = Net(specs_of(), {**PARAMS, "batch_norm": params.get("batch_norm", False)}, PAIR)
        tensors = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        if change:
            change(tensors)
        dataset = dataset or Dataset(
            specs, ["clk"], {}, {"click_history": "pre", "cate_history": "pre"}, {"price": (0.0, 1.0)}
        )
        return build_din(
            Weights(tensors),
            {**PARAMS, **params},
            dataset,
            serving or Serving("m", {"click_history": ["click"]}, LEVELS),
        )

    def refused(self, message, **arguments):
        with self.assertRaises(ImportRefused) as caught:
            self.build(**arguments)
        self.assertIn(message, str(caught.exception))

    def test_it_builds(self):
        self.build()

    def test_options(self):
        self.refused("model: expected DIN, got DIEN", model="DIEN")
        self.refused("configuration: expected embedding_dim, got none", embedding_dim=None)
        self.refused("task: expected binary_classification or regression, got 'multi'", task="multi")
        self.refused("dnn_hidden_units: expected a list of widths, got 64", dnn_hidden_units=64)
        self.refused("got 'Softplus'", dnn_activations="Softplus")
        self.refused("dnn activations: expected 2 as hidden units, got 1", dnn_activations=["ReLU"])
        self.refused(
            "din_sequence_field: expected 1 as din_target_field, got 2",
            din_sequence_field=["click_history", "cate_history"],
        )
        self.refused(
            'din_target_field: "price": expected a categorical feature', din_target_field=[("price", "cate_id")]
        )
        self.refused(
            'din_sequence_field: "nothing": expected a sequence feature of feature_map.json, got no such feature',
            din_sequence_field=[("click_history", "nothing")],
        )
        self.refused("expected each field once in a group, got one twice", din_target_field=[("item_id", "item_id")])
        self.refused(
            'expected each sequence once, got "click_history" twice',
            din_target_field=["item_id", "item_id"],
            din_sequence_field=["click_history", "click_history"],
        )
        self.refused(
            "expected 2 attention layers in the checkpoint, got 1",
            din_target_field=["item_id", "cate_id"],
            din_sequence_field=["click_history", "cate_history"],
            serving=Serving("m", {"click_history": ["click"], "cate_history": ["click"]}, LEVELS),
        )

    def test_features(self):
        for change, message in (
            (
                {"pretrained_emb": "p.npz", "pretrain_usage": "max", "oov_idx": 3},
                "expected pretrain_usage init, sum or concat",
            ),
            ({"pretrained_emb": "p.npz"}, "got 'init' and None"),
            ({"category_processor": "hash_bucket"}, "category_processor hash_bucket is not supported"),
            ({"feature_encoder": "nn.Linear(4, 4)"}, "feature_encoder nn.Linear(4, 4) is not supported"),
            ({"vocab_size": 10}, f"expected vocab_size {USERS}, the rows of table"),
        ):
            specs = specs_of()
            specs["userid"].update(change)
            self.refused(message, specs=specs)
        specs = specs_of()
        specs["cate_history"]["feature_encoder"] = "layers.MaskedAveragePooling()"
        self.refused("attention needs the embeddings as they are", specs=specs)
        specs = specs_of()
        specs["cate_history"]["max_len"] = 9
        self.refused("expected one max_len, got ['6', '9']", specs=specs)
        specs = specs_of()
        specs["cate_history"]["embedding_dim"] = 3
        self.refused("expected embeddings of 8 together, embedding_dim times 2 targets, got 7", specs=specs)

    def test_what_the_user_must_say(self):
        self.refused(
            "features userid, price: expected --user or --candidate to name each, got neither",
            serving=Serving("m", {"click_history": ["click"]}),
        )
        self.refused("expected --actions click_history=ACTION,...", serving=Serving("m", {}, LEVELS))
        self.refused(
            '--actions: expected features of feature_map.json, got "clicks"',
            serving=Serving("m", {"click_history": ["click"], "clicks": ["click"]}, LEVELS),
        )
        self.refused(
            '--actions: expected the first field of a group, got "cate_history"',
            serving=Serving("m", {"click_history": ["click"], "cate_history": ["click"]}, LEVELS),
        )
        self.refused(
            'feature "item_id": expected a candidate\'s',
            serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "item_id": "USER"}),
        )
        self.refused(
            "--item: expected a categorical feature",
            serving=Serving("m", {"click_history": ["click"]}, LEVELS, "price"),
        )
        self.refused(
            'sequence "click_history": expected its padding, pre or post',
            dataset=Dataset(specs_of(), ["clk"], {}, {}, {"price": (0.0, 1.0)}),
        )
        self.refused(
            "expected padding on one side, got ['post', 'pre']",
            dataset=Dataset(
                specs_of(), ["clk"], {}, {"click_history": "pre", "cate_history": "post"}, {"price": (0.0, 1.0)}
            ),
        )
        self.refused(
            'feature "price": expected its normalizer',
            dataset=Dataset(specs_of(), ["clk"], {}, {"click_history": "pre", "cate_history": "pre"}),
        )

    def test_weights(self):
        mean = "attention_layers.0.attention_layer.mlp.1.bn.running_mean"
        self.refused(
            f'tensor "{mean}": expected the running statistics of training, got none; without them '
            "(track_running_stats=False)",
            change=lambda t: t.pop(mean),
        )
        self.refused(
            'tensor "dnn.mlp.1.running_var": expected the running statistics',
            batch_norm=True,
            change=lambda t: t.pop("dnn.mlp.1.running_var"),
        )
        self.refused("expected only tensors of the model", change=lambda t: t.update(more=np.zeros(3, np.float32)))
        self.refused(
            "expected shape [11, 24], got [11, 23]",
            change=lambda t: t.update({"dnn.mlp.0.weight": t["dnn.mlp.0.weight"][:, :-1]}),
        )
        # With dropout the second Linear would have number 3.
        self.refused('tensor "dnn.mlp.3.weight": expected in the checkpoint', net_dropout=0.1)
        shared = "embedding_layer.embedding_layers.click_history.weight"
        self.refused(
            'feature "click_history": expected the table of "item_id", which it shares, got other numbers',
            change=lambda t: t.update({shared: t[shared] + 1}),
        )
        self.refused("got one of FuxiCTR 1", change=lambda t: t.update({"dnn.dnn.0.weight": np.zeros(3, np.float32)}))

    def test_pooled_rows(self):
        def tables(change):
            def apply(tensors):
                tensors["embedding_layer.embedding_layers.tags.weight"] = table = np.full(
                    (CATEGORIES, DIM), 0.5, np.float32
                )
                table[0] = 0
                change(table)

            return apply

        specs = specs_of(tags=id_spec("sequence", CATEGORIES, feature_encoder="layers.MaskedAveragePooling()"))
        serving = Serving("m", {"click_history": ["click"]}, {**LEVELS, "tags": "USER"})
        self.refused(
            "expected zeros in the row of padding",
            specs=specs,
            serving=serving,
            change=tables(lambda table: table.__setitem__(0, 1.0)),
        )
        self.refused(
            "expected embeddings that do not sum to 0, as FuxiCTR takes these for padding, got row 3",
            specs=specs,
            serving=serving,
            change=tables(lambda table: table.__setitem__(3, [1, -1, 2, -2])),
        )
        specs["tags"]["feature_encoder"] = "layers.KMaxPooling(3, 1)"
        self.refused("got layers.KMaxPooling(3, 1)", specs=specs, serving=serving, change=tables(lambda table: None))

    def test_vocabularies(self):
        def with_vocabulary(vocabulary):
            return Dataset(
                specs_of(),
                ["clk"],
                {"userid": vocabulary},
                {"click_history": "pre", "cate_history": "pre"},
                {"price": (0.0, 1.0)},
            )

        self.refused('"userid": expected __OOV__, got none', dataset=with_vocabulary({"__PAD__": 0, "a": 1}))
        self.refused(
            f"expected rows of their own below {USERS} with __PAD__ in row 0",
            dataset=with_vocabulary({"__PAD__": 0, "a": 3, "b": 3, "__OOV__": USERS - 1}),
        )
        self.refused(
            f"expected rows of their own below {USERS}",
            dataset=with_vocabulary({"__PAD__": 0, "a": 1, "__OOV__": USERS}),
        )
        self.refused(
            "expected tokens without line ends",
            dataset=with_vocabulary({"__PAD__": 0, "a\nb": 1, "__OOV__": USERS - 1}),
        )


if __name__ == "__main__":
    unittest.main()
