"""A bundle in bf16: its manifest, and golden requests with a tolerance that was measured.

    note = to_bf16(manifest, tensors, goldens, encoder)   # changes manifest and goldens in place

The goldens keep their scores, those of exact arithmetic. Each request is computed once more with the factors rounded as
BundleManifest.precision says; the tolerance becomes what was already allowed and twice the largest difference of all, for
an engine's sums run in another order, in which a factor near a tie falls to the other side.
"""

import numpy as np

from dinghy_export.evaluate import evaluate

PRECISIONS = ("f32", "bf16")
MARGIN = 2


def add_precision_option(parser):
    parser.add_argument("--precision", choices=PRECISIONS, default="f32",
                        help="of the products of DIN's activation unit; bf16 needs a CPU that has it, loses some "
                        "digits and gets a golden tolerance that fits; default: f32")


def to_bf16(manifest, tensors, goldens, encoder) -> str:
    """`manifest`: BundleManifest, `tensors`: name -> array, `goldens`: ScoreLogs with scores, `encoder`: an encoder of
    dinghy_export.features. Returns a line for people. Raises ValueError where the model has no such product."""
    if not any("din" in score for score in _scores_of(manifest)):
        raise ValueError("--precision bf16: expected a layer of target attention with a din score, which has the products "
                         "that bf16 is for, got none")
    manifest["precision"] = "BF16"
    worst = {}  # by the tolerance that the goldens had: one for probabilities, one for raw outputs
    for golden in goldens:
        scores = evaluate(manifest, tensors, encoder.encode(golden["request"])).scores
        for output in golden["outputs"]:
            difference = np.abs(scores[output["output"]] - np.asarray(output["scores"], dtype=np.float64))
            bar = golden["tolerance"]
            worst[bar] = max(worst.get(bar, 0.0), float(difference.max(initial=0.0)))
    for golden in goldens:
        golden["tolerance"] = golden["tolerance"] + MARGIN * worst[golden["tolerance"]]
    return "bf16: " + "; ".join(
        f"largest difference from f32 {difference:.1e} over {len(goldens)} golden requests, golden tolerance "
        f"{bar + MARGIN * difference:.1e} instead of {bar:.0e}" for bar, difference in sorted(worst.items()))


def _scores_of(manifest):
    for layer in manifest["layers"]:
        attention = layer.get("targetAttention", {})
        yield attention
        for branch in ("shortHistory", "longHistory"):
            yield attention.get("auto", {}).get(branch, {})
