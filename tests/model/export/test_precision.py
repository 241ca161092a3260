"""Bundles in bf16, and with tables in F16 or I8: what is rounded, the golden tolerance, and what the engine makes of them."""

import os
import subprocess
import tempfile
import unittest

import numpy as np

from dinghy_export import features, safetensors
from dinghy_export.builder import Builder
from dinghy_export.bundle import write_bundle
from dinghy_export.evaluate import evaluate
from dinghy_export.evaluate_rows import round_to_bf16
from dinghy_export.goldens import golden_requests_of
from dinghy_export.manifest import provenance
from dinghy_export.precision import lower

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


def scores_of(model, goldens):
    return [evaluate(model.manifest, model.tensors, model.encoder().encode(g["request"])).scores["click"] for g in goldens]


def dinghy(*arguments, cap=None):
    environment = {**os.environ, **({"ONEDNN_MAX_CPU_ISA": cap} if cap else {})}
    return subprocess.run([os.environ["DINGHY"], *arguments], env=environment, capture_output=True, text=True, check=False)


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
        (note,) = lower(model.manifest, model.tensors, goldens, model.encoder(), precision="bf16")
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
            lower(model.manifest, model.tensors, [], model.encoder(), precision="bf16")

    @unittest.skipUnless(os.environ.get("DINGHY"), "needs the engine")
    def test_the_engine_refuses_or_emulates_it(self):
        model = built()
        goldens = golden_requests_of(model)
        lower(model.manifest, model.tensors, goldens, model.encoder(), precision="bf16")
        with tempfile.TemporaryDirectory() as root:
            folder = write_bundle(root, 1, model.manifest, model.tensors, goldens)

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


class TablesTest(unittest.TestCase):
    def test_f16_is_the_nearest_half(self):
        model = built()
        before = model.tensors["item.weight"]
        lower(model.manifest, model.tensors, [], model.encoder(), tables="f16")
        after = model.tensors["item.weight"]
        self.assertEqual(after.dtype, np.float16)
        self.assertLessEqual((np.abs(after.astype(np.float64) - before) / np.abs(before)).max(), 2.0**-11)
        self.assertNotIn("scale", model.manifest["tables"][0])

    def test_i8_has_a_scale_for_each_row(self):
        model = built()
        before = model.tensors["item.weight"].copy()
        before[3] = 0
        before[4] *= 1e-40
        before[5] *= 1e30
        model.tensors["item.weight"] = before
        lower(model.manifest, model.tensors, [], model.encoder(), tables="i8")
        self.assertEqual(model.manifest["tables"][0]["scale"], "item.weight.scale")
        after, scale = model.tensors["item.weight"], model.tensors["item.weight.scale"]
        self.assertEqual((after.dtype, scale.dtype, scale.shape), (np.int8, np.float32, (ITEMS,)))
        self.assertEqual(int(np.abs(after[5].astype(int)).max()), 127)
        self.assertFalse(after[3].any())
        error = np.abs(after * scale.astype(np.float64)[:, None] - before)
        self.assertTrue((error <= 0.5001 * scale[:, None] + 1e-45).all())

    def test_the_tolerance_and_the_sizes(self):
        for kind, size in (("f16", "1.1 kB"), ("i8", "0.8 kB")):
            with self.subTest(kind):
                model = built()
                goldens = golden_requests_of(model)
                before = [golden["tolerance"] for golden in goldens]
                exact = scores_of(model, goldens)
                notes = lower(model.manifest, model.tensors, goldens, model.encoder(), tables=kind)
                worst = max(np.abs(a - b).max() for a, b in zip(exact, scores_of(model, goldens)))
                self.assertGreater(worst, 1e-5)
                self.assertLess(worst, 0.02)
                self.assertEqual(notes[0], f"{kind} tables: {size} instead of 2.2 kB")
                self.assertIn(f"{kind} tables: largest difference from f32 {worst:.1e}", notes[1])
                for golden, tolerance in zip(goldens, before):
                    self.assertAlmostEqual(golden["tolerance"], tolerance + 2 * worst, delta=1e-6)

    def test_f32_changes_nothing(self):
        model = built()
        manifest, tensors = repr(model.manifest), dict(model.tensors)
        self.assertEqual(lower(model.manifest, model.tensors, [], model.encoder()), [])
        self.assertEqual((repr(model.manifest), model.tensors.keys()), (manifest, tensors.keys()))

    def test_faults(self):
        model = built()
        model.tensors["item.weight"][2, 1] = 70000
        with self.assertRaisesRegex(ValueError, 'numbers below 65520 in table tensor "item.weight", got 70000'):
            lower(model.manifest, model.tensors, [], model.encoder(), tables="f16")
        model.tensors["item.weight.scale"] = np.ones(3, np.float32)
        with self.assertRaisesRegex(ValueError, 'expected "item.weight.scale" to be free for scales'):
            lower(model.manifest, model.tensors, [], model.encoder(), tables="i8")
        with self.assertRaisesRegex(ValueError, "--tables i8: expected a model with embedding tables, got none"):
            lower({**model.manifest, "tables": []}, model.tensors, [], model.encoder(), tables="i8")
        model = built()
        model.tensors["y.weight"] = model.tensors["y.weight"].astype(np.float16)
        with tempfile.TemporaryDirectory() as root:
            with self.assertRaisesRegex(ValueError, '"y.weight": expected float32, since it is no table, got float16'):
                write_bundle(root, 1, model.manifest, model.tensors, [])

    @unittest.skipUnless(os.environ.get("DINGHY"), "needs the engine")
    def test_the_engine_gives_what_the_tables_say(self):
        for tables, precision in (("f16", "f32"), ("i8", "f32"), ("i8", "bf16")):
            with self.subTest(tables=tables, precision=precision), tempfile.TemporaryDirectory() as root:
                model = built()
                goldens = golden_requests_of(model)
                exact = scores_of(model, goldens)
                lower(model.manifest, model.tensors, goldens, model.encoder(), precision=precision, tables=tables)
                worst = max(np.abs(a - b).max() for a, b in zip(exact, scores_of(model, goldens)))
                folder = write_bundle(root, 1, model.manifest, model.tensors, goldens)
                stored = safetensors.read(os.path.join(folder, "tables.safetensors"))
                self.assertEqual(sorted(stored), ["item.weight", "item.weight.scale"][: 2 if tables == "i8" else 1])
                done = dinghy("validate", folder, "--allow_emulation")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                # The goldens are exact, so the engine is as far from them as the evaluator is.
                error = float(done.stdout.split("largest error")[1].split()[0])
                self.assertAlmostEqual(error, worst, delta=worst if precision == "bf16" else 0.02 * worst)


if __name__ == "__main__":
    unittest.main()
