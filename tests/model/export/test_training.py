"""Training: metrics are right, batches are padded right, a resumed run equals an uninterrupted one."""

import contextlib
import io
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import training
from dinghy_export.models import IdFeature, ModelSpec, ReferenceModel, SequenceSpec, Table, TimeSince


def make_data(requests=60, seed=0):
    """Clicks depend on whether the candidate is in the history."""
    rng = np.random.default_rng(seed)
    spec = ModelSpec(
        name="tiny", variant="din_sasrec", tables={"item": Table(20, 8), "time": Table(3, 4)},
        candidate=(IdFeature("item", "item"),),
        sequences=(SequenceSpec("clicks", ("click",), 6, ("item",), time_since=TimeSince("time", (10, 100))),),
        outputs=("click",), tower_hidden=(8,), attention_hidden=(8,))
    events = rng.integers(0, 20, 200)
    stops = rng.integers(0, 200, requests)
    starts = np.maximum(0, stops - rng.integers(0, 9, requests))
    counts = rng.integers(1, 5, requests)
    offsets = np.r_[0, np.cumsum(counts)]
    items = rng.integers(0, 20, offsets[-1])
    owner = np.repeat(np.arange(requests), counts)
    labels = np.array([float(i in events[starts[r]:stops[r]]) for i, r in zip(items, owner)], np.float32)
    return spec, training.Requests(
        candidates={"item": items}, offsets=offsets, events={"clicks": {"clicks.item": events}},
        starts={"clicks": starts}, stops={"clicks": stops}, labels={"click": labels}, groups=np.arange(requests) % 7,
        event_times={"clicks": np.arange(200)}, request_times=stops + 5)


class MetricsTest(unittest.TestCase):

    def test_auc_counts_pairs(self):
        rng = np.random.default_rng(1)
        scores, labels = rng.integers(0, 6, 40) / 10, rng.integers(0, 2, 40)
        weights = rng.integers(0, 4, 40)
        for w in (np.ones(40), weights):
            won = total = 0.0
            for i in np.flatnonzero(labels == 1):
                for j in np.flatnonzero(labels == 0):
                    won += w[i] * w[j] * (1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0)
                    total += w[i] * w[j]
            self.assertAlmostEqual(training.auc(scores, labels, w), won / total, places=12)

    def test_auc_of_one_class_is_nan(self):
        self.assertTrue(np.isnan(training.auc([0.1, 0.2], [1, 1])))
        self.assertTrue(np.isnan(training.auc([], [])))

    def test_gauc_weighs_by_samples_and_skips_single_classes(self):
        scores = [0.1, 0.9, 0.9, 0.1, 0.5, 0.3]
        labels = [0, 1, 0, 1, 0, 1]
        groups = ["a", "a", "b", "b", "b", "c"]
        value, used, skipped = training.gauc(scores, labels, groups)
        self.assertAlmostEqual(value, (1.0 * 2 + 0.0 * 3) / 5)
        self.assertEqual((used, skipped), (2, 1))

    def test_logloss(self):
        self.assertAlmostEqual(training.logloss([0.25, 0.5], [0, 1]), -(np.log(0.75) + np.log(0.5)) / 2)

    def test_bootstrap_is_paired_and_seeded(self):
        rng = np.random.default_rng(2)
        labels, groups = rng.integers(0, 2, 600), rng.integers(0, 50, 600)
        good = labels + rng.normal(0, 1, 600)
        bad = rng.normal(0, 1, 600)
        same = training.bootstrap_auc_difference(good, good, labels, groups, samples=50)
        self.assertEqual((same["low"], same["high"]), (0.0, 0.0))
        first = training.bootstrap_auc_difference(good, bad, labels, groups, samples=50)
        self.assertEqual(first, training.bootstrap_auc_difference(good, bad, labels, groups, samples=50))
        self.assertGreater(first["low"], 0)
        self.assertLess(first["low"], first["difference"])
        self.assertLess(first["difference"], first["high"])


class TrainingTest(unittest.TestCase):

    def setUp(self):
        training.limit_threads(1)

    def run_training(self, folder, **changes):
        spec, data = make_data()
        torch.manual_seed(5)
        options = training.TrainOptions(folder=folder, batch_requests=16, learning_rate=3e-3, **changes)
        with contextlib.redirect_stdout(io.StringIO()):
            return training.train(ReferenceModel(spec), data, data, options)

    def test_resumed_training_equals_one_run(self):
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
            expected = self.run_training(whole, epochs=4)
            self.run_training(parts, epochs=4, stop_after=2)
            resumed = self.run_training(parts, epochs=4)
            self.assertEqual(len(resumed.epochs), 4)
            self.assertEqual([r["auc"] for r in expected.epochs], [r["auc"] for r in resumed.epochs])
            for (name, a), b in zip(expected.model.state_dict().items(), resumed.model.state_dict().values()):
                self.assertTrue(torch.equal(a, b), name)

    def test_checkpoint_of_other_options_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_training(folder, epochs=2, stop_after=1)
            with self.assertRaisesRegex(ValueError, "expected one made by .*epochs 3.*got .*epochs 2"):
                self.run_training(folder, epochs=3)

    def test_training_learns(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.run_training(folder, epochs=25)
            self.assertLess(result.epochs[-1]["loss"], 0.8 * result.epochs[0]["loss"])

    def test_batches_hold_the_newest_behaviors(self):
        spec, data = make_data()
        index = np.array([3, 11, 4])
        batch, labels = training.make_batch(spec, data, index)
        for row, request in enumerate(index):
            stop = data.stops["clicks"][request]
            start = max(data.starts["clicks"][request], stop - 6)
            length = int(batch.lengths["clicks"][row])
            self.assertEqual(length, stop - start)
            self.assertEqual(batch.values["clicks.item"][row, :length].tolist(),
                             data.events["clicks"]["clicks.item"][start:stop].tolist())
            ages = [stop + 5 - t for t in range(start, stop)]
            self.assertEqual(batch.values["clicks.time"][row, :length].tolist(),
                             [sum(b <= age for b in (10, 100)) for age in ages])
            count = int(batch.candidates[row])
            begin = data.offsets[request]
            self.assertEqual(labels["click"][row, :count].tolist(), data.labels["click"][begin:begin + count].tolist())
            self.assertTrue(torch.isnan(labels["click"][row, count:]).all())

    def test_predict_keeps_the_order_of_candidates(self):
        spec, data = make_data()
        torch.manual_seed(6)
        model = ReferenceModel(spec)
        one_by_one = training.predict(model, data, batch_requests=1)["click"]
        together = training.predict(model, data, batch_requests=60)["click"]
        np.testing.assert_allclose(one_by_one, together, atol=2e-6)

    def test_order_covers_each_request_once(self):
        spec, data = make_data()
        batches = training.make_order(spec, data, 16, np.random.default_rng(3), pool=2)
        self.assertEqual(sorted(np.concatenate(batches)), list(range(60)))


if __name__ == "__main__":
    unittest.main()
