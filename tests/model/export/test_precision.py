"""Bundles in bf16: what is rounded, the golden tolerance, and what the engine makes of them."""

import os
import subprocess
import tempfile
import unittest

import numpy as np

from dinghy_export import features
from dinghy_export.builder import Builder
from dinghy_export.bundle import write_bundle
from dinghy_export.evaluate import evaluate
from dinghy_export.evaluate_rows import round_to_bf16
from dinghy_export.goldens import golden_requests_of
from dinghy_export.manifest import provenance
from dinghy_export.precision import to_bf16

ITEMS, WIDTH = 60, 9


def built(din=True):
    """A model with DIN (batch norm in its first layer) or with a dot product, random weights."""
    random = np.random.RandomState(1)

    def normal(*shape):
        return random.randn(*shape).astype(np.float32)

    b = Builder("small", item_feature="item")
    b.table("item", normal(ITEMS, WIDTH))
    b.sequence("clicks", ["click"], 20, keep="NEWEST", pad="NONE")
    kind = dict(pad_row=None, oov_row=None, unknown="REFUSE", negative="REFUSE")
    for name, level, source in (("item", "CANDIDATE", "REQUEST"), ("clicks.item", "SEQUENCE", "EVENT")):
        b.feature(features.id_feature(name, level, "item", features.identity(ITEMS), source=source, **kind))
    score = {"dot": {}}
    if din:
        first = b.dense("din.0", normal(13, 4 * WIDTH) / 4, normal(13), "SIGMOID")
        first["norm"] = {"mean": b.tensor("mean", normal(13)), "variance": b.tensor("variance", normal(13) ** 2 + 1),
                         "weight": b.tensor("scale", normal(13)), "bias": "", "epsilon": 1e-3}
        second = b.dense("din.1", normal(7, 13), normal(7), "RELU")
        last = b.dense("din.2", normal(1, 7), normal(1))
        score = {"din": {"parts": ["PRODUCT", "QUERY", "KEY", "DIFFERENCE"], "layers": [first, second, last]}}
    b.layer("interest", "targetAttention", query=["item"], keys=["clicks.item"], values=["clicks.item"], **score,
            normalization="NONE", empty="ZEROS", scale=0.1)
    b.layer("y", "dense", inputs=["interest"], **b.dense("y", normal(1, WIDTH), normal(1)))
    b.output("click", "y")
    return b.build(provenance("none", "none", "2024-06-01T08:00:00Z"))


class RoundingTest(unittest.TestCase):
    def test_nearest_ties_to_even(self):
        x = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -3.0, 0.0, np.nan])
        expected = [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -3.0, 0.0, np.nan]
        np.testing.assert_array_equal(round_to_bf16(x), expected)


class Bf16Test(unittest.TestCase):
    def test_the_manifest_and_the_tolerance(self):
        model = built()
        goldens = golden_requests_of(model)
        before = [golden["tolerance"] for golden in goldens]
        exact = [evaluate(model.manifest, model.tensors, model.encoder().encode(g["request"])).scores for g in goldens]
        note = to_bf16(model.manifest, model.tensors, goldens, model.encoder())
        self.assertEqual(model.manifest["precision"], "BF16")
        rounded = [evaluate(model.manifest, model.tensors, model.encoder().encode(g["request"])).scores for g in goldens]
        worst = max(np.abs(a["click"] - b["click"]).max() for a, b in zip(exact, rounded))
        self.assertGreater(worst, 1e-5)
        self.assertLess(worst, 0.05)
        self.assertIn(f"{worst:.1e}", note)
        for golden, tolerance in zip(goldens, before):
            self.assertAlmostEqual(golden["tolerance"], tolerance + 2 * worst, delta=1e-6)

    def test_a_model_without_such_products_is_refused(self):
        model = built(din=False)
        with self.assertRaisesRegex(ValueError, "--precision bf16: expected a layer of target attention with a din"):
            to_bf16(model.manifest, model.tensors, [], model.encoder())

    @unittest.skipUnless(os.environ.get("DINGHY"), "needs the engine")
    def test_the_engine_refuses_or_emulates_it(self):
        model = built()
        goldens = golden_requests_of(model)
        to_bf16(model.manifest, model.tensors, goldens, model.encoder())
        with tempfile.TemporaryDirectory() as root:
            folder = write_bundle(root, 1, model.manifest, model.tensors, goldens)

            def dinghy(*arguments, cap=None):
                environment = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": cap} if cap else {})}
                return subprocess.run([os.environ["DINGHY"], *arguments], env=environment, capture_output=True,
                                      text=True, check=False)

            for command in ("validate", "inspect"):
                refused = dinghy(command, folder, cap="AVX2")
                self.assertEqual((refused.returncode, refused.stdout), (1, ""))
                self.assertIn("precision BF16: expected a CPU with AVX512_BF16, got ", refused.stderr)
                self.assertIn("--allow_emulation", refused.stderr)
            for cap in ("AVX2", None):
                done = dinghy("validate", folder, "--allow_emulation", cap=cap)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                error = float(done.stdout.split("largest error")[1].split()[0])
                self.assertGreater(error, 1e-5)  # the goldens are exact, and it does round
            self.assertEqual(dinghy("inspect", folder, "--allow_emulation", cap="AVX2").returncode, 0)


if __name__ == "__main__":
    unittest.main()
