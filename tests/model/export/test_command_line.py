"""What the command of the importers prints: help that fits a terminal, and errors that name the file."""

import contextlib
import io
import os
import tempfile
import unittest
from unittest import mock

from dinghy_export.__main__ import IMPORTERS, main


def printed(*arguments):
    """Exit code, standard output and standard error."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(list(arguments))
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), error.getvalue()


class HelpTest(unittest.TestCase):
    def test_it_fits_80_columns(self):
        with mock.patch.dict(os.environ, {"COLUMNS": "80"}):
            texts = {"import": printed("import", "--help")[1]}
            for library in IMPORTERS:
                texts[library] = printed("import", "--from", library, "--help")[1]
                self.assertIn(f"--from {library}", texts[library])
        for name, text in texts.items():
            self.assertIn("--expected FILE", text)
            self.assertEqual([line for line in text.splitlines() if len(line) > 80], [], name)

    def test_it_names_every_library(self):
        for arguments in (["--help"], ["import", "--help"]):
            code, out, error = printed(*arguments)
            self.assertEqual(code, 0)
            for library in IMPORTERS:
                self.assertIn(library, out + error)


class RefusalTest(unittest.TestCase):
    def test_a_layer_that_lacks_a_field(self):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "mine.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(
                    "from dinghy_export import features\n"
                    "from dinghy_export.builder import Builder\n"
                    "from dinghy_export.goldens import module_goldens\n"
                    "def export():\n"
                    "    b = Builder('b', 'price')\n"
                    "    b.feature(features.numeric_feature('price', 'CANDIDATE'))\n"
                    "    b.layer('y', 'activation', inputs=['price'])\n"
                    "    b.output('y', 'y', 'RAW')\n"
                    "    built = b.build({})\n"
                    "    score = lambda request: {'y': request['candidates'][0]['floats']['values']}\n"
                    "    built.expected = module_goldens(built, [], score)\n"
                    "    return built\n")
            code, _, error = printed("import", "--from", "torch", "--module", f"{path}:export", "--name", "m",
                                     "--version", "1", "--out", root)
        self.assertEqual((code, error), (1, "refused: layer \"y\": 'function' is missing or not known\n"))

    def test_a_file_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "none.pth")
            code, out, error = printed("import", "--from", "sasrec-pytorch", "--checkpoint", path, "--heads", "1",
                                       "--wiring", "original", "--action", "rate", "--name", "m", "--version", "1",
                                       "--out", root)
        self.assertEqual((code, out, error), (1, "", f"refused: {path}: No such file or directory\n"))


if __name__ == "__main__":
    unittest.main()
