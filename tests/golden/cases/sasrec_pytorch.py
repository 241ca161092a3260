"""Cases of SASRec.pytorch: `seq` is padded with zeros on the left, `items` has several candidates a row."""

import numpy as np

from cases import OTHER_BAR, SCORE, VALUE, Expectation, NotSupported
from dinghy_export import features
from dinghy_export.importers.sasrec_pytorch import SEQUENCE, build_sasrec
from dinghy_export.importers.weights import Weights


def build(case, tensors):
    built = build_sasrec(
        Weights(tensors),
        name="case",
        wiring=_wiring(case["meta"]),
        heads=case["meta"]["heads"],
        maxlen=len(case["inputs"]["seq"][0]),
    )
    requests, expectations = [], []
    for row, (sequence, items) in enumerate(zip(case["inputs"]["seq"], case["inputs"]["items"])):
        history = [item for item in sequence if item != 0]
        assert sequence == [0] * (len(sequence) - len(history)) + history
        requests.append(
            {
                "candidates": [features.ints("item", items)],
                "sequences": [{"sequence": SEQUENCE, "columns": [features.ints("item", history)]}],
            }
        )
        outputs = case["outputs_f64"]
        expectations.append(
            Expectation(row, SCORE, "logit", None, np.array(outputs["logits"][row]), OTHER_BAR, "logits")
        )
        expectations.append(
            Expectation(row, VALUE, "final_feat", 0, np.array(outputs["final_feat"][row]), OTHER_BAR, "final_feat")
        )
    return built, requests, expectations


def _wiring(meta):
    model = meta["model"]
    if model == "orig2024":
        return "original"
    if model == "head2025":
        return "norm-first" if meta["kw"].get("norm_first") else "post-norm"
    raise NotSupported(model)
