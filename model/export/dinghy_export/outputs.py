"""What a trained model of one output leaves behind: metrics, test scores for comparison, a bundle.

    metrics = write_metrics(out, folder, spec, result, test, scores, settings)
    write_model(out, result, requests, "MovieLens-1M", metrics, catalog)
    print(compare(out, ("din", "din_sasrec")))
"""

import datetime
import json
import os

import numpy as np
import torch

from dinghy_export.bundle import write_bundle
from dinghy_export.goldens import golden_requests
from dinghy_export.manifest import encoder_of, manifest_of, provenance, tensors_of
from dinghy_export.precision import lower
from dinghy_export.training import auc, bootstrap_auc_difference, gauc, logloss


def write_metrics(out, folder, spec, result, test, scores, settings):
    """Writes <folder>/metrics.json, <folder>/test_scores.npy and <out>/test_labels.npz, which compare() reads; returns
    the metrics."""
    labels, groups = test.labels[spec.outputs[0]], test.candidate_groups()
    by_user, used, skipped = gauc(scores, labels, groups)
    metrics = {
        "model": spec.name, "test_auc": auc(scores, labels), "test_gauc": by_user, "gauc_users": used,
        "gauc_skipped_users": skipped, "test_logloss": logloss(scores, labels), "best_epoch": result.best_epoch,
        "train_seconds": round(sum(record["seconds"] for record in result.epochs), 1),
        "train_cpu_seconds": round(sum(record["cpu_seconds"] for record in result.epochs), 1),
        "parameters": sum(p.numel() for p in result.model.parameters()), **settings}
    with open(os.path.join(folder, "metrics.json"), "w", encoding="utf-8") as file:
        json.dump(metrics, file, indent=1)
    np.save(os.path.join(folder, "test_scores.npy"), scores)
    np.savez(os.path.join(out, "test_labels.npz"), labels=labels, groups=groups)
    return metrics


def spread(test, spec, count=16):
    """Numbers of about `count` requests for goldens, evenly spread; the first has two candidates and two behaviors."""
    sequence = spec.sequences[0].name
    rich = (np.diff(test.offsets) >= 2) & (test.stops[sequence] - test.starts[sequence] >= 2)
    first = int(np.flatnonzero(rich)[0])
    return [first] + [int(i) for i in np.linspace(0, len(test) - 1, count) if int(i) != first]


def write_model(out, result, requests, data, metrics, catalog=None, precision="f32", tables="f32"):
    """Writes the next free version of the bundle under <out>/models; returns its folder; where precision or tables
    are others than f32, and the version after it in those, saying so."""
    spec = result.model.spec
    origin = provenance(f"PyTorch {torch.__version__}", data,
                        datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), **metrics)
    root = os.path.join(out, "models")
    parent = os.path.join(root, spec.name)
    versions = [int(name) for name in os.listdir(parent) if name.isdigit()] if os.path.isdir(parent) else []
    version = max(versions, default=0) + 1
    manifest, tensors = manifest_of(result.model, origin), tensors_of(result.model)
    goldens = golden_requests(result.model, requests, catalog)
    folder = write_bundle(root, version, manifest, tensors, goldens, catalog, spec.files)
    notes = lower(manifest, tensors, goldens, encoder_of(spec, catalog), precision=precision, tables=tables)
    if notes:
        print("\n".join(notes))
        print(write_bundle(root, version + 1, manifest, tensors, goldens, catalog, spec.files))
    return folder


def compare(out, names, samples=1000):
    """A text table of the test AUCs of the models <out>/<name>, and of each one's difference from the one before it:
    paired bootstrap by user, 95 % interval."""
    test = np.load(os.path.join(out, "test_labels.npz"))
    labels, groups = test["labels"], test["groups"]
    lines, before = [], None
    for name in names:
        path = os.path.join(out, name, "test_scores.npy")
        if not os.path.exists(path):
            continue
        scores = np.load(path)
        by_user, used, skipped = gauc(scores, labels, groups)
        line = (f"{name:14} AUC {auc(scores, labels):.4f}  gAUC {by_user:.4f} ({used} users, {skipped} skipped)  "
                f"logloss {logloss(scores, labels):.4f}")
        if before is not None:
            d = bootstrap_auc_difference(scores, before[1], labels, groups, samples)
            line += f"  minus {before[0]}: {d['difference']:+.4f} [{d['low']:+.4f}, {d['high']:+.4f}]"
        lines.append(line)
        before = (name, scores)
    return "\n".join(lines)
