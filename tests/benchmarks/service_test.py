"""What tests/benchmarks/service makes of its measurements."""

import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True

import harness

PATH = os.path.join(harness.HERE, "service")
service = harness.load_script("service")


class ServiceTest(unittest.TestCase):
    def test_medians_of_what_is_within_a_round_and_turns(self):
        engine, answers, order = iter([1000, 2000, 4000]), [1250, 2000, 8000], []

        def time_engine(*_):
            order.append("engine")
            return next(engine)

        def time_service(*_, poll):
            order.append("polling" if poll else "sleeping")
            if poll:
                return {"each": 0, "latency": answers[0] + 100, "cpu": 0}
            each = answers.pop(0)
            return {"each": each, "latency": each + 150, "cpu": each}

        service.time_engine, service.time_service = time_engine, time_service
        measured = service.measure(service.POINTS[0], "", None, type("Options", (), {"rounds": 3}))
        self.assertEqual(measured, {"engine": 2000, "latency": 2100, "cpu": 2000, "share": 0.8, "beyond": 350,
                                    "sleeping": 400})
        service_turn = ["polling", "sleeping"]
        self.assertEqual(order, ["engine", *service_turn, *service_turn, "engine", "engine", *service_turn])

    def test_judges_what_is_asked_for(self):
        measured = {"engine": 500.0, "latency": 701.0, "cpu": 650.0, "share": 0.849, "beyond": 201.0,
                    "sleeping": 260.0}
        throughput, latency = service.POINTS
        line, missed = service.line_of(throughput, measured, judge=True)
        self.assertEqual(line, "100x500, 4 in flight: engine 500 us | throughput 0.849 of the engine's (MISSED 0.85) | "
                               "latency 701 us, 201 us beyond the engine, 260 us where the client sleeps | "
                               "server's CPU 650 us a request")
        self.assertEqual(missed, ["100x500: throughput 0.849 of the engine's, asked for 0.85"])
        line, missed = service.line_of(latency, measured, judge=True)
        self.assertEqual(missed, ["50x100: latency 701 us, 201 us beyond the engine, asked for 200"])
        self.assertEqual(service.line_of(latency, measured, judge=False)[1], [])
        line, missed = service.line_of(service.WIDE, measured, judge=True)
        self.assertTrue(line.startswith("wide 100x500, 4 in flight: engine 500 us | throughput 0.849 of the engine's | "), line)
        self.assertEqual(missed, [])
        measured.update(beyond=200.0, share=0.85)
        for point in service.POINTS:
            line, missed = service.line_of(point, measured, judge=True)
            self.assertEqual(missed, [])
            self.assertIn("asked", line)
        measured.update(beyond=float("nan"), share=float("nan"))
        for point in service.POINTS:
            self.assertEqual(len(service.line_of(point, measured, judge=True)[1]), 1)

    def test_without_the_peers_it_is_skipped(self):
        environment = {**os.environ, "DINGHY_SHARED": harness.HERE}
        done = subprocess.run([sys.executable, PATH, "--quick"], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, harness.SKIPPED)
        self.assertIn("SKIPPED: the peers' folder is not there: ", done.stdout)


if __name__ == "__main__":
    unittest.main()
