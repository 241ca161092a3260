"""The example of a module of one's own is imported by the command line, and what is wrong with such a file is said."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import tempfile
import unittest

import torch

from dinghy_export.__main__ import main

SOURCE = os.environ.get("DINGHY_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..", ".."))
EXAMPLE = os.path.join(SOURCE, "model", "export", "examples", "own_module.py")


def run(root, module, *arguments):
    """Exit code, standard output and standard error of an import."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(["import", "--from", "torch", "--module", module, "--name", "books", "--version", "1",
                     "--out", root, *arguments])
    return code, out.getvalue(), error.getvalue()


def example():
    spec = importlib.util.spec_from_file_location("own_module_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ExampleTest(unittest.TestCase):
    def test_it_is_imported(self):
        with tempfile.TemporaryDirectory() as root:
            code, out, error = run(root, f"{EXAMPLE}:export")
            self.assertEqual((code, error), (0, ""))
            self.assertRegex(out, r"note: 11 requests of the library's own: largest difference \d\.\de-0[789]\n")
            folder = os.path.join(root, "books", "1")
            with open(os.path.join(folder, "golden.jsonl"), encoding="utf-8") as file:
                titles = [json.loads(line)["request"]["requestId"] for line in file]
            self.assertEqual(titles[0], "example")
            self.assertLessEqual({"empty history", "history to be cut", "unknown ids"}, set(titles))
            if not os.environ.get("DINGHY"):
                self.skipTest("DINGHY does not name the binary")
            command = [os.environ["DINGHY"], "validate", folder]
            checked = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_a_checkpoint_is_handed_on(self):
        """Its weights, not those that the example would train."""
        module = example()
        net = module.train(steps=3)
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "net.pth")
            torch.save(net.state_dict(), path)
            built = module.export(path)
            self.assertEqual(run(root, f"{EXAMPLE}:export", "--checkpoint", path, "--data", "readers of May")[0], 0)
            with open(os.path.join(root, "books", "1", "bundle.json"), encoding="utf-8") as file:
                self.assertEqual(json.load(file)["provenance"]["data"], "readers of May")
        self.assertTrue((built.tensors["book.weight"] == net.book.weight.detach().numpy()).all())

    def test_what_the_module_does_not_do_is_refused(self):
        """A wrong `empty`, as anybody might write it."""
        with tempfile.TemporaryDirectory() as root:
            with open(EXAMPLE, encoding="utf-8") as file:
                text = file.read()
            path = os.path.join(root, "wrong.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace('empty="PAD_VALUE"', 'empty="ZEROS"'))
            code, _, error = run(root, f"{path}:export")
            self.assertEqual(code, 1)
            self.assertRegex(error, r'refused: request "empty history": output "click", candidate \d+: the library gave 0')
            self.assertFalse(os.path.exists(os.path.join(root, "books", "1")))


class RefusalTest(unittest.TestCase):
    def refused(self, text, message, *arguments, place="{}:export"):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "mine.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            code, _, error = run(root, place.format(path), *arguments)
            self.assertEqual(code, 1)
            self.assertRegex(error, message)

    def test_places(self):
        self.refused("", "refused: --module: expected FILE.py:FUNCTION, got ", place="{}")
        self.refused("", "refused: --module: expected a function export in .*mine.py, got none")
        self.refused("export = 3", "expected a function export in .*mine.py, got int")
        self.refused("", "expected a Python file, got .*mine.py.py, which is not there", place="{}.py:export")

    def test_functions(self):
        self.refused("def export(): return 3", "mine.py:export: expected a Built, as Builder.build returns it, got int")
        self.refused("def export(path): pass", "mine.py:export: it takes path: give --checkpoint")
        self.refused("def export(): pass", "expected a function of one argument for --checkpoint, got 0",
                     "--checkpoint", "x")
        self.refused("from dinghy_export.builder import Builder\ndef export(): return Builder('b', 'i').build({})",
                     "expected the module's scores in built.expected")

    def test_scores_must_be_numbers(self):
        self.refused(
            "from dinghy_export import features\n"
            "from dinghy_export.builder import Builder\n"
            "from dinghy_export.goldens import module_goldens\n"
            "def export():\n"
            "    b = Builder('b', 'price')\n"
            "    b.feature(features.numeric_feature('price', 'CANDIDATE'))\n"
            "    b.layer('y', 'activation', inputs=['price'], function='TANH')\n"
            "    b.output('y', 'y', 'RAW')\n"
            "    built = b.build({})\n"
            "    built.expected = module_goldens(built, [], lambda request: {'y': [float('nan')]})\n"
            "    return built\n",
            'refused: request "random": output "y": expected finite numbers of the module, got nan')


if __name__ == "__main__":
    unittest.main()
