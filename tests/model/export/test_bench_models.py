"""The models that speed is measured on: the manifests say what the peers compute."""

import contextlib
import io
import os
import re
import subprocess
import tempfile
import unittest

import numpy as np
import torch
import torch.nn.functional as F

from dinghy_export import bench_models
from dinghy_export.evaluate import evaluate
from dinghy_export.features import column_rows
from dinghy_export.goldens import GoldenMismatch, golden_requests_of
from dinghy_export.importers.weights import ImportRefused

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PEERS = os.path.join(os.environ.get("DINGHY_SHARED", os.path.join(SOURCE, "..", "shared")), "bench")

DIN_SHAPES = {
    "item_embedding": (10_000, 32), "category_embedding": (1_000, 32),
    "attention.0.weight": (80, 256), "attention.0.bias": (80,), "attention.1.weight": (40, 80),
    "attention.1.bias": (40,), "attention.2.weight": (1, 40), "attention.2.bias": (1,),
    "tower.0.weight": (200, 224), "tower.0.bias": (200,), "tower.0.alpha": (200,), "tower.1.weight": (80, 200),
    "tower.1.bias": (80,), "tower.1.alpha": (80,), "tower.2.weight": (1, 80), "tower.2.bias": (1,),
}


def din_weights():
    random = np.random.RandomState(5)
    return {
        name: (random.randn(*shape) / np.sqrt(shape[-1])).astype(np.float32) for name, shape in DIN_SHAPES.items()
    }


def ids(columns, feature):
    return np.array(next(column_rows(column)[1] for column in columns if column["feature"] == feature))


def embedded(weights, columns):
    return torch.from_numpy(np.concatenate([weights[f"{table}_embedding"][ids(columns, table)]
                                            for table in ("item", "category")], axis=1)).double()


def plain_din(weights, request, encode=lambda rows: rows):
    """The model with [q, k, q - k, q * k] built as it stands, in float64."""
    w = {name: torch.from_numpy(values).double() for name, values in weights.items()}
    keys, query = encode(embedded(weights, request["sequences"][0]["columns"])), embedded(weights,
                                                                                          request["candidates"])
    pairs = [t.expand(len(query), len(keys), 64) for t in (query[:, None], keys[None])]
    x = torch.cat(pairs + [pairs[0] - pairs[1], pairs[0] * pairs[1]], dim=2)
    for place in (0, 1):
        x = torch.sigmoid(F.linear(x, w[f"attention.{place}.weight"], w[f"attention.{place}.bias"]))
    pooled = F.linear(x, w["attention.2.weight"], w["attention.2.bias"])[:, :, 0] @ keys
    return plain_tower(weights, request, pooled, query)


def plain_tower(weights, request, pooled, query):
    w = {name: torch.from_numpy(values).double() for name, values in weights.items()}
    user = torch.tensor(request["user"][0]["floats"]["values"]).double()
    x = torch.cat([user.expand(len(query), 32), pooled, query, pooled * query], dim=1)
    for place in (0, 1):
        x = F.prelu(F.linear(x, w[f"tower.{place}.weight"], w[f"tower.{place}.bias"]), w[f"tower.{place}.alpha"])
    return torch.sigmoid(F.linear(x, w["tower.2.weight"], w["tower.2.bias"]))[:, 0].numpy()


def attended(built, request):
    """The model of a score other than din's, with every pair's score as the papers write it, in float64."""
    w = {name: torch.from_numpy(np.asarray(values)).double() for name, values in built.tensors.items()}
    weights = din_weights()
    keys, query = embedded(weights, request["sequences"][0]["columns"]), embedded(weights, request["candidates"])
    kind = built.manifest["name"].removeprefix("din_")

    def project(x, name):
        weight = w.get(f"interest.{name}.weight")
        return x if weight is None else F.linear(x, weight, w.get(f"interest.{name}.bias"))

    if kind in ("dot", "additive", "bilinear"):
        if kind == "dot":
            logits = query @ keys.T / 8
        elif kind == "additive":
            hidden = (query @ w["interest.query_weight"].T)[:, None] + keys @ w["interest.key_weight"].T
            logits = torch.tanh(hidden + w["interest.bias"]) @ w["interest.vector"]
        else:
            logits = query @ w["interest.weight"] @ keys.T
        pooled = torch.softmax(logits, dim=1) @ keys
    else:
        q = project(query, "query")
        if kind == "latent":
            kept = project(keys, "latent")
            k, v = kept @ w["interest.key_up"].T, kept @ w["interest.value_up"].T
        else:
            k, v = project(keys, "keys"), project(keys, "values")
        heads = []
        for head in range(8):
            part = slice(8 * head, 8 * head + 8)
            own = slice(0, 8) if kind == "multi_query" else part
            if kind == "linear":
                logits = (F.elu(q[:, part]) + 1) @ (F.elu(k[:, own]) + 1).T
                attention = logits / logits.sum(dim=1, keepdim=True)
            else:
                attention = torch.softmax(q[:, part] @ k[:, own].T / 8**0.5, dim=1)
            heads.append(attention @ v[:, own])
        pooled = F.linear(torch.cat(heads, dim=1), w["interest.weight"], w["interest.bias"])
    return plain_tower(weights, request, pooled, query)


def plain_encoder(tensors, rows):
    """SASRec's original wiring, by PyTorch's own attention function, in float64."""
    w = {name: torch.from_numpy(values).double() for name, values in tensors.items()}
    x = rows * 8 + w["positions"][: len(rows)]
    later = torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1)
    for block in ("0", "1"):
        query = F.layer_norm(x, (64,))
        attended, _ = F.multi_head_attention_forward(
            query[:, None], x[:, None], x[:, None], 64, 2,
            torch.cat([w[f"{block}.query.weight"], w[f"{block}.key_value.weight"]]),
            torch.cat([w[f"{block}.query.bias"], w[f"{block}.key_value.bias"]]),
            None, None, False, 0.0, w[f"{block}.out.weight"], w[f"{block}.out.bias"], attn_mask=later)
        x = F.layer_norm(query + attended[:, 0], (64,))
        hidden = torch.relu(F.linear(x, w[f"{block}.ffn.0.weight"], w[f"{block}.ffn.0.bias"]))
        x = x + F.linear(hidden, w[f"{block}.ffn.1.weight"], w[f"{block}.ffn.1.bias"])
    return x


def scores_of(built, request):
    (scores,) = evaluate(built.manifest, built.tensors, built.encoder().encode(request)).scores.values()
    return scores


class BenchModelsTest(unittest.TestCase):
    def test_din(self):
        weights, request = din_weights(), bench_models.din_request(50, 9)
        np.testing.assert_allclose(scores_of(bench_models.build_din(weights), request), plain_din(weights, request),
                                   rtol=0, atol=1e-9)

    def test_din_sasrec(self):
        weights, request = din_weights(), bench_models.din_request(50, 9)
        encoder = bench_models.encoder_weights(50)
        expected = plain_din(weights, request, lambda rows: plain_encoder(encoder, rows))
        np.testing.assert_allclose(scores_of(bench_models.build_din(weights, encoder), request), expected,
                                   rtol=0, atol=1e-9)

    def test_sasrec(self):
        encoder = bench_models.encoder_weights(50)
        built = bench_models.build_sasrec(encoder)
        for request in bench_models.sasrec_requests(50)[:2]:
            rows = encoder["items"][ids(request["sequences"][0]["columns"], "item")]
            state = F.layer_norm(plain_encoder(encoder, torch.from_numpy(rows).double()), (64,))[-1].numpy()
            np.testing.assert_allclose(scores_of(built, request), [state @ bench_models.state_projection()],
                                       rtol=0, atol=1e-9)

    def test_other_scores(self):
        kinds = set()
        for score in bench_models.SCORES:
            with self.subTest(score):
                built = bench_models.build_din(din_weights(), score=score)
                self.assertEqual(built.manifest["name"], f"din_{score}")
                request = bench_models.din_request(50, 3)
                scores = scores_of(built, request)
                np.testing.assert_allclose(scores, attended(built, request), rtol=0, atol=1e-9)
                kinds.add(tuple(scores))
        self.assertEqual(len(kinds), len(bench_models.SCORES))
        with self.assertRaisesRegex(ValueError, "score: expected one of dot, additive, .*, got 'cosine'"):
            bench_models.build_din(din_weights(), score="cosine")

    def test_the_encoder_depends_on_its_length(self):
        short, long = bench_models.encoder_weights(50), bench_models.encoder_weights(100)
        self.assertEqual((short["positions"].shape, long["positions"].shape), ((50, 64), (100, 64)))
        np.testing.assert_array_equal(short["positions"], long["positions"][:50])
        self.assertFalse((short["0.query.weight"] == long["0.query.weight"]).any())

    def test_requests_hold_real_behaviors_alone(self):
        for (history, candidates), real in zip(bench_models.GRID, (44, 88, 175, 875)):
            request = bench_models.din_request(history, candidates)
            for feature in ("item", "category"):
                self.assertEqual(len(ids(request["sequences"][0]["columns"], feature)), real)
                self.assertEqual(len(ids(request["candidates"], feature)), candidates)
            self.assertEqual(len(request["sequences"][0]["eventTimeMs"]), real)

    def test_what_is_not_the_model_is_refused(self):
        weights = din_weights()
        del weights["tower.1.weight"]
        with self.assertRaisesRegex(ImportRefused, re.escape('DIN\'s weights: tensor "tower.1.weight"')):
            bench_models.build_din(weights)
        weights = {**din_weights(), "tower.3.weight": np.zeros((1, 1), np.float32)}
        with self.assertRaisesRegex(ImportRefused, re.escape('tensor "tower.3.weight": expected only tensors')):
            bench_models.build_din(weights)
        with self.assertRaisesRegex(ValueError, re.escape('expected.npz: expected an array "din_50x100", got none')):
            next(bench_models.models(din_weights(), {}))
        built = bench_models.build_din(din_weights())
        other = plain_din(din_weights(), bench_models.din_request(50, 3)) + 1e-4
        log = {"request": bench_models.din_request(50, 3), "outputs": [{"output": "click", "scores": other}]}
        with self.assertRaisesRegex(GoldenMismatch, "the bar is 1e-05"):
            golden_requests_of(built, [], [log])

    def test_no_weights_no_bundle(self):
        with tempfile.TemporaryDirectory() as folder:
            printed = io.StringIO()
            with contextlib.redirect_stderr(printed):
                self.assertEqual(bench_models.main(["--weights", folder, "--out", os.path.join(folder, "out")]), 1)
            self.assertIn("refused: ", printed.getvalue())
            self.assertIn("din_weights.npz", printed.getvalue())
            self.assertEqual(os.listdir(folder), [])

    @unittest.skipUnless(os.path.isdir(PEERS), f"the peers' weights are not there: {PEERS}")
    def test_bundles_give_what_the_peers_gave(self):
        with tempfile.TemporaryDirectory() as folder:
            written = bench_models.write_models(PEERS, folder, scores=bench_models.SCORES)
            self.assertEqual(sorted(os.listdir(folder)), sorted(
                ["din", "din_sasrec_50", "din_sasrec_100", "din_sasrec_200", "din_sasrec_1000", "sasrec_50",
                 "sasrec_200", *(f"din_{score}" for score in bench_models.SCORES)]))
            self.assertEqual(bench_models.write_models(PEERS, folder, scores=bench_models.SCORES), written)  # they stay
            if "DINGHY" in os.environ:
                for bundle in written:
                    done = subprocess.run([os.environ["DINGHY"], "validate", bundle], capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
