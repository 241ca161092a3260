"""FuxiCTR's DIN: what the importer builds gives what a PyTorch module with the same state dict gives, in every flavour
that the configuration can express."""

import itertools
import unittest

import numpy as np
import torch

from dinghy_export import features
from dinghy_export.evaluate import evaluate
from dinghy_export.importers.fuxictr import Serving, build_din
from dinghy_export.importers.fuxictr_dataset import Dataset
from dinghy_export.importers.weights import Weights
from fuxictr_modules import (
    CATEGORIES,
    DIM,
    ITEMS,
    LEVELS,
    MAX_LEN,
    Net,
    PAIR,
    PARAMS,
    SINGLES,
    USERS,
    draw,
    id_spec,
    request_of,
    specs_of,
    vocabulary,
)


class FlavoursTest(unittest.TestCase):
    def check(
        self,
        specs=None,
        groups=PAIR,
        padding="post",
        serving=None,
        scaling=(0.0, 1.0),
        vocabularies=None,
        text=None,
        names=None,
        zero_pad=True,
        change=None,
        **params,
    ):
        specs = specs or specs_of()
        params = {**PARAMS, **params}
        net = Net(specs, params, groups, zero_pad=zero_pad)
        inputs = draw(specs, 2 * (MAX_LEN + 1), padding)
        if change is not None:
            change(inputs)
        serving = serving or Serving("m", {sequence[0]: ["click"] for _, sequence in groups}, LEVELS)
        dataset = Dataset(specs, ["clk"], vocabularies or {}, {name: padding for name in specs}, {"price": scaling})
        built = build_din(
            Weights({name: tensor.numpy() for name, tensor in net.state_dict().items()}), params, dataset, serving
        )
        scaled = dict(inputs)
        if "price" in inputs:
            scaled["price"] = ((inputs["price"].astype(np.float64) - scaling[0]) / scaling[1]).astype(np.float32)
        with torch.no_grad():
            expected = net(
                {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in scaled.items()}
            ).numpy()
        self.assertGreater(np.ptp(expected), 1e-3)  # else it would say nothing
        names = names or {
            field: f"{sequence[0]}.{name}" for target, sequence in groups for name, field in zip(target, sequence)
        }
        encoder = built.encoder()
        for row in range(len(expected)):
            request = request_of(built, inputs, row, names, text)
            scores = evaluate(built.manifest, built.tensors, encoder.encode(request)).scores["clk"]
            self.assertAlmostEqual(scores[0], expected[row], delta=2e-6, msg=f"row {row}")
        return built

    def test_options(self):
        for softmax, norm, drop, net_drop, padding in itertools.product(
            (False, True), (False, True), (0, 0.2), (0, 0.3), ("pre", "post")
        ):
            with self.subTest(softmax=softmax, norm=norm, drop=drop, net_drop=net_drop, padding=padding):
                built = self.check(
                    din_use_softmax=softmax,
                    batch_norm=norm,
                    attention_dropout=drop,
                    net_dropout=net_drop,
                    padding=padding,
                )
                (sequence,) = built.manifest["sequences"]
                self.assertEqual(
                    (sequence["keep"], sequence["pad"]), ("NEWEST", "LEFT") if padding == "pre" else ("OLDEST", "RIGHT")
                )
                self.assertEqual(sequence["skipPadOf"], "click_history.item_id")

    def test_activations(self):
        for name in (
            "Dice",
            "dice",
            "PReLU",
            "ReLU",
            "sigmoid",
            "Tanh",
            "LeakyReLU",
            "SiLU",
            "GELU",
            None,
            ["Dice", None],
            ["relu", "PReLU"],
        ):
            for norm in (False, True):
                with self.subTest(name=name, norm=norm):
                    self.check(
                        attention_hidden_activations=name, dnn_activations=name, batch_norm=norm, net_dropout=[0.1, 0]
                    )

    def test_attention_output_activation(self):
        self.check(attention_output_activation="Sigmoid")

    def test_batch_norm_once(self):
        built = self.check(batch_norm=True, bn_only_once=True, net_dropout=0.1)
        self.assertIn("tower.input", [layer["name"] for layer in built.manifest["layers"]])
        # DIN itself does not pass the option on: then the checkpoint has the usual numbers.
        specs, params = specs_of(), {**PARAMS, "batch_norm": True}
        net = Net(specs, params, PAIR)
        build_din(
            Weights({name: tensor.numpy() for name, tensor in net.state_dict().items()}),
            {**params, "bn_only_once": True},
            Dataset(specs, ["clk"], {}, dict.fromkeys(specs, "pre"), {"price": (0, 1)}),
            Serving("m", {"click_history": ["click"]}, LEVELS),
        )

    def test_no_hidden_layers(self):
        self.check(dnn_hidden_units=[], attention_hidden_units=[])

    def test_several_groups(self):
        for softmax in (False, True):
            built = self.check(
                groups=SINGLES,
                din_target_field=["item_id", "cate_id"],
                din_sequence_field=["click_history", "cate_history"],
                din_use_softmax=softmax,
            )
            self.assertEqual(
                [layer["name"] for layer in built.manifest["layers"] if "targetAttention" in layer],
                ["interest.0", "interest.1"],
            )

    def test_one_field(self):
        specs = specs_of()
        del specs["cate_history"]
        self.check(
            specs,
            groups=SINGLES[:1],
            din_target_field="item_id",
            din_sequence_field="click_history",
            serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "cate_id": "CANDIDATE"}),
        )

    def test_slots_keep_their_place(self):
        """Sequence fields stand apart in the feature map, and in another order than in the group."""
        specs = {"cate_history": id_spec("sequence", CATEGORIES), **specs_of()}
        built = self.check(dict(specs))
        self.assertEqual(built.manifest["layers"][-1]["inputs"][0], "interest")
        specs = {
            "cate_history": id_spec("sequence", CATEGORIES),
            "click_history": id_spec("sequence", ITEMS),
            **specs_of(),
        }
        specs["click_history"].pop("share_embedding", None)
        self.check(specs, batch_norm=True, bn_only_once=True)

    def test_widths_of_their_own(self):
        specs = specs_of()
        specs["userid"]["embedding_dim"], specs["price"]["embedding_dim"] = 3, 7
        # Fields of a group may be of other widths, as long as they are embedding_dim on average; pieces are cut anyway.
        specs["cate_id"]["embedding_dim"] = specs["cate_history"]["embedding_dim"] = 2
        specs["item_id"]["embedding_dim"] = specs["click_history"]["embedding_dim"] = 6
        self.check(specs)

    def test_vectors_and_meta(self):
        specs = specs_of(group={"type": "meta"}, picture={"type": "embedding", "pretrain_dim": 5})
        self.check(specs, serving=Serving("m", {"click_history": ["click"]}, {**LEVELS, "picture": "CANDIDATE"}))

    def test_pooled_sequences(self):
        for pooling, level in itertools.product(("MaskedAveragePooling", "MaskedSumPooling"), ("bag", "sequence")):
            with self.subTest(pooling=pooling, level=level):
                specs = specs_of(tags=id_spec("sequence", CATEGORIES, feature_encoder=f"layers.{pooling}()"))
                actions = {"click_history": ["click"], **({"tags": ["tag"]} if level == "sequence" else {})}
                levels = {**LEVELS, **({"tags": "USER"} if level == "bag" else {})}
                names = {
                    "click_history": "click_history.item_id",
                    "cate_history": "click_history.cate_id",
                    "tags": "tags.tags" if level == "sequence" else "tags",
                }
                built = self.check(specs, serving=Serving("m", actions, levels), names=names)
                self.assertEqual(any("bag of ids" in note for note in built.notes), level == "bag")

    def test_pretrained_embeddings(self):
        """The vocabulary's last known row is in the middle; behind it are tokens of the pretrained file alone."""
        for usage, frozen, width in itertools.product(("init", "sum", "concat"), (False, True), (DIM, 3)):
            with self.subTest(usage=usage, frozen=frozen, width=width):
                specs = specs_of()
                specs["item_id"].update(
                    pretrained_emb="p.npz", freeze_emb=frozen, pretrain_usage=usage, pretrain_dim=width, oov_idx=20
                )
                tokens = {"__PAD__": 0, **{str(100 + row): row for row in range(1, ITEMS) if row != 20}, "__OOV__": 20}

                def text(name, ids):
                    if name in ("item_id", "click_history"):
                        return features.ints("", [100 + row if row != 20 else 10**6 for row in ids])
                    return features.ints("", ids)

                self.check(
                    specs, vocabularies={"item_id": tokens, "click_history": tokens}, text=text, din_use_softmax=True
                )

    def test_padding_in_the_middle(self):
        """A behavior whose first field is padding does not count, whatever its other fields are; one with padding in
        another field does."""

        def change(inputs):
            inputs["click_history"][:, 2:4] = 0
            inputs["cate_history"][:, 4] = 0

        for softmax, padding, zero_pad in itertools.product((False, True), ("pre", "post"), (False, True)):
            with self.subTest(softmax=softmax, padding=padding, zero_pad=zero_pad):
                self.check(change=change, din_use_softmax=softmax, padding=padding, zero_pad=zero_pad)

    def test_pad_row_that_is_not_zero(self):
        """With softmax an empty history is the mean of pad rows, whatever stands there."""
        self.check(din_use_softmax=True, zero_pad=False)

    def test_scaling(self):
        self.check(scaling=(3.5, 0.25))

    def test_source_tells_the_level(self):
        specs = specs_of()
        specs["userid"]["source"], specs["price"]["source"] = "user", "item"
        built = self.check(specs, serving=Serving("m", {"click_history": ["click"]}))
        self.assertEqual({f["name"]: f["level"] for f in built.manifest["features"]}["userid"], "USER")

    def test_vocabularies(self):
        """Raw ids find FuxiCTR's rows: texts, numbers, tables that rows are left out of, and tokens never seen."""
        texts = {
            name: vocabulary(f"{name[:1]}{{}}", rows) for name, rows in (("userid", USERS), ("cate_id", CATEGORIES))
        }
        texts["item_id"] = vocabulary("{}", ITEMS, first=100)
        texts["click_history"], texts["cate_history"] = texts["item_id"], texts["cate_id"]

        def text(name, ids):
            tokens = {row: token for token, row in texts[name].items() if token != "__OOV__"}
            if texts[name] is texts["item_id"]:
                return features.ints("", [int(tokens.get(row, 999)) for row in ids])
            return features.strings("", [tokens.get(row, "never seen") for row in ids])

        built = self.check(vocabularies=texts, text=text)
        kinds = {f["name"]: f["id"] for f in built.manifest["features"] if "id" in f}
        self.assertEqual(kinds["click_history.item_id"]["type"], "INT64")
        self.assertEqual(kinds["click_history.cate_id"]["type"], "STRING")
        self.assertEqual([kinds["userid"][part] for part in ("padRow", "oovRow", "unknown")], [0, USERS - 1, "OOV_ROW"])
        # The empty token of a history is padding.
        path = kinds["click_history.cate_id"]["file"]["path"]
        self.assertEqual((built.vocabularies[path][0], kinds["click_history.cate_id"]["file"]["firstRow"]), ("", 0))

    def test_vocabulary_that_leaves_rows_out(self):
        specs = specs_of()
        whole = vocabulary("{}", ITEMS, first=0)
        holes = {token: row for token, row in whole.items() if token == "__OOV__" or row % 3 != 1}
        rows = {row: token for token, row in holes.items()}
        inputs_to_text = {"item_id": holes, "click_history": holes}

        def text(name, ids):
            if name not in inputs_to_text:
                return features.ints("", ids)
            return features.ints("", [int(rows[row]) if row in rows and row != ITEMS - 1 else 10**6 for row in ids])

        net = Net(specs, PARAMS, PAIR)
        weights = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
        built = build_din(
            Weights(weights),
            PARAMS,
            Dataset(specs, ["clk"], inputs_to_text, dict.fromkeys(specs, "pre"), {"price": (0, 1)}),
            Serving("m", {"click_history": ["click"]}, LEVELS),
        )
        self.assertEqual(len(built.tensors["item_id.weight"]), len(holes))
        inputs = draw(specs, 14, "pre")
        for name in inputs_to_text:  # what training never saw is the last row
            inputs[name][(inputs[name] % 3 == 1) & (inputs[name] != 0)] = ITEMS - 1
        with torch.no_grad():
            expected = net({name: torch.from_numpy(values) for name, values in inputs.items()}).numpy()
        for row, score in enumerate(expected):
            request = request_of(
                built,
                inputs,
                row,
                {"click_history": "click_history.item_id", "cate_history": "click_history.cate_id"},
                text,
            )
            got = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores["clk"]
            self.assertAlmostEqual(got[0], score, delta=2e-6)


if __name__ == "__main__":
    unittest.main()
