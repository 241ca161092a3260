"""The float64 evaluator's attention and pooling against PyTorch's own modules."""

import math
import unittest

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dinghy_export.evaluate_attention import pooling, self_attention, target_attention
from torch_messages import Tensors, close, randomize, seeded


class SelfAttentionTest(unittest.TestCase):
    SLOTS, WIDTH, HEADS = 9, 12, 3

    def block(self, tensors, attention, norms, ffn):
        q, k, v = attention.in_proj_weight.chunk(3)
        bq, bk, bv = attention.in_proj_bias.chunk(3)
        block = {
            part: {"weight": tensors.put(weight), "bias": tensors.put(bias), "activation": "LINEAR"}
            for part, weight, bias in (("query", q, bq), ("key", k, bk), ("value", v, bv))
        }
        return {
            **block,
            "out": tensors.linear(attention.out_proj),
            "attentionNorm": tensors.norm(norms[0]),
            "ffnNorm": tensors.norm(norms[1]),
            "ffn": [tensors.linear(ffn[0], "GELU_ERF"), tensors.linear(ffn[1])],
        }

    def test_wirings_pads_causal_windows(self):
        """All that torch can say: what a row sees is a mask there."""
        attention = randomize(nn.MultiheadAttention(self.WIDTH, self.HEADS, batch_first=True))
        norms = [randomize(nn.LayerNorm(self.WIDTH, eps=1e-6), seed) for seed in (4, 5)]
        ffn = [randomize(nn.Linear(self.WIDTH, 20), 6), randomize(nn.Linear(20, self.WIDTH), 7)]
        tensors = Tensors()
        block = self.block(tensors, attention, norms, ffn)
        x = seeded(self.SLOTS, self.WIDTH, seed=8)

        def feed(y):
            return ffn[1](functional.gelu(ffn[0](y)))

        for wiring in ("PRE_NORM", "POST_NORM", "SASREC_ORIGINAL", "BARE"):
            for pads in ("MASKED", "ATTENDED", "ZEROED"):
                for length in (0, 1, 4, self.SLOTS):
                    for causal in (True, False):
                        for window in (None, 1, 3):
                            if pads != "MASKED" and not causal:
                                continue
                            with self.subTest(f"{wiring} {pads} {length} {causal} {window}"):
                                real = torch.arange(self.SLOTS) >= self.SLOTS - length
                                place = torch.arange(self.SLOTS)
                                distance = place[:, None] - place
                                blocked = (distance < 0) if causal else torch.zeros_like(distance, dtype=torch.bool)
                                if window is not None:
                                    blocked = blocked | (distance.abs() >= window)
                                if pads == "MASKED":  # torch needs something to look at in every row
                                    blocked = (blocked | ~real) & ~torch.eye(self.SLOTS, dtype=torch.bool)

                                def attend(query, memory):
                                    return attention(query[None], memory[None], memory[None], attn_mask=blocked)[0][0]

                                y = x * 1.5
                                for _ in range(2):
                                    if pads == "ZEROED":
                                        y = y * real[:, None]
                                    if wiring == "PRE_NORM":
                                        normed = norms[0](y)
                                        y = y + attend(normed, normed)
                                        y = y + feed(norms[1](y))
                                    elif wiring == "POST_NORM":
                                        y = norms[0](y + attend(y, y))
                                        y = norms[1](y + feed(y))
                                    elif wiring == "SASREC_ORIGINAL":
                                        query = norms[0](y)
                                        z = norms[1](query + attend(query, y))
                                        y = z + feed(z)
                                    else:
                                        y = attend(y, y)
                                if pads == "ZEROED":
                                    y = y * real[:, None]
                                message = {
                                    "blocks": [block, block],
                                    "heads": self.HEADS,
                                    "wiring": wiring,
                                    "causal": causal,
                                    "inputScale": 1.5,
                                    "pads": pads,
                                }
                                if window is not None:
                                    message["window"] = window
                                got = self_attention(message, x.numpy(), real.numpy(), tensors.__getitem__)
                                if pads == "MASKED":
                                    self.assertTrue(np.isnan(got[~real.numpy()]).all())
                                    close(self, got[real.numpy()], y[real])
                                else:
                                    close(self, got, y)

    def test_key_value_heads_latent_and_width(self):
        """Grouped heads are full heads with repeated weights; a latent is one more Linear; BARE changes the width."""
        heads, groups, head, width, latent = 4, 2, 3, 10, 5
        query, key, value = (
            randomize(nn.Linear(size, heads_of * head), seed)
            for seed, (size, heads_of) in enumerate(((width, heads), (latent, groups), (latent, groups)))
        )
        down, out = randomize(nn.Linear(width, latent), 8), randomize(nn.Linear(heads * head, 7), 9)
        tensors, x = Tensors(), seeded(6, width)
        message = {
            "heads": heads,
            "keyValueHeads": groups,
            "wiring": "BARE",
            "causal": False,
            "inputScale": 1.0,
            "blocks": [
                {
                    "query": tensors.linear(query),
                    "key": tensors.linear(key),
                    "value": tensors.linear(value),
                    "out": tensors.linear(out),
                    "latent": tensors.linear(down),
                }
            ],
        }

        def split(y, count):
            return y.reshape(len(y), count, head).transpose(0, 1).repeat_interleave(heads // count, dim=0)

        q, k, v = split(query(x), heads), split(key(down(x)), groups), split(value(down(x)), groups)
        for kernel in ("SOFTMAX_KERNEL", "ELU_PLUS_ONE"):
            if kernel == "SOFTMAX_KERNEL":
                weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(head), dim=-1)
            else:
                weights = (functional.elu(q) + 1) @ (functional.elu(k) + 1).transpose(1, 2)
                weights = weights / weights.sum(-1, keepdim=True)
            expected = out((weights @ v).transpose(0, 1).reshape(6, heads * head))
            close(
                self,
                self_attention({**message, "kernel": kernel}, x.numpy(), np.ones(6, bool), tensors.__getitem__),
                expected,
            )

    def test_positions(self):
        table = seeded(8, 4)
        tensors = Tensors(p=table.numpy())
        real = np.array([False, False, True, True, True])
        message = {
            "blocks": [],
            "heads": 1,
            "wiring": "PRE_NORM",
            "causal": True,
            "inputScale": 2.0,
            "pads": "ATTENDED",
        }
        x = seeded(5, 4, seed=2).numpy()

        def added(positions, key="positions"):
            return self_attention({**message, key: positions}, x, real, tensors.__getitem__) - 2 * x

        close(self, added({"tensor": "p", "origin": "FROM_OLDEST", "padRow": 7}), table[[7, 7, 0, 1, 2]])
        close(self, added({"tensor": "p", "origin": "FROM_NEWEST", "padRow": 7}), table[[7, 7, 2, 1, 0]])
        close(self, added({"tensor": "p", "origin": "FROM_SLOT", "firstRow": 1, "padRow": 0}), table[[0, 0, 3, 4, 5]])
        self.assertTrue(np.isnan(added({"tensor": "p", "origin": "FROM_SLOT", "firstRow": 0})[:2]).all())
        angle = np.arange(3)[:, None] + 1.0
        slow = angle / 100.0**0.5
        sines = {"origin": "FROM_OLDEST", "first": 1.0, "base": 100.0}
        close(
            self,
            added({**sines, "layout": "INTERLEAVED"}, "sinusoidal")[2:],
            np.hstack([np.sin(angle), np.cos(angle), np.sin(slow), np.cos(slow)]),
        )
        close(
            self,
            added({**sines, "layout": "HALVES", "origin": "FROM_NEWEST"}, "sinusoidal")[2:],
            np.hstack([np.sin(angle), np.sin(slow), np.cos(angle), np.cos(slow)])[::-1],
        )


class TargetAttentionTest(unittest.TestCase):
    """Lengths 5 and 3 of 8; 4 queries."""

    def setUp(self):
        self.query, self.keys, self.values = seeded(4, 6), seeded(8, 6, seed=2), seeded(8, 3, seed=3)
        self.tensors = Tensors()
        self.real = np.arange(8) < 5

    def run_layer(self, message, real=None, query=None, keys=None, values=None):
        pick = lambda given, own: (own if given is None else given).numpy()
        return target_attention(
            {"empty": "ZEROS", "normalization": "NONE", **message},
            pick(query, self.query),
            pick(keys, self.keys),
            pick(values, self.values),
            self.real if real is None else real,
            self.tensors.__getitem__,
        )

    def test_normalizations_of_dot(self):
        scores = 0.7 * self.query @ self.keys[:5].t()
        values = self.values[:5]
        for name, weights in (
            ("NONE", scores),
            ("SOFTMAX", torch.softmax(scores, 1)),
            ("SIGMOID_EACH", torch.sigmoid(scores)),
            ("SILU_MEAN", functional.silu(scores) / 5),
        ):
            with self.subTest(name):
                close(self, self.run_layer({"dot": {}, "normalization": name, "scale": 0.7}), weights @ values)

    def test_masked_softmax_counts_the_pads(self):
        for mask, bare in ((-1.0, False), (-1e9, True)):
            scores = (self.query @ self.keys.t()).masked_fill(~torch.from_numpy(self.real), mask)
            expected = torch.softmax(scores, 1) @ self.values
            close(self, self.run_layer({"dot": {}, "normalization": "SOFTMAX", "mask": mask}), expected)
            if bare:
                close(self, self.run_layer({"dot": {}, "normalization": "SOFTMAX"}), expected)

    def test_huge_scores(self):
        got = self.run_layer({"dot": {}, "normalization": "SOFTMAX", "scale": 1e4})
        best = (self.query @ self.keys[:5].t()).argmax(1)
        close(self, got, self.values[best])

    def test_empty(self):
        nobody = np.zeros(8, bool)
        close(self, self.run_layer({"dot": {}}, nobody), np.zeros((4, 3)))
        self.values[:] = self.values[0].clone()
        close(self, self.run_layer({"dot": {}, "empty": "PAD_VALUE"}, nobody), self.values[:4])
        with self.assertRaisesRegex(ValueError, "the sequence has no pads"):
            self.run_layer({"dot": {}, "empty": "PAD_VALUE"}, nobody[:0], keys=self.keys[:0], values=self.values[:0])

    def test_din_with_a_narrow_query(self):
        first, last = randomize(nn.Linear(24, 5)), randomize(nn.Linear(5, 1), 4)
        message = {
            "din": {
                "parts": ["PRODUCT", "KEY", "QUERY", "DIFFERENCE"],
                "queryZeros": 2,
                "layers": [self.tensors.linear(first, "RELU"), self.tensors.linear(last)],
            }
        }
        query = functional.pad(self.query[:, :4], (0, 2))[:, None].expand(4, 5, 6)
        keys = self.keys[:5].expand(4, 5, 6)
        scores = last(torch.relu(first(torch.cat([query * keys, keys, query, query - keys], -1))))[..., 0]
        close(self, self.run_layer(message, query=self.query[:, :4]), scores @ self.values[:5])

    def test_additive_and_bilinear_with_unequal_widths(self):
        query = seeded(4, 2)
        wq, wk, b, v, w = seeded(7, 2), seeded(7, 6), seeded(7), seeded(7, seed=9), seeded(2, 6)
        put = self.tensors.put
        hidden = torch.tanh((query @ wq.t())[:, None] + self.keys[:5] @ wk.t() + b)
        close(
            self,
            self.run_layer(
                {
                    "additive": {
                        "queryWeight": put(wq),
                        "keyWeight": put(wk),
                        "bias": put(b),
                        "vector": put(v),
                        "activation": "TANH",
                    }
                },
                query=query,
            ),
            hidden @ v @ self.values[:5],
        )
        close(
            self,
            self.run_layer({"bilinear": {"weight": put(w)}}, query=query),
            query @ w @ self.keys[:5].t() @ self.values[:5],
        )

    def test_heads_against_torch(self):
        """nn.MultiheadAttention with projections of its own, whose results are the layer's inputs."""
        module = randomize(nn.MultiheadAttention(6, 3, bias=False, batch_first=True))
        query, memory = seeded(4, 6, seed=5), seeded(8, 6, seed=6)
        expected = module(query[None], memory[None, :5], memory[None, :5])[0][0]
        wq, wk, wv = module.in_proj_weight.chunk(3)
        got = self.run_layer(
            {"dot": {}, "heads": 3, "scale": 1 / math.sqrt(2), "normalization": "SOFTMAX"},
            query=(query @ wq.t()).detach(),
            keys=(memory @ wk.t()).detach(),
            values=(memory @ wv.t()).detach(),
        )
        close(self, got @ module.out_proj.weight.detach().numpy().T, expected)

    def test_grouped_heads_linear_scores_and_latent(self):
        heads, head = 4, 3
        query, keys, values = seeded(4, heads * head), seeded(8, 2 * head, seed=2), seeded(8, 2 * 5, seed=3)
        q = query.reshape(4, heads, head).transpose(0, 1)
        k, v = (rows[:5].reshape(5, 2, -1).transpose(0, 1).repeat_interleave(2, dim=0) for rows in (keys, values))
        join = lambda pooled: pooled.transpose(0, 1).reshape(4, -1)
        shape = {"heads": heads, "keyValueHeads": 2}
        close(
            self,
            self.run_layer({"dot": {}, **shape}, query=query, keys=keys, values=values),
            join(q @ k.transpose(1, 2) @ v),
        )
        mapped = lambda x: functional.elu(x) + 1
        weights = mapped(q * 0.3) @ mapped(k).transpose(1, 2)
        close(
            self,
            self.run_layer({"linear": {}, "scale": 0.3, **shape}, query=query, keys=keys, values=values),
            join(weights @ v / weights.sum(-1, keepdim=True)),
        )
        up, out = seeded(heads * head, 6, seed=4), seeded(heads * 2, 6, seed=5)
        latent = {
            "dot": {},
            "heads": heads,
            "latent": {"keyUp": self.tensors.put(up), "valueUp": self.tensors.put(out)},
        }
        k = (self.keys[:5] @ up.t()).reshape(5, heads, head).transpose(0, 1)
        v = (self.keys[:5] @ out.t()).reshape(5, heads, 2).transpose(0, 1)
        close(self, self.run_layer(latent, query=query, values=self.keys), join(q @ k.transpose(1, 2) @ v))
        self.assertEqual(self.run_layer(latent, np.zeros(8, bool), query=query, values=self.keys).shape, (4, heads * 2))
        self.assertEqual(
            self.run_layer({"dot": {}, **shape}, np.zeros(8, bool), query=query, keys=keys, values=values).shape,
            (4, 20),
        )

    def test_windows(self):
        scores = self.query @ self.keys[:5].t()
        for origin, order in (("FROM_OLDEST", [0, 1, 2, 3, 4]), ("FROM_NEWEST", [4, 3, 2, 1, 0])):

            def pooled(picks):
                return scores[:, picks] @ self.values[picks] / max(1, len(picks))

            expected = torch.cat([pooled(order[:1]), pooled(order[1:3]), pooled(order[3:5]), torch.zeros(4, 3)], 1)
            close(self, self.run_layer({"dot": {}, "windows": {"sizes": [1, 2, 4, 3], "origin": origin}}), expected)
        self.assertEqual(
            self.run_layer({"dot": {}, "windows": {"sizes": [1, 2], "origin": origin}}, np.zeros(8, bool)).shape, (4, 6)
        )

    def test_auto_chooses_by_length(self):
        w = self.tensors.put(seeded(6, 6, seed=7))
        auto = {"maxShort": 5, "shortHistory": {"bilinear": {"weight": w}}, "longHistory": {"dot": {}, "scale": 0.25}}
        message = {"auto": auto, "scale": 2.0, "normalization": "SOFTMAX"}
        short = self.run_layer({"bilinear": {"weight": w}, "scale": 2.0, "normalization": "SOFTMAX"})
        close(self, self.run_layer(message), short)
        more = np.arange(8) < 6
        close(
            self,
            self.run_layer(message, more),
            self.run_layer({"dot": {}, "scale": 0.5, "normalization": "SOFTMAX"}, more),
        )


class PoolingTest(unittest.TestCase):
    def test_methods(self):
        x, real = seeded(5, 3), np.array([False, True, True, True, False])
        for method, expected in (("SUM", x[1:4].sum(0)), ("MEAN", x[1:4].mean(0)), ("LAST", x[3])):
            close(self, pooling({"method": method}, x.numpy(), real), expected[None])
            close(self, pooling({"method": method}, x.numpy(), real & False), np.zeros((1, 3)))
            close(self, pooling({"method": method, "empty": "PAD_VALUE"}, x.numpy(), real & False), x[4:])


if __name__ == "__main__":
    unittest.main()
