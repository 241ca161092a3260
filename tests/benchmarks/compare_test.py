"""What tests/benchmarks/compare makes of its measurements."""

import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

import harness

PATH = os.path.join(harness.HERE, "compare")
compare = harness.load_script("compare")


class Runs:
    """Stands in for the processes: what each side takes, round after round."""

    def __init__(self, ours, theirs):
        self.ours, self.theirs, self.order = iter(ours), iter(theirs), []

    def measure(self, point, rounds):
        def dinghy(*_):
            self.order.append("dinghy")
            ms = next(self.ours)
            return {"ms": ms, "share": 1 / ms, "ceiling": 100.0}

        def onnx(*_):
            self.order.append("onnxruntime")
            return dict.fromkeys(point.forms, next(self.theirs))

        compare.time_dinghy, compare.time_onnxruntime = dinghy, onnx
        return compare.measure(point, "", {}, type("Options", (), {"rounds": rounds}))


class CompareTest(unittest.TestCase):
    def test_medians_of_ratios_within_a_round_and_turns(self):
        point = compare.Point("din", "din", 50, 100, {"naive": "n.onnx"})
        runs = Runs(ours=[1, 2, 4], theirs=[5, 8, 40])  # the machine slows down
        measured = runs.measure(point, 3)
        self.assertEqual(measured, {"ms": 2, "share": 0.5, "ceiling": 100, "onnx_ms": {"naive": 8},
                                    "ratios": {"naive": 5}})
        self.assertEqual(runs.order, ["dinghy", "onnxruntime", "onnxruntime", "dinghy", "dinghy", "onnxruntime"])

    def test_judges_what_is_asked_for(self):
        point = compare.Point("din", "din", 100, 500, {"naive": "n", "broadcast": "b", "decomposed": "d"},
                              {"naive": 5.2, "decomposed": 2.3}, 0.88)
        measured = {"ms": 5.0, "share": 0.879, "ceiling": 100,
                    "onnx_ms": {"naive": 26.0, "broadcast": 1.0, "decomposed": 11.0},
                    "ratios": {"naive": 5.2, "broadcast": 0.2, "decomposed": 2.2}}
        line, missed = compare.line_of(point, measured, judge=True)
        self.assertEqual(line, "din 100x500: 5.000 ms, 100000 candidates/s | naive 5.20x (asked 5.2) 26.000 ms, "
                               "broadcast 0.20x 1.000 ms, decomposed 2.20x (MISSED 2.3) 11.000 ms | "
                               "share of ceiling 0.879 (MISSED 0.88)")
        self.assertEqual(missed, ["din 100x500: decomposed 2.20x, asked for 2.3",
                                  "din 100x500: share of ceiling 0.879, asked for 0.88"])
        line, missed = compare.line_of(point, measured, judge=False)
        self.assertNotIn("MISSED", line)
        self.assertEqual(missed, [])
        measured["ratios"]["naive"] = float("nan")
        self.assertIn("din 100x500: naive nanx, asked for 5.2", compare.line_of(point, measured, judge=True)[1])

    def test_work_is_that_of_the_peers_readme(self):
        point = compare.Point("din", "din", 50, 100, {})
        self.assertEqual(point.din_flops(), 2 * 100 * (50 * 8424 + 66000))

    def test_points(self):
        listed = {point.name: point for point in compare.points()}
        self.assertEqual(len(listed), 9)
        self.assertEqual(listed["din_sasrec 200x1000"].at_least, {"decomposed": 2.0})
        self.assertEqual(listed["sasrec 200x1"].forms, {"plain": "sasrec_200.onnx"})
        self.assertEqual(listed["din 1000x200"].share, 0.88)

    def test_without_the_peers_it_is_skipped(self):
        environment = {**os.environ, "DINGHY_SHARED": os.path.dirname(PATH)}
        done = subprocess.run([sys.executable, PATH, "--quick"], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 77)
        self.assertIn("SKIPPED: the peers' folder is not there: ", done.stdout)


if __name__ == "__main__":
    unittest.main()
