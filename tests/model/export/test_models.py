"""The reference models: padding never matters, an empty history pools to zeros, layers match slow formulas."""

import math
import unittest

import torch

from dinghy_export.layers import (AutoTargetAttention, Dense, EmbeddingTable, Pooling, SelfAttention,
                                  TargetAttention)
from dinghy_export.models import (VARIANTS, Batch, IdFeature, ModelSpec, NumericFeature, ReferenceModel, SequenceSpec,
                                  Table, TimeSince, manifest_inputs)


def make_spec(variant, **changes):
    tables = {"item": Table(50, 8), "genre": Table(6, 4), "time": Table(4, 4), "action": Table(2, 4),
              "age": Table(3, 4)}
    spec = ModelSpec(
        name="test", variant=variant, tables=tables,
        candidate=(IdFeature("item", "item"), IdFeature("genre", "genre", bag="BAG_MEAN", source="CATALOG")),
        sequences=(
            SequenceSpec("clicks", ("click",), 20, ("item", "genre"), time_since=TimeSince("time", (10, 100, 1000)),
                         max_short=4),
            SequenceSpec("purchases", ("purchase",), 20, ("item",), side=(IdFeature("action", "action"),))),
        user=(IdFeature("age", "age"), NumericFeature("income", 1.0, 2.0)), outputs=("click", "purchase"))
    return spec.with_variant(variant, **changes)


def make_batch(lengths, width, candidates=3, seed=0):
    """Requests whose real values do not depend on the padded `width`; padding is random."""
    batch = len(lengths)
    real, padding = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + width)

    def draw(low, high, *shape):
        values = torch.randint(low, high, (batch, 20) + shape, generator=real)
        mask = torch.arange(20) < torch.tensor(lengths)[:, None]
        noise = torch.randint(low, high, (batch, 20) + shape, generator=padding)
        return torch.where(mask.view(batch, 20, *[1] * len(shape)), values, noise)[:, :width]

    values = {
        "clicks.item": draw(0, 50), "clicks.genre": draw(-1, 6, 3), "clicks.time": draw(0, 4),
        "purchases.item": draw(0, 50), "purchases.action": draw(0, 2),
        "item": torch.randint(0, 50, (batch, candidates), generator=real),
        "genre": torch.randint(-1, 6, (batch, candidates, 3), generator=real),
        "age": torch.randint(0, 3, (batch, 1), generator=real),
        "income": torch.randn(batch, 1, 1, generator=real),
    }
    count = torch.tensor(lengths)
    return Batch(values, {"clicks": count, "purchases": count}, torch.full((batch,), candidates))


class ModelTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(3)

    def test_result_does_not_depend_on_padding(self):
        for variant in VARIANTS:
            for changes in ({}, {"attention_normalization": "SOFTMAX", "wiring": "POST_NORM"},
                            {"wiring": "SASREC_ORIGINAL", "position_origin": "FROM_OLDEST", "causal": False}):
                model = ReferenceModel(make_spec(variant, **changes)).eval()
                narrow = model(make_batch([0, 1, 5, 7], 7))
                wide = model(make_batch([0, 1, 5, 7], 20))
                for output in narrow:
                    torch.testing.assert_close(narrow[output], wide[output], rtol=1e-5, atol=2e-6)

    def test_history_matters_except_without_history(self):
        for variant in VARIANTS:
            model = ReferenceModel(make_spec(variant)).eval()
            batch = make_batch([6, 6], 6)
            before = model(batch)["click"]
            batch.values["clicks.item"] = (batch.values["clicks.item"] + 1) % 50
            changed = not torch.equal(before, model(batch)["click"])
            self.assertEqual(changed, variant != "no_history", variant)

    def test_candidates_are_independent(self):
        model = ReferenceModel(make_spec("din_sasrec")).eval()
        batch = make_batch([5, 2], 6, candidates=4)
        whole = model(batch)["purchase"]
        for name in ("item", "genre"):
            batch.values[name] = batch.values[name][:, 2:3]
        torch.testing.assert_close(model(batch)["purchase"], whole[:, 2:3], rtol=1e-5, atol=2e-6)

    def test_manifest_lists_what_the_variant_reads(self):
        sequences, features = manifest_inputs(make_spec("din"))
        self.assertEqual([s["name"] for s in sequences], ["clicks", "purchases"])
        sources = {f["name"]: f["from"] for f in features}
        self.assertEqual(sources["clicks.item"], "EVENT")
        self.assertEqual(sources["clicks.genre"], "CATALOG")
        self.assertEqual(sources["purchases.action"], "EVENT")
        sequences, features = manifest_inputs(make_spec("no_history"))
        self.assertEqual((sequences, [f["name"] for f in features]), ([], ["item", "genre", "age", "income"]))

    def test_unknown_variant_is_refused(self):
        with self.assertRaisesRegex(ValueError, "variant: expected one of"):
            ReferenceModel(make_spec("transformer"))


class LayerTest(unittest.TestCase):

    def setUp(self):
        torch.manual_seed(4)

    def test_target_attention_equals_the_formula(self):
        for normalization in ("NONE", "SOFTMAX"):
            for parts in (("QUERY", "KEY", "DIFFERENCE", "PRODUCT"), ("PRODUCT", "QUERY"), ("KEY",)):
                layer = TargetAttention(6, (5, 3), parts=parts, normalization=normalization, scale=0.5)
                query, keys = torch.randn(2, 4, 6), torch.randn(2, 7, 6)
                lengths = [7, 3]
                result = layer(query, keys, keys, torch.arange(7) < torch.tensor(lengths)[:, None])
                for b in range(2):
                    for c in range(4):
                        scores = []
                        for t in range(lengths[b]):
                            q, k = query[b, c], keys[b, t]
                            by_part = {"QUERY": q, "KEY": k, "DIFFERENCE": q - k, "PRODUCT": q * k}
                            x = torch.cat([by_part[part] for part in parts])
                            for dense in layer.layers:
                                x = dense(x)
                            scores.append(x * 0.5)
                        weights = torch.cat(scores)
                        if normalization == "SOFTMAX":
                            weights = torch.softmax(weights, 0)
                        torch.testing.assert_close(result[b, c], weights @ keys[b, :lengths[b]], rtol=1e-5, atol=1e-5)

    def test_auto_takes_the_score_of_the_length(self):
        layer = AutoTargetAttention(6, max_short=3, hidden=(5,), normalization="SOFTMAX", scale=0.5)
        unit = TargetAttention(6, hidden=(5,), normalization="SOFTMAX", scale=0.5)
        unit.load_state_dict(layer.state_dict(), strict=False)
        torch.nn.init.normal_(layer.long)
        query, keys, lengths = torch.randn(4, 2, 6), torch.randn(4, 5, 6), [0, 3, 4, 5]
        mask = torch.arange(5) < torch.tensor(lengths)[:, None]
        result, by_unit = layer(query, keys, keys, mask), unit(query, keys, keys, mask)
        torch.testing.assert_close(result[:2], by_unit[:2], rtol=0, atol=0)
        for b in (2, 3):
            weights = torch.softmax(query[b] @ layer.long @ keys[b, :lengths[b]].t() / math.sqrt(6) * 0.5, 1)
            torch.testing.assert_close(result[b], weights @ keys[b, :lengths[b]], rtol=1e-5, atol=1e-5)
            self.assertGreater((result[b] - by_unit[b]).abs().max(), 0.01)

    def test_self_attention_equals_the_formula(self):
        layer = SelfAttention(6, 9, blocks=1, heads=2, input_scale=2.0)
        x, length = torch.randn(1, 5, 6), 4
        result = layer(x, torch.arange(5)[None] < length)
        block = layer.blocks[0]
        rows = torch.stack([x[0, t] * 2.0 + layer.positions[length - 1 - t] for t in range(length)])
        normed = block.attention_norm(rows)
        attended = []
        for t in range(length):
            heads = []
            for h in (slice(0, 3), slice(3, 6)):
                q, k, v = (dense(normed)[:, h] for dense in (block.query, block.key, block.value))
                heads.append(torch.softmax(k[:t + 1] @ q[t] / math.sqrt(3), 0) @ v[:t + 1])
            attended.append(block.out(torch.cat(heads)))
        rows = rows + torch.stack(attended)
        rows = rows + block.ffn[1](block.ffn[0](block.ffn_norm(rows)))
        torch.testing.assert_close(result[0, :length], layer.final_norm(rows), rtol=1e-4, atol=1e-5)
        self.assertTrue(torch.equal(result[0, length:], torch.zeros(1, 6)))

    def test_empty_history_pools_to_zeros(self):
        x, none = torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool)
        for method in Pooling.METHODS:
            self.assertTrue(torch.equal(Pooling(method)(x, none), torch.zeros(1, 4)))
        for normalization in ("NONE", "SOFTMAX"):
            layer = TargetAttention(4, (3,), normalization=normalization)
            self.assertTrue(torch.equal(layer(torch.randn(1, 2, 4), x, x, none), torch.zeros(1, 2, 4)))

    def test_last_is_the_newest(self):
        x = torch.randn(2, 3, 4)
        pooled = Pooling("LAST")(x, torch.tensor([[True, True, False], [True, True, True]]))
        self.assertTrue(torch.equal(pooled, torch.stack([x[0, 1], x[1, 2]])))

    def test_bags(self):
        table = EmbeddingTable(5, 3)
        ids = torch.tensor([[1, 4, -1], [-1, -1, -1]])
        w = table.weight
        torch.testing.assert_close(table(ids, "BAG_MEAN"), torch.stack([(w[1] + w[4]) / 2, torch.zeros(3)]))
        torch.testing.assert_close(table(ids, "BAG_SUM"), torch.stack([w[1] + w[4], torch.zeros(3)]))

    def test_unknown_activation_is_refused(self):
        with self.assertRaisesRegex(ValueError, "activation: expected one of"):
            Dense(2, 2, "GELU")


if __name__ == "__main__":
    unittest.main()
