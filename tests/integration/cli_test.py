"""The dinghy binary as people use it: subcommands, exit codes, messages, signals.

DINGHY is the binary, DINGHY_SOURCE the repository.
"""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

DINGHY = os.environ["DINGHY"]
DEMO = os.path.join(os.environ["DINGHY_SOURCE"], "deploy", "demo")
BUNDLE = os.path.join(DEMO, "models", "shop", "1")
SUBCOMMANDS = ["serve", "score", "ingest", "replay", "eval", "validate", "inspect", "bench", "admin", "health"]


def run(*arguments, stdin=None):
    return subprocess.run([DINGHY, *arguments], input=stdin, capture_output=True, text=True, timeout=120)


def some_requests(count):
    with open(os.path.join(DEMO, "requests.jsonl"), encoding="utf-8") as file:
        return [next(file) for _ in range(count)]


class Server:
    """`dinghy serve` on free ports with the demo shop, until the block ends."""

    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.port_file = os.path.join(self.folder.name, "port")
        self.arguments = [DINGHY, "serve", "--model_root", os.path.join(DEMO, "models"), "--listen", "127.0.0.1:0",
                          "--metrics_listen", "off", "--port_file", self.port_file, *arguments]

    def __enter__(self):
        self.process = subprocess.Popen(self.arguments, stderr=subprocess.PIPE, text=True)
        while not os.path.exists(self.port_file):
            if self.process.poll() is not None:
                raise AssertionError(self.process.stderr.read())
            time.sleep(0.02)
        with open(self.port_file, encoding="utf-8") as file:
            self.address = "127.0.0.1:" + file.read().strip()
        return self

    def stop(self, with_signal=signal.SIGTERM):
        self.process.send_signal(with_signal)
        self.log = self.process.communicate(timeout=60)[1]
        return self.process.returncode

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self.process.stderr.close()
        self.folder.cleanup()


class CommandLineTest(unittest.TestCase):
    def expect(self, done, code, text=""):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(text, done.stderr if code else done.stdout)
        return done

    def test_help_documents_every_subcommand(self):
        listed = self.expect(run("help"), 0).stdout
        for name in SUBCOMMANDS:
            self.assertIn("\n  " + name + " ", listed)
            self.expect(run("help", name), 0, "Usage: dinghy " + name)
            self.expect(run(name, "--help"), 0, "Usage:")
        self.expect(run("help", "admin", "pin"), 0, "Usage: dinghy admin pin")
        self.expect(run("help", "nonsense"), 2, 'dinghy help: there is no subcommand "nonsense"')
        self.expect(run("--version"), 0, "dinghy ")

    def test_usage_errors_are_exit_code_2(self):
        self.expect(run(), 2, "dinghy: ")
        self.expect(run("nonsense"), 2, 'there is no subcommand "nonsense"')
        self.expect(run("serve"), 2, "dinghy serve: model_root: expected a folder, got none")
        self.expect(run("serve", "--workers", "many"), 2, "dinghy serve: ")
        self.expect(run("score"), 2, "dinghy score: expected one of --server and --bundle")
        self.expect(run("score", "--bundle", BUNDLE, "absent.json"), 2, 'dinghy score: file "absent.json"')
        self.expect(run("score", "--bundle", BUNDLE, stdin='{"usr": 1}'), 2, "usr")
        for store in ("memory", "rocksdb:absent"):  # an empty history that nobody asked for
            self.expect(run("score", "--bundle", BUNDLE, "--store", store, stdin="{}"), 2,
                        'store: expected rocksdb:PATH of a store that exists, got "%s"' % store)
            self.assertFalse(os.path.exists("absent"))
        self.expect(run("ingest", "--store", "redis:x", "-"), 2, 'expected "memory" or "rocksdb:PATH"')
        self.expect(run("replay", "--bundle", BUNDLE, "--log", "absent"), 2, "absent")
        self.expect(run("validate", "absent"), 2, "dinghy validate: ")

    def test_a_server_that_is_not_there_is_exit_code_1(self):
        self.expect(run("health", "--server", "127.0.0.1:1", "--timeout", "1"), 1, "no server answers on 127.0.0.1:1")

    def test_validate_and_inspect(self):
        self.expect(run("validate", BUNDLE), 0)
        self.expect(run("inspect", BUNDLE), 0, "shop")

    def test_bench(self):
        done = run("bench", "--bundle", BUNDLE, "--grid", "5x7", "--seconds", "0.05")
        self.assertRegex(self.expect(done, 0, "ceiling: ").stdout, r"(?m)^ +5 +7 +[0-9.]+ +[0-9]+ +[0-9.]+ +[0-9.]+ %")
        done = run("bench", "--bundle", BUNDLE, "--grid", "0x3,5x7", "--seconds", "0", "--cold", "--threads", "2",
                   "--kernels", "onednn", "--allow_emulation", "--format", "json")
        report = json.loads(self.expect(done, 0).stdout)
        self.assertEqual([(point["history"], point["candidates"]) for point in report["points"]], [(0, 3), (5, 7)])
        self.assertEqual(report["kernels"], "onednn")
        self.assertGreater(report["ceiling_gflops"], 0)
        for point in report["points"]:
            self.assertAlmostEqual(sum(point["split"].values()), 1, places=9)
        self.expect(run("bench", "--bundle", BUNDLE, "--grid", "5"), 2, 'dinghy bench: grid: expected HISTORYxCANDID')
        self.expect(run("bench", "--bundle", BUNDLE, "--grid", "100000x1"), 2,
                    "dinghy bench: history: expected at most ")
        self.expect(run("bench", "--bundle", BUNDLE, "--kernels", "mkl"), 2, "dinghy bench: --kernels")
        self.expect(run("bench", "--bundle", "absent"), 2, "dinghy bench: ")
        self.expect(run("bench"), 2, "dinghy bench: --bundle is required")

    def test_score_in_process(self):
        request = json.loads(some_requests(1)[0])["request"]
        request["sequences"] = [
            {"sequence": "clicks", "eventTimeMs": [str(int(request["requestTimeMs"]) - 1000)],
             "columns": [{"feature": "item", "ints": {"values": [5]}}]},
            {"sequence": "purchases"}]
        text = json.dumps(request)
        response = json.loads(self.expect(run("score", "--bundle", BUNDLE, "--explain", "1", "--removal", stdin=text),
                                          0).stdout)
        candidates = len(request["candidates"][0]["ints"]["values"])
        self.assertEqual([len(o["scores"]) for o in response["outputs"]], [candidates, candidates])
        clicks = [e for e in response["explanations"] if e["sequence"] == "clicks"]
        self.assertEqual(len(clicks), candidates)
        self.assertEqual(clicks[0]["behaviors"][0]["item"], "5")
        self.assertEqual(len(clicks[0]["behaviors"][0]["scoreChange"]), 2)
        self.expect(run("score", "--bundle", BUNDLE, "--format", "text", stdin=text), 0, "history clicks: 1 behaviors")
        table = self.expect(run("score", "--bundle", BUNDLE, "--format", "text", "--explain", "1", "--removal",
                                stdin=text), 0, "d OUTPUT is the score less the score without this behavior.").stdout
        self.assertNotRegex(table, r"(?m) $", "blanks at the end of a line")
        self.expect(run("score", "--bundle", BUNDLE, stdin=json.dumps({**request, "version": "1"})), 0)
        self.expect(run("score", "--bundle", BUNDLE, stdin=json.dumps({**request, "version": "99"})), 2,
                    "version: expected 1 as the bundle's folder says, got 99")
        request["candidates"].append({"feature": "category", "strings": {"values": ["x"]}})
        self.expect(run("score", "--bundle", BUNDLE, stdin=json.dumps(request)), 2, "category")

    def test_serve_ingest_replay_and_stop(self):
        with tempfile.TemporaryDirectory() as folder:
            store = "rocksdb:" + os.path.join(folder, "store")
            logs = os.path.join(folder, "logs")
            requests = os.path.join(folder, "requests.jsonl")
            served = os.path.join(folder, "served.jsonl")
            with open(requests, "w", encoding="utf-8") as file:
                file.writelines(some_requests(20))
            with Server("--store", store, "--score_log", logs) as server:
                self.expect(run("health", "--server", server.address), 0, "serving")
                self.expect(run("health", "--server", server.address, "--model", "shop"), 0)
                self.expect(run("health", "--server", server.address, "--model", "shoe"), 1)
                events = os.path.join(DEMO, "events.jsonl")
                self.expect(run("ingest", "--server", server.address, events), 0, "0 there already")
                self.expect(run("ingest", "--server", server.address, events), 0, " 0 appended")
                self.expect(run("ingest", "--store", store, events), 1, "dinghy ingest: ")  # locked
                self.expect(run("replay", "--server", server.address, "--history", "store", "--log", requests,
                                "--out", served), 0, "pytorch")
                self.expect(run("admin", "status", "--server", server.address), 0, "stable")
                self.expect(run("admin", "pin", "--server", server.address, "shop", "9"), 2, "NOT_FOUND")
                second = run("serve", "--model_root", os.path.join(DEMO, "models"), "--listen", server.address,
                             "--metrics_listen", "off")
                self.expect(second, 1, "cannot listen on " + server.address + ": Address already in use")
                self.assertEqual(server.stop(), 0)
                for line in server.log.splitlines():
                    self.assertIn("message", json.loads(line))
                self.assertNotIn("u0", server.log)  # a user

            # Without server and store: what the log holds is enough, to the bit.
            done = run("replay", "--bundle", BUNDLE, "--log", logs, "--json", "--concurrency", "2")
            logged = json.loads(self.expect(done, 0).stdout)["replay"]["comparisons"][0]
            self.assertEqual(logged["scores"], logged["bit_equal"])
            report = json.loads(self.expect(run("eval", "--json", "--log", served), 0).stdout)
            self.assertIn("served", {series["source"] for series in report["series"]})
            # A log whose scores are not what comes out fails.
            with open(served, encoding="utf-8") as file:
                record = json.loads(file.readline())
            record["outputs"][0]["scores"][0] += 0.25
            with open(served, "w", encoding="utf-8") as file:
                file.write(json.dumps(record))
            self.expect(run("replay", "--bundle", BUNDLE, "--log", served), 1)

    def test_sigint_stops_too(self):
        with Server() as server:
            self.assertEqual(server.stop(signal.SIGINT), 0)

    def test_config_file_and_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "server.txtpb")
            with open(path, "w", encoding="utf-8") as file:
                file.write('model_root: "absent"\nmax_candidates: 3\nstore { memory {} }\n')
            with Server("--config", path) as server:  # the flag --model_root wins
                request = json.loads(some_requests(1)[0])["request"]
                done = run("score", "--server", server.address, stdin=json.dumps(request))
                self.expect(done, 2, "INVALID_ARGUMENT: candidates: expected at most 3, got 20")
                self.assertEqual(server.stop(), 0)
            with open(path, "w", encoding="utf-8") as file:
                file.write("no_such_field: 1\n")
            self.expect(run("serve", "--config", path), 2, "server.txtpb:1:")


if __name__ == "__main__":
    unittest.main()
