"""The weights of a checkpoint as importers take them: by name and shape, each once, none forgotten."""

import os
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export.importers.weights import ImportRefused, Weights


class WeightsTest(unittest.TestCase):
    def setUp(self):
        self.weights = Weights(
            {
                "a.weight": np.ones((2, 3), np.float32),
                "a.bias": np.zeros(2),
                "n": np.array(3),
                "bad": np.array([1.0, np.nan]),
            },
            {"odd": "set"},
            "model.pth",
        )

    def test_take(self):
        self.assertEqual(self.weights.take("a.weight", [2, None]).shape, (2, 3))
        self.assertIsNone(self.weights.optional("b.weight"))
        self.assertTrue(self.weights.has("a.bias"))
        self.assertEqual(self.weights.names("a."), ["a.weight", "a.bias"])

    def test_refusals(self):
        for name, shape, message in (
            ("a.weight", [3, 2], r'model.pth: tensor "a.weight": expected shape \[3, 2\], got \[2, 3\]'),
            ("a.weight", [None], r"expected shape \[any\], got \[2, 3\]"),
            (
                "b.weight",
                None,
                'tensor "b.weight": expected in the checkpoint, got none of that name; there are a.weight',
            ),
            ("n", None, 'tensor "n": expected floats, got int64'),
            ("bad", [2], 'tensor "bad": expected finite numbers, got nan'),
            ("odd", None, 'tensor "odd": expected a plain tensor, got set'),
        ):
            with self.subTest(name), self.assertRaisesRegex(ImportRefused, message):
                self.weights.take(name, shape)

    def test_finish(self):
        self.weights.take("a.weight")
        with self.assertRaisesRegex(
            ImportRefused,
            r'tensor "a.bias": expected only tensors of the model as the options describe it, '
            r"got one that it does not have \(and 3 more\)",
        ):
            self.weights.finish()
        self.assertEqual(self.weights.finish(ignore=["a.*", "n", "bad", "odd"]), [])

    def test_what_the_reader_noted_reaches_the_import(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.pth")
            torch.save({"module.w": torch.ones(2)}, path)
            weights = Weights.of_file(path)
            weights.take("w", [2])
            self.assertRegex(weights.finish()[0], 'every tensor is named "module')


if __name__ == "__main__":
    unittest.main()
