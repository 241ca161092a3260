"""Times OpenVINO on one thread and one stream, for tests/benchmarks/compare --openvino.

    <venv>/bin/python openvino_timer.py SECONDS HISTORY CANDIDATES PRECISION MODEL.onnx...

PRECISION is f32 or bf16. Prints a line of JSON for each model, {"file": ..., "ms": ..., "runs": ...}: the median time
of a request, of shapes fixed before the model is compiled. Fed as onnxruntime_timer.cjs feeds ONNX Runtime.
"""

import json
import os
import statistics
import sys
import time

import numpy as np
import openvino

ITEMS, CATEGORIES, USER_WIDTH, LEAST_RUNS, WARM_UPS = 10_000, 1_000, 32, 5, 3


def feeds(names, file, history, candidates):
    """What the model is fed, by the names of its inputs."""
    random = np.random.default_rng(1)
    users = candidates if "naive" in os.path.basename(file) else 1

    def ids(below, *shape):
        return random.integers(0, below, shape)

    every = {
        "ids": ids(ITEMS, 1, history),
        "history_item": ids(ITEMS, users, history),
        "history_category": ids(CATEGORIES, users, history),
        "history_mask": np.ones((users, history), np.float32),
        "user": (random.random((users, USER_WIDTH)) - 0.5).astype(np.float32),
        "item": ids(ITEMS, candidates),
        "category": ids(CATEGORIES, candidates),
    }
    return {name: every[name] for name in names}


def measure(core, file, seconds, history, candidates, precision):
    model = core.read_model(file)
    inputs = feeds([port.any_name for port in model.inputs], file, history, candidates)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    request = core.compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision,
    }).create_infer_request()
    for name, value in inputs.items():
        request.set_tensor(name, openvino.Tensor(value))
    for _ in range(WARM_UPS):
        request.infer()
    taken = []
    end = time.perf_counter() + seconds
    while len(taken) < LEAST_RUNS or time.perf_counter() < end:
        before = time.perf_counter()
        request.infer()
        taken.append(time.perf_counter() - before)
    print(json.dumps({"file": file, "ms": 1e3 * statistics.median(taken), "runs": len(taken)}))


def main():
    seconds, history, candidates = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    core = openvino.Core()
    for file in sys.argv[5:]:
        measure(core, file, seconds, history, candidates, sys.argv[4])


if __name__ == "__main__":
    main()
