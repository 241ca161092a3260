"""A bundle in fewer digits: products in bf16, embedding tables in F16 or I8, and golden requests with a tolerance that was
measured.

    notes = lower(manifest, tensors, goldens, encoder, precision="bf16", tables="i8")   # changes the first three in place

The goldens keep their scores, those of exact arithmetic. Each request is computed once more with tables and factors
rounded as the bundle says; the tolerance becomes what was already allowed and twice the largest difference of all, for an
engine's sums run in another order, in which a factor near a tie falls to the other side.
"""

import numpy as np

from dinghy_export.evaluate import evaluate

PRECISIONS = ("f32", "bf16")
TABLES = ("f32", "f16", "i8")
MARGIN = 2
MOST_I8 = 127


def add_precision_option(parser):
    parser.add_argument("--precision", choices=PRECISIONS, default="f32",
                        help="of the products of DIN's activation unit; bf16 needs a CPU that has it, loses some "
                        "digits and gets a golden tolerance that fits; default: f32")


def add_tables_option(parser):
    parser.add_argument("--tables", choices=TABLES, default="f32",
                        help="type of the embedding tables; f16 halves them, i8 (with a scale for each row) quarters "
                        "them, and the golden tolerance fits what is lost; default: f32")


def lower(manifest, tensors, goldens, encoder, precision="f32", tables="f32") -> list:
    """`manifest`: BundleManifest, `tensors`: name -> array, `goldens`: ScoreLogs with scores, `encoder`: an encoder of
    dinghy_export.features. Returns lines for people, none where both are f32. Raises ValueError where the model has no
    such product or no such table, or a table does not fit in the type."""
    notes = []
    if tables != "f32":
        notes.append(_lower_tables(manifest, tensors, tables))
    if precision == "bf16":
        _set_bf16(manifest)
    if precision == "f32" and tables == "f32":
        return notes
    what = " and ".join((["bf16"] if precision == "bf16" else []) + ([f"{tables} tables"] if tables != "f32" else []))
    return notes + [f"{what}: {_widen_tolerance(manifest, tensors, goldens, encoder)}"]


def _widen_tolerance(manifest, tensors, goldens, encoder) -> str:
    worst = {}  # by the tolerance that the goldens had: one for probabilities, one for raw outputs
    for golden in goldens:
        scores = evaluate(manifest, tensors, encoder.encode(golden["request"])).scores
        for output in golden["outputs"]:
            difference = np.abs(scores[output["output"]] - np.asarray(output["scores"], dtype=np.float64))
            bar = golden["tolerance"]
            worst[bar] = max(worst.get(bar, 0.0), float(difference.max(initial=0.0)))
    for golden in goldens:
        golden["tolerance"] = golden["tolerance"] + MARGIN * worst[golden["tolerance"]]
    return "; ".join(
        f"largest difference from f32 {difference:.1e} over {len(goldens)} golden requests, golden tolerance "
        f"{bar + MARGIN * difference:.1e} instead of {bar:.0e}" for bar, difference in sorted(worst.items()))


def _set_bf16(manifest):
    if not any("din" in score for score in _scores_of(manifest)):
        raise ValueError("--precision bf16: expected a layer of target attention with a din score, which has the products "
                         "that bf16 is for, got none")
    manifest["precision"] = "BF16"


def _scores_of(manifest):
    for layer in manifest["layers"]:
        attention = layer.get("targetAttention", {})
        yield attention
        for branch in ("shortHistory", "longHistory"):
            yield attention.get("auto", {}).get(branch, {})


def _lower_tables(manifest, tensors, kind) -> str:
    """Makes every table's tensor one of `kind`, in i8 with a tensor of scales, "<tensor>.scale"."""
    names = sorted({table["tensor"] for table in manifest.get("tables", [])})
    if not names:
        raise ValueError(f"--tables {kind}: expected a model with embedding tables, got none")
    before, after = 0, 0
    for name in names:
        floats = np.asarray(tensors[name])
        before += floats.nbytes
        if kind == "f16":
            tensors[name] = _to_f16(name, floats)
        else:
            scale = f"{name}.scale"
            if scale in tensors:
                raise ValueError(f'--tables i8: expected "{scale}" to be free for scales, got a tensor of that name')
            tensors[name], tensors[scale] = _to_i8(floats)
            after += tensors[scale].nbytes
            for table in manifest["tables"]:
                if table["tensor"] == name:
                    table["scale"] = scale
        after += tensors[name].nbytes
    return f"{kind} tables: {_size(after)} instead of {_size(before)}"


def _to_f16(name, floats):
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ValueError(f'--tables f16: expected numbers below 65520 in table tensor "{name}", got {np.abs(floats).max()}')
    return halves


def _to_i8(floats):
    """Integers from -127 to 127 and, for each row, what they are multiplied with: its largest number / 127."""
    scale = (np.abs(floats).max(axis=1, initial=0) / MOST_I8).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1)[:, None]
    return np.clip(np.rint(floats / divisor), -MOST_I8, MOST_I8).astype(np.int8), scale


def _size(count):
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
