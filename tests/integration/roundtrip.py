"""Round trips: a library's own API trains tiny models in an environment of its own; Dinghy imports them, serves them
over gRPC, and must give what the library gave.

    python = environment("deepctr_torch", ["deepctr-torch==0.2.9", ...])   # exit code 77 where that cannot be installed
    train(python, __file__, folder)                  # runs this file as `python FILE train FOLDER`
    check(folder, "din", ["--from", "deepctr-torch", ...])   # imports, serves, compares

A trained model leaves <folder>/<name>.expected.jsonl: ScoreLogs, requests with the library's own outputs. The import
reads them too (--expected), and refuses what it computes otherwise.

DINGHY_SOURCE: the repository, DINGHY: the binary, ROUNDTRIP_FOLDER: where environments are kept, by default
build/roundtrip. Debian's python3-torch and NumPy are the ones used.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.environ.get("DINGHY_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DINGHY = os.environ.get("DINGHY", os.path.join(SOURCE, "build", "release", "server", "dinghy"))
ENVIRONMENTS = os.environ.get("ROUNDTRIP_FOLDER", os.path.join(SOURCE, "build", "roundtrip"))
INTERPRETER = "/usr/bin/python3"  # Debian's, which python3-torch belongs to
BAR = 1e-5
SKIPPED = 77

sys.path.insert(0, os.path.join(SOURCE, "model", "export"))


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def environment(name, packages) -> str:
    """The interpreter of a virtual environment over Debian's packages, with these and nothing that they depend on."""
    folder = os.path.join(os.path.abspath(ENVIRONMENTS), name)
    python, done = os.path.join(folder, "bin", "python"), os.path.join(folder, "installed.txt")
    wanted = "\n".join(packages)
    if os.path.exists(done) and open(done, encoding="utf-8").read() == wanted:
        return python
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    made = subprocess.run(
        [INTERPRETER, "-m", "venv", "--system-site-packages", "--clear", folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        skip(f"no virtual environment: {last_line(made)} (Debian: python3-venv)")
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", *packages], capture_output=True, text=True
    )
    if installed.returncode != 0:
        skip(f"{packages[0]} cannot be installed: {last_line(installed)}")
    with open(done, "w", encoding="utf-8") as file:
        file.write(wanted)
    return python


def last_line(done):
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]


def train(python, script, folder):
    """Runs `script train folder` with the library."""
    place = {"PYTHONPATH": os.path.join(SOURCE, "model", "export"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, script, "train", folder], env={**os.environ, **place}, capture_output=True, text=True
    )
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-4000:])
        raise SystemExit(f"{script}: training failed")


def write_expected(folder, name, logs):
    """`logs`: (request, {output: scores}) pairs; in the training script."""
    with open(os.path.join(folder, f"{name}.expected.jsonl"), "w", encoding="utf-8") as file:
        for request, outputs in logs:
            file.write(
                json.dumps(
                    {
                        "request": request,
                        "outputs": [
                            {"output": output, "scores": [float(score) for score in scores]}
                            for output, scores in outputs.items()
                        ],
                    }
                )
                + "\n"
            )


def check(folder, name, arguments):
    """Imports `name` with these arguments of the command, serves it, and compares with what the library gave."""
    from dinghy_export.__main__ import main

    expected = os.path.join(folder, f"{name}.expected.jsonl")
    models = os.path.join(folder, f"{name}.models")
    code = main(["import", *arguments, "--name", name, "--version", "1", "--out", models, "--expected", expected])
    if code != 0:
        raise SystemExit(f"{name}: the import failed")
    with open(expected, encoding="utf-8") as file:
        logs = [json.loads(line) for line in file]
    worst, compared = 0.0, 0
    with server(models) as address:
        for log in logs:
            answer = score(address, {**log["request"], "model": name})
            got = {output["output"]: output["scores"] for output in answer["outputs"]}
            for output in log["outputs"]:
                scores = got[output["output"]]
                if len(scores) != len(output["scores"]):
                    raise SystemExit(
                        f'{name}: {log["request"].get("requestId")}: expected {len(output["scores"])} scores, got'
                        f" {len(scores)}"
                    )
                worst = max([worst] + [abs(a - b) for a, b in zip(scores, output["scores"])])
                compared += len(scores)
    print(f"{name}: {compared} scores in {len(logs)} requests over gRPC, largest difference {worst:.1e}, bar {BAR:g}")
    if not worst <= BAR or compared == 0:
        raise SystemExit(f"{name}: FAILED")


@contextlib.contextmanager
def server(models):
    """The address of a `dinghy serve` that ends with the block."""
    with tempfile.TemporaryDirectory() as work:
        port_file = os.path.join(work, "port")
        process = subprocess.Popen(
            [
                DINGHY,
                "serve",
                "--model_root",
                models,
                "--listen",
                "127.0.0.1:0",
                "--metrics_listen",
                "off",
                "--port_file",
                port_file,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while not os.path.exists(port_file):
                if process.poll() is not None:
                    raise SystemExit(f"dinghy serve: {process.stderr.read()}")
                time.sleep(0.02)
            with open(port_file, encoding="utf-8") as file:
                yield "127.0.0.1:" + file.read().strip()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def score(address, request):
    done = subprocess.run(
        [DINGHY, "score", "--server", address], input=json.dumps(request), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f'dinghy score: {request.get("requestId")}: {done.stderr.strip()}')
    return json.loads(done.stdout)


def run(script, name, packages, trained):
    """The whole of a round trip. `trained(folder)`: yields (name, arguments of the import) of the models that `script
    train FOLDER` leaves there."""
    with tempfile.TemporaryDirectory() as folder:
        train(environment(name, packages), script, folder)
        for model, arguments in trained(folder):
            check(folder, model, arguments)
