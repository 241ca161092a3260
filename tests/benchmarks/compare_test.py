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
            return {"ms": ms, "speed": point.candidates / ms * 1e3, "share": 1 / ms, "ceiling": 100.0}

        def onnx(*_):
            self.order.append("onnxruntime")
            return dict.fromkeys(point.forms, next(self.theirs))

        compare.time_dinghy, compare.time_onnxruntime = dinghy, onnx
        return compare.measure(point, "", {}, type("Options", (), {"rounds": rounds, "openvino": False}))


class CompareTest(unittest.TestCase):
    def test_medians_of_ratios_within_a_round_and_turns(self):
        point = compare.Point("din", "din", 50, 100, {"naive": "n.onnx"})
        runs = Runs(ours=[1, 2, 4], theirs=[5, 8, 40])  # the machine slows down
        measured = runs.measure(point, 3)
        self.assertEqual(measured, {"ms": 2, "speed": 50000, "share": 0.5, "ceiling": 100,
                                    "other_ms": {"naive": 8}, "ratios": {"naive": 5}, "numerics": None})
        self.assertEqual(runs.order, ["dinghy", "onnxruntime", "onnxruntime", "dinghy", "dinghy", "onnxruntime"])

    def test_judges_what_is_asked_for(self):
        point = compare.Point("din", "din", 100, 500, {"naive": "n", "broadcast": "b", "decomposed": "d"},
                              {"naive": 5.2, "decomposed": 2.3}, 0.88)
        measured = {"ms": 5.0, "speed": 1e5, "share": 0.879, "ceiling": 100,
                    "other_ms": {"naive": 26.0, "broadcast": 1.0, "decomposed": 11.0},
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
        self.assertEqual(len(listed), 26)
        self.assertEqual(listed["din_onednn 1000x200"].at_least, {"naive": 5.1})
        self.assertEqual(listed["din_bf16 100x500"].at_least, {"naive": 8, "f32": 1.4})
        self.assertEqual(listed["din_sasrec_cached 200x1000"].bundle, "din_sasrec_200")
        self.assertEqual(listed["split 200x1000"].at_least, {"one thread": 1.7})
        self.assertEqual({point.beside[1].bundle for point in listed.values() if point.beside}, {"din"})
        self.assertEqual(listed["din_sasrec 200x1000"].at_least, {"decomposed": 2.0})
        self.assertEqual(listed["sasrec 200x1"].forms, {"plain": "sasrec_200.onnx"})
        self.assertEqual(listed["din 1000x200"].share, 0.88)

    def test_two_threads_beside_one(self):
        point = compare.Point("threads", "din", 50, 100, {}, {"one thread": 1.85}, arguments=compare.TWO_THREADS,
                              beside=("one thread", compare.Point("din", "din", 50, 100, {})))
        runs = Runs(ours=[1, 1.9], theirs=[0])  # first the point's own, then what stands beside it
        self.assertAlmostEqual(runs.measure(point, 1)["ratios"]["one thread"], 1.9)

    def test_what_cannot_be_measured_is_named(self):
        compare.output_of = lambda command: "--threads INT"
        split = compare.Point("split", "din", 200, 1000, {}, arguments=["--split", *compare.TWO_THREADS])
        self.assertEqual(compare.lacks(split, "", [0, 1]), "dinghy bench has no --split")
        threads = compare.Point("threads", "", 200, 1000, {}, arguments=compare.TWO_THREADS)
        here = os.path.dirname(PATH)
        self.assertEqual(compare.lacks(threads, here, [0]), "two cores are needed")
        self.assertIsNone(compare.lacks(threads, here, [0, 1]))
        absent = compare.Point("din_bf16", "din_bf16", 50, 100, {})
        self.assertEqual(compare.lacks(absent, here, [0]), "dinghy_export.bench_models writes no din_bf16")

    def test_markdown(self):
        point = compare.Point("din", "din", 50, 100, {}, {"naive": 4.1}, 0.88)
        measured = {"ms": 1, "speed": 1e5, "share": 0.9, "ratios": {"naive": 4.5, "broadcast": 2},
                    "numerics": "kernels 4"}
        self.assertEqual(compare.markdown([(point, measured)], "a CPU").splitlines()[0], "a CPU; kernels 4.")
        self.assertEqual(compare.markdown([(point, measured)], "a CPU").splitlines()[-1],
                         "| din 50x100 | 1.000 | 100000 | naive 4.50 (4.1), broadcast 2.00 | 0.90 (0.88) |")

    def test_without_the_peers_it_is_skipped(self):
        environment = {**os.environ, "DINGHY_SHARED": os.path.dirname(PATH)}
        done = subprocess.run([sys.executable, PATH, "--quick"], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 77)
        self.assertIn("SKIPPED: the peers' folder is not there: ", done.stdout)


if __name__ == "__main__":
    unittest.main()
