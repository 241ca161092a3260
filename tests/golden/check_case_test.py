"""check_case: what its exit codes say, with the slow interpreter in place of the engine.

DINGHY_SOURCE: the repository.
"""

import glob
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import torch

GOLDEN = os.path.join(os.environ["DINGHY_SOURCE"], "tests", "golden")
CASE = os.path.join(GOLDEN, "pmixer_sasrec_original")


def check(folder, *arguments):
    done = subprocess.run(
        [os.path.join(GOLDEN, "check_case"), folder, *(arguments or ["--evaluator"])], capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


class CheckCaseTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.folder = os.path.join(self.root.name, "case")
        shutil.copytree(CASE, self.folder)
        os.chmod(self.folder, 0o755)

    def tearDown(self):
        self.root.cleanup()

    def change(self, function):
        path = os.path.join(self.folder, "case.json")
        with open(path, encoding="utf-8") as file:
            case = json.load(file)
        function(case)
        os.remove(path)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(case, file)

    def test_within_the_bar(self):
        code, text = check(self.folder)
        self.assertEqual(code, 0, text)
        self.assertIn("evaluator: final_feat: largest difference", text)
        self.change(
            lambda case: case["outputs_f64"]["logits"][2].__setitem__(3, case["outputs_f64"]["logits"][2][3] + 9e-5)
        )
        self.assertEqual(check(self.folder)[0], 0)

    def test_outside_the_bar(self):
        self.change(
            lambda case: case["outputs_f64"]["logits"][2].__setitem__(3, case["outputs_f64"]["logits"][2][3] - 1.1e-4)
        )
        code, text = check(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("case: evaluator: logits: largest difference 1.1e-04, bar 0.0001: FAILED", text)

    def test_outputs_that_are_missing_or_of_another_shape(self):
        self.change(lambda case: case["outputs_f64"]["logits"][0].append(1.0))
        self.assertEqual(check(self.folder)[0], 1)
        self.change(lambda case: case["outputs_f64"].update(states=[[1.0]]))
        code, text = check(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("outputs that nothing is compared with: states", text)

    def test_weights_that_are_not_the_case(self):
        self.change(lambda case: case["state_dict_shapes"].pop("item_emb.weight"))
        self.assertEqual(check(self.folder)[0], 1)
        os.remove(os.path.join(self.folder, "model.pth"))
        self.assertEqual(check(self.folder)[0], 1)

    def test_legacy_file_must_hold_the_same(self):
        state, legacy = torch.load(os.path.join(CASE, "model.pth")), os.path.join(self.folder, "model_legacy.pth")
        torch.save(state, legacy, _use_new_zipfile_serialization=False)
        self.assertEqual(check(self.folder)[0], 0)
        state["pos_emb.weight"][1, 2] += 1
        torch.save(state, legacy, _use_new_zipfile_serialization=False)
        code, text = check(self.folder)
        self.assertEqual(code, 1)
        self.assertIn("expected the tensors of model.pth", text)

    def test_models_that_are_not_supported(self):
        for meta in (
            {"lib": "pmixer/SASRec.pytorch", "model": "head2030"},
            {"lib": "FuxiCTR 0245987", "model": "BST"},
            {"lib": "NoSuchLibrary", "model": "DIN"},
        ):
            self.change(lambda case: case["meta"].update(meta))
            code, text = check(self.folder)
            self.assertEqual(code, 77, text)
            self.assertIn(f"SKIPPED: {meta['lib']}: {meta['model']}", text)

    def test_engine_that_is_not_there(self):
        code, _ = check(self.folder, "--dinghy", os.path.join(self.root.name, "none"))
        self.assertEqual(code, 1)

    def test_every_case_here_is_supported(self):
        folders = [os.path.dirname(path) for path in glob.glob(os.path.join(GOLDEN, "*", "case.json"))]
        self.assertGreater(len(folders), 1)
        for folder in folders:
            with self.subTest(os.path.basename(folder)):
                code, text = check(folder)
                self.assertEqual(code, 0, text)


if __name__ == "__main__":
    unittest.main()
