"""Training on grouped requests: seeded, resumable, one thread by default; and the metrics that judge it.

Requests hold one history per sequence and many candidates; histories are ranges into arrays that all requests share, so
that a million of them fit in memory.

    data = Requests(...)
    result = train(ReferenceModel(spec), data, validation, TrainOptions(folder="data/run", epochs=4))
    scores = predict(result.model, test)["click"]
    auc(scores, labels)
"""

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional

import numpy as np
import torch
from torch.nn import functional

from dinghy_export.models import Batch, ReferenceModel


@dataclass
class Requests:
    """Requests in columns. Ids are table rows, bags are padded with -1.

    candidates: feature -> [all candidates, ...]; request r has those of offsets[r] to offsets[r + 1].
    events: sequence -> feature ("clicks.item") -> [all events, ...], a user's in a row, oldest first; request r reads
    those of starts[sequence][r] to stops[sequence][r].
    event_times: sequence -> int64 [all events], and request_times int64 [requests]; where ages are read.
    user: feature -> [requests, ...]. labels: output -> float32 [all candidates], NaN where unknown.
    groups: user of each request, for metrics by user.
    """
    candidates: Dict[str, np.ndarray]
    offsets: np.ndarray
    events: Dict[str, Dict[str, np.ndarray]]
    starts: Dict[str, np.ndarray]
    stops: Dict[str, np.ndarray]
    labels: Dict[str, np.ndarray]
    groups: np.ndarray
    user: Dict[str, np.ndarray] = field(default_factory=dict)
    event_times: Dict[str, np.ndarray] = field(default_factory=dict)
    request_times: Optional[np.ndarray] = None

    def __len__(self):
        return len(self.offsets) - 1

    def candidate_groups(self):
        """The group of each candidate."""
        return np.repeat(self.groups, np.diff(self.offsets))


def _gather(values, starts, lengths, fill):
    """[B, longest, ...] of ranges of `values`, filled up behind each."""
    width = max(1, int(lengths.max(initial=0)))
    steps = np.arange(width)
    real = steps < lengths[:, None]
    index = np.where(real, starts[:, None] + steps, 0)
    taken = values[index] if len(values) else np.zeros(index.shape + values.shape[1:], values.dtype)
    return np.where(real.reshape(real.shape + (1,) * (taken.ndim - 2)), taken, fill)


def _tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else np.int64))


def make_batch(spec, data, index):
    """The Batch of some requests, and their labels by output [B, C] with NaN for padding."""
    index = np.asarray(index)
    starts, counts = data.offsets[index], data.offsets[index + 1] - data.offsets[index]
    values = {name: _tensor(_gather(column, starts, counts, 0)) for name, column in data.candidates.items()}
    for feature in spec.user:
        raw = data.user[feature.name][index]
        if hasattr(feature, "mean"):
            raw = ((raw - feature.mean) / feature.stddev).astype(np.float32)[:, None]
        values[feature.name] = _tensor(raw[:, None])
    lengths = {}
    for sequence in spec.sequences:
        first, last = data.starts[sequence.name][index], data.stops[sequence.name][index]
        first = np.maximum(first, last - sequence.max_length)
        lengths[sequence.name] = torch.from_numpy((last - first).astype(np.int64))
        for name, column in data.events[sequence.name].items():
            values[name] = _tensor(_gather(column, first, last - first, 0))
        if sequence.time_since:
            ages = data.request_times[index][:, None] - _gather(data.event_times[sequence.name], first, last - first, 0)
            buckets = np.searchsorted(np.array(sequence.time_since.boundaries_ms), np.maximum(ages, 0), side="right")
            values[f"{sequence.name}.time"] = _tensor(buckets)
    labels = {name: _tensor(_gather(column, starts, counts, np.nan)) for name, column in data.labels.items()}
    return Batch(values, lengths, torch.from_numpy(counts.astype(np.int64))), labels


def make_order(spec, data, batch_requests, rng, pool=64):
    """Batches of request numbers in random order, similar sizes together to save padding."""
    order = rng.permutation(len(data))
    behaviors = np.zeros(len(data), dtype=np.int64)
    for sequence in spec.sequences:
        behaviors += np.minimum(data.stops[sequence.name] - data.starts[sequence.name], sequence.max_length)
    size = np.diff(data.offsets) * 64 + behaviors  # candidates weigh more; exactness does not matter
    batches = []
    for begin in range(0, len(order), batch_requests * pool):
        part = order[begin:begin + batch_requests * pool]
        part = part[np.argsort(size[part], kind="stable")]
        batches += [part[i:i + batch_requests] for i in range(0, len(part), batch_requests)]
    return [batches[i] for i in rng.permutation(len(batches))]


def predict(model, data, batch_requests=64):
    """Probabilities in eval mode by output, float32 [all candidates]."""
    model.eval()
    parts = {output: np.zeros(data.offsets[-1], np.float32) for output in model.spec.outputs}
    with torch.no_grad():
        for begin in range(0, len(data), batch_requests):
            index = np.arange(begin, min(begin + batch_requests, len(data)))
            batch, _ = make_batch(model.spec, data, index)
            real = (torch.arange(int(batch.candidates.max())) < batch.candidates[:, None]).numpy()
            for output, scores in model.probabilities(batch).items():
                parts[output][data.offsets[begin]:data.offsets[index[-1] + 1]] = scores.numpy()[real]
    return parts


@dataclass
class TrainOptions:
    folder: str  # checkpoint.pt, best.pt and log.jsonl go here
    epochs: int = 4
    batch_requests: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    table_weight_decay: float = 0.0  # of embedding tables
    seed: int = 1
    stop_after: Optional[int] = None  # stop after this epoch, to go on later


@dataclass
class TrainResult:
    model: ReferenceModel  # with the weights of the epoch with the best validation AUC, in eval mode
    epochs: List[dict]  # one record an epoch
    best_epoch: int


def limit_threads(threads=1):
    torch.set_num_threads(threads)


def train(model, data, validation, options):
    """Trains with Adam on the mean log loss over labelled candidates and outputs; the learning rate falls linearly.

    Keeps the epoch with the best mean validation AUC. A folder with a checkpoint is gone on with: the result is the
    same as in one go, since every epoch draws from its own seed. Raises ValueError if other options or another model
    made the checkpoint.
    """
    made_by = _fingerprint(model.spec, options)
    os.makedirs(options.folder, exist_ok=True)
    tables = [p for name, p in model.named_parameters() if name.startswith("tables.")]
    others = [p for name, p in model.named_parameters() if not name.startswith("tables.")]
    optimizer = torch.optim.AdamW(
        [{"params": tables, "weight_decay": options.table_weight_decay},
         {"params": others, "weight_decay": options.weight_decay}], lr=options.learning_rate)
    checkpoint, best = (os.path.join(options.folder, name) for name in ("checkpoint.pt", "best.pt"))
    log = os.path.join(options.folder, "log.jsonl")
    records = []
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        if state["made_by"] != made_by:
            raise ValueError(
                f"{checkpoint}: expected one made by {made_by}, got {state['made_by']}; remove it to start anew")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        records = state["epochs"]
        print(f"resuming after epoch {len(records)}", flush=True)
    steps_an_epoch = -(-len(data) // options.batch_requests)
    for epoch in range(len(records), options.epochs):
        if options.stop_after is not None and epoch >= options.stop_after:
            break
        began, cpu_began = time.time(), time.process_time()
        torch.manual_seed(options.seed * 1000003 + epoch)
        rng = np.random.default_rng([options.seed, epoch])
        loss = _epoch(model, data, optimizer, options, rng, epoch * steps_an_epoch,
                      options.epochs * steps_an_epoch)
        scores = predict(model, validation)
        record = {"epoch": epoch + 1, "loss": round(loss, 6)}
        for output, column in validation.labels.items():
            known = ~np.isnan(column)
            record[f"{output}_auc"] = auc(scores[output][known], column[known])
            record[f"{output}_logloss"] = logloss(scores[output][known], column[known])
        record["auc"] = float(np.mean([record[f"{output}_auc"] for output in validation.labels]))
        record["seconds"] = round(time.time() - began, 1)
        record["cpu_seconds"] = round(time.process_time() - cpu_began, 1)
        records.append(record)
        print(json.dumps(record), flush=True)
        if record["auc"] >= max(r["auc"] for r in records):
            _save(best, {"model": model.state_dict(), "epoch": epoch + 1})
        _save(checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": records,
                           "made_by": made_by})
        with open(log, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(r) + "\n" for r in records)
    state = torch.load(best)
    model.load_state_dict(state["model"])
    return TrainResult(model.eval(), records, state["epoch"])


def _fingerprint(spec, options):
    """What must be equal for a run to go on from a checkpoint."""
    digest = hashlib.sha256(repr(spec).encode("utf-8")).hexdigest()[:12]
    return (f"model {spec.name} ({digest}), epochs {options.epochs}, batch_requests {options.batch_requests}, "
            f"learning_rate {options.learning_rate}, weight_decay {options.weight_decay}, "
            f"table_weight_decay {options.table_weight_decay}, seed {options.seed}")


def _epoch(model, data, optimizer, options, rng, step, steps):
    model.train()
    total, count, shown = 0.0, 0, time.time()
    batches = make_order(model.spec, data, options.batch_requests, rng)
    for number, index in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * max(0.02, 1 - (step + number) / steps)
        batch, labels = make_batch(model.spec, data, index)
        loss = 0.0
        for output, logits in model(batch).items():
            known = ~torch.isnan(labels[output])
            loss = loss + functional.binary_cross_entropy_with_logits(logits[known], labels[output][known])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total, count = total + float(loss), count + 1
        if time.time() - shown > 30:
            shown = time.time()
            print(f"  batch {number + 1}/{len(batches)} loss {total / count:.4f}", flush=True)
    return total / max(1, count)


def _save(path, state):
    """Whole or not at all: a killed run never leaves a torn checkpoint."""
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)


# --- Metrics ----------------------------------------------------------------------------------------------------------


def auc(scores, labels, weights=None):
    """Area under the ROC curve, ties at half; NaN if a class is absent. weights: of samples."""
    return _SortedScores(scores, labels).auc(weights)


class _SortedScores:
    """Scores sorted once, for many weighted AUCs."""

    def __init__(self, scores, labels):
        scores = np.asarray(scores)
        self.order = np.argsort(scores, kind="stable")
        ranked = scores[self.order]
        self.positive = np.asarray(labels)[self.order] > 0.5
        # Where each run of equal scores begins.
        self.runs = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if len(ranked) else np.zeros(0, np.int64)

    def auc(self, weights=None):
        if not len(self.order):
            return float("nan")
        weights = np.ones(len(self.order)) if weights is None else np.asarray(weights, np.float64)[self.order]
        positives = np.add.reduceat(weights * self.positive, self.runs)
        negatives = np.add.reduceat(weights * ~self.positive, self.runs)
        below = np.cumsum(negatives) - negatives
        pairs = positives.sum() * negatives.sum()
        return float((positives * (below + negatives / 2)).sum() / pairs) if pairs > 0 else float("nan")


def gauc(scores, labels, groups):
    """AUC by group, averaged by number of samples; groups of one class are skipped. Returns (gauc, used, skipped)."""
    scores, labels, groups = np.asarray(scores), np.asarray(labels), np.asarray(groups)
    order = np.argsort(groups, kind="stable")
    bounds = np.flatnonzero(np.r_[True, groups[order][1:] != groups[order][:-1], True])
    total = weight = 0.0
    used = skipped = 0
    for begin, end in zip(bounds, bounds[1:]):
        part = order[begin:end]
        value = auc(scores[part], labels[part])
        if np.isnan(value):
            skipped += 1
            continue
        used += 1
        total += value * len(part)
        weight += len(part)
    return (total / weight if weight else float("nan")), used, skipped


def logloss(scores, labels):
    """Mean negative log likelihood of probabilities, clipped to [1e-7, 1 - 1e-7]."""
    p = np.clip(np.asarray(scores, np.float64), 1e-7, 1 - 1e-7)
    labels = np.asarray(labels, np.float64)
    return float(-(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean())


def bootstrap_auc_difference(first, second, labels, groups, samples=1000, seed=1, level=0.95):
    """Paired bootstrap by group (user) of auc(first) - auc(second): {difference, low, high, standard_error}."""
    names, member = np.unique(groups, return_inverse=True)
    rng = np.random.default_rng(seed)
    a, b = _SortedScores(first, labels), _SortedScores(second, labels)
    differences = np.empty(samples)
    for i in range(samples):
        counts = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        weights = counts[member]
        differences[i] = a.auc(weights) - b.auc(weights)
    low, high = np.quantile(differences, [(1 - level) / 2, (1 + level) / 2])
    return {"difference": a.auc() - b.auc(), "low": float(low), "high": float(high),
            "standard_error": float(differences.std(ddof=1))}
