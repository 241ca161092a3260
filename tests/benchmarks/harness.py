"""What the scripts that measure have in common: where things lie, the peers' bundles, running programs, judging."""

import importlib.machinery
import importlib.util
import os
import platform
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DINGHY_SOURCE", os.path.dirname(os.path.dirname(HERE)))
DINGHY = os.environ.get("DINGHY", os.path.join(SOURCE, "build", "release", "server", "dinghy"))
PEERS = os.path.join(os.environ.get("DINGHY_SHARED", os.path.join(SOURCE, "..", "shared")), "bench")
INTERPRETER = "/usr/bin/python3"  # Debian's, which python3-torch belongs to
SKIPPED = 77  # exit code: what is needed cannot be had


def name():
    return os.path.basename(sys.argv[0])


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIPPED)


def last_line(done):
    return (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]


def need_peers_and_build(*programs):
    """Ends the script where the peers' folder is absent (skipped) or a program is not built."""
    if not os.path.isdir(PEERS):
        skip(f"the peers' folder is not there: {PEERS}")
    for program in (DINGHY, *programs):
        if not os.path.exists(program):
            raise SystemExit(f"{name()}: {program} is not there: build it, or set DINGHY")


def write_bundles(folder, precision="f32"):
    _write(["-m", "dinghy_export.bench_models", "--weights", PEERS, "--out", folder, "--precision", precision])


def write_wide_bundle(folder):
    """<folder>/wide/1, a model of many candidate features."""
    _write(["-B", os.path.join(HERE, "wide_model.py"), folder])


def _write(arguments):
    environment = {**os.environ, "PYTHONPATH": os.path.join(SOURCE, "model", "export"), "OMP_NUM_THREADS": "1"}
    command = [INTERPRETER, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name()}: the bundles were not written: {last_line(done)}")


def output_of(command, environment=None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name()}: {' '.join(command)}: {last_line(done)}")
    return done.stdout


def machine():
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            processor = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")),
                             processor)
    except OSError:
        pass
    return f"{processor}, {os.cpu_count()} CPUs"


def note_load():
    if os.getloadavg()[0] > 0.5:
        print(f"note: the load is {os.getloadavg()[0]:.1f}: something else runs, and the figures suffer", flush=True)


def verdict(missed, quick) -> int:
    """Prints what was missed; returns the exit code."""
    if quick:
        print("quick: nothing was judged")
        return 0
    print("\n".join(["Missed:", *missed]) if missed else "Every figure is reached")
    return 1 if missed else 0


def load_script(script):
    """A script of this folder as a module, for its test."""
    loader = importlib.machinery.SourceFileLoader(script, os.path.join(HERE, script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script, loader))
    loader.exec_module(module)
    return module
