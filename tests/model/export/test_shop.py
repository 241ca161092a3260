"""The simulated shop, and the committed demo that was made of it."""

import collections
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import tempfile
import unittest

import numpy as np
import torch

from dinghy_export import safetensors, shop
from dinghy_export.evaluate import evaluate
from dinghy_export.goldens import scores_of
from dinghy_export.manifest import encoder_of, provenance, tensors_of
from dinghy_export.shop_simulator import FIRST_ITEM, Shop, ShopOptions
from dinghy_export.training import auc

SOURCE = os.environ.get("DINGHY_SOURCE", os.path.join(os.path.dirname(__file__), "..", "..", ".."))
DEMO = os.path.join(SOURCE, "deploy", "demo")
SMALL = ShopOptions(users=40, pages=10)


def read_json(path):
    """All messages of a file of JSON, one or one a line."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return [json.loads(text)] if path.endswith(".json") else [json.loads(line) for line in text.splitlines()]


def read_lines(path):
    with open(os.path.join(DEMO, path), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class SimulatorTest(unittest.TestCase):
    def test_the_seed_decides(self):
        first, second, other = Shop.simulate(3, SMALL), Shop.simulate(3, SMALL), Shop.simulate(4, SMALL)
        np.testing.assert_array_equal(first.items, second.items)
        np.testing.assert_array_equal(first.clicked, second.clicked)
        self.assertEqual(first.events, second.events)
        self.assertTrue((first.items != other.items).any())

    def test_pages(self):
        simulated = Shop.simulate(3, SMALL)
        self.assertTrue((np.diff(np.sort(simulated.items, axis=2), axis=2) > 0).all())
        self.assertTrue((np.diff(simulated.time_ms, axis=1) > 0).all())
        self.assertTrue((simulated.purchase_probability < simulated.click_probability).all())
        self.assertTrue((simulated.clicked | ~simulated.purchased).all())
        # Clicks happen as often as they should, within four standard errors.
        p = simulated.click_probability
        self.assertLess(abs(simulated.clicked.sum() - p.sum()), 4 * np.sqrt((p * (1 - p)).sum()))

    def test_events_are_those_of_the_pages(self):
        simulated = Shop.simulate(3, SMALL)
        for user, events in enumerate(simulated.events):
            times = [event.time_ms for event in events]
            self.assertEqual(times, sorted(set(times)))
            for action, happened in (("click", simulated.clicked), ("purchase", simulated.purchased)):
                of_action = sorted(event.item for event in events if event.action == action)
                self.assertEqual(of_action, sorted(simulated.items[user][happened[user]].tolist()))

    def test_histories_end_before_the_request(self):
        simulated = Shop.simulate(3, SMALL)
        requests = shop.ShopRequests(simulated)
        for user in range(SMALL.users):
            request = requests.request(user, 9)
            clicks = [event for event in simulated.events[user] if event.action == "click"]
            clicks = [event for event in clicks if event.time_ms < request["requestTimeMs"]][-shop.CLICKS :]
            history = request["sequences"][0]
            self.assertEqual(history["eventTimeMs"], [event.time_ms for event in clicks])
            self.assertEqual(history["columns"][0]["ints"]["values"], [event.item for event in clicks])
            self.assertNotIn("sequences", requests.request(user, 9, inline=False))

    def test_training_lowers_the_loss(self):
        simulated = Shop.simulate(3, SMALL)
        encoder = encoder_of(shop.spec_of(simulated), shop.catalog_of(simulated))
        batches = shop.batches_of(simulated, shop.ShopRequests(simulated), encoder, range(2, 10), 8)
        model = shop.model_of(simulated, "din_sasrec", 1)
        labels = np.concatenate([labels["click"].numpy().ravel() for _, labels in batches])
        before = auc(shop.predict(model, batches)["click"].ravel(), labels)
        shop.train(model, batches, 6, 1, report=lambda line: None)
        self.assertGreater(auc(shop.predict(model, batches)["click"].ravel(), labels), max(0.6, before))


    def test_late_joiners_have_no_past(self):
        simulated = Shop.simulate(3, SMALL)
        joined = shop.late_joiners(simulated, 5)
        self.assertGreater(len(set(joined)), 5)
        everything, late = shop.ShopRequests(simulated), shop.ShopRequests(simulated, joined)
        self.assertEqual(len(everything.keys(range(10))), 10 * SMALL.users)
        self.assertEqual(late.keys([9]), [(user, 9) for user in range(SMALL.users)])
        self.assertEqual(late.keys([4]), [(user, 4) for user in np.flatnonzero(joined <= 4)])
        for user, page in late.keys(range(10)):
            history = late.request(user, page)["sequences"][0]["eventTimeMs"]
            start = simulated.time_ms[user, joined[user]]
            before = everything.request(user, page)["sequences"][0]["eventTimeMs"]
            self.assertEqual(history, [time for time in before if time >= start])

    def test_auto_learns_and_is_written(self):
        """Both of its scores are trained, and the golden requests of its bundle take both."""
        simulated = Shop.simulate(3, dataclasses.replace(SMALL, pages=16))
        requests = shop.ShopRequests(simulated, shop.late_joiners(simulated, 5))
        catalog = shop.catalog_of(simulated)
        encoder = encoder_of(shop.spec_of(simulated), catalog)
        batches = shop.batches_of(simulated, requests, encoder, range(2, 16), 16)
        lengths = torch.cat([batch.lengths["clicks"] for batch, _ in batches])
        self.assertGreater(((lengths > 0) & (lengths <= 10)).sum(), 50)
        self.assertGreater((lengths > 10).sum(), 50)
        model = shop.model_of(simulated, "din_auto", 1)
        labels = np.concatenate([labels["click"].numpy().ravel() for _, labels in batches])
        before = auc(shop.predict(model, batches)["click"].ravel(), labels)
        shop.train(model, batches, 6, 1, report=lambda line: None)
        after = auc(shop.predict(model, batches)["click"].ravel(), labels)
        self.assertGreater(after, max(0.6, before))
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
            keys = requests.of_lengths(requests.keys([15]))
            shop.write_model(root, requests, catalog, model, provenance("test", "", "2024-06-01T08:00:00Z"), keys)
            folder = os.path.join(root, "models", "shop", "1")
            manifest, goldens = (read_json(os.path.join(folder, name)) for name in ("bundle.json", "golden.jsonl"))
            tensors = {**safetensors.read(os.path.join(folder, "weights.safetensors")),
                       **safetensors.read(os.path.join(folder, "tables.safetensors"))}
        attention = [layer["targetAttention"] for layer in manifest[0]["layers"] if "targetAttention" in layer]
        self.assertEqual([layer["auto"]["maxShort"] for layer in attention], [10, 4])
        seen = set()
        for golden in goldens:
            encoded = encoder.encode(golden["request"])
            seen.add(encoded.lengths["clicks"] > 10)
            for output, scores in evaluate(manifest[0], tensors, encoded).scores.items():
                expected = next(o["scores"] for o in golden["outputs"] if o["output"] == output)
                np.testing.assert_allclose(scores, expected, rtol=0, atol=5e-6)
        self.assertEqual(seen, {False, True})


class DemoTest(unittest.TestCase):
    def test_size_and_digests(self):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(DEMO) for name in names]
        self.assertLess(sum(map(os.path.getsize, files)), 4_000_000)
        folder = os.path.join(DEMO, "models", "shop", "1")
        with open(os.path.join(folder, "COMPLETE"), encoding="utf-8") as file:
            for entry in json.load(file)["files"]:
                with open(os.path.join(folder, entry["path"]), "rb") as listed:
                    self.assertEqual(hashlib.sha256(listed.read()).hexdigest(), entry["sha256"])

    def test_the_log_is_what_pytorch_gives_for_the_events(self):
        """Histories as a store returns them: strictly before the request, newest first cut, by time and event id."""
        folder = os.path.join(DEMO, "models", "shop", "1")
        with open(os.path.join(folder, "catalog.json"), encoding="utf-8") as file:
            catalog = json.load(file)
        model = shop.model_of(Shop.simulate(3, ShopOptions(users=1, pages=1)), "din_sasrec", 1)
        state = {}
        for name in ("tables", "weights"):
            for key, value in safetensors.read(os.path.join(folder, f"{name}.safetensors")).items():
                state[f"{'tables' if name == 'tables' else 'layers'}.{key}"] = torch.from_numpy(value.copy())
        self.assertEqual(len(state), len(tensors_of(model)))
        model.load_state_dict(state)
        events = collections.defaultdict(list)
        for event in read_lines("events.jsonl"):
            events[event["userId"], event["action"]].append((event["eventTimeMs"], event["eventId"], event["itemId"]))
        encoder = encoder_of(model.spec, catalog)
        logs = read_lines("requests.jsonl")
        self.assertGreaterEqual(len(logs), 300)
        for log in logs[:60]:
            request = log["request"]
            self.assertNotIn("sequences", request)
            request["sequences"] = []
            for sequence, action in (("clicks", "click"), ("purchases", "purchase")):
                seen = sorted(event for event in events[request["userId"], action] if event[0] < request["requestTimeMs"])
                columns = [{"feature": "item", "ints": {"values": [item for _, _, item in seen]}}]
                times = [time for time, _, _ in seen]
                request["sequences"].append({"sequence": sequence, "eventTimeMs": times, "columns": columns})
            scores = scores_of(model, encoder, request)
            for reference in log["references"]:
                if reference["source"] == "pytorch":
                    expected = np.array(reference["scores"])
                    np.testing.assert_allclose(scores[reference["output"]], expected, rtol=0, atol=2e-6)

    def test_labels_and_truth(self):
        values = collections.defaultdict(list)
        for log in read_lines("requests.jsonl"):
            count = len(log["request"]["candidates"][0]["ints"]["values"])
            for label in log["labels"]:
                self.assertEqual(len(label["values"]), count)
                values[label["output"], "label"] += label["values"]
            for reference in log["references"]:
                self.assertEqual(len(reference["scores"]), count)
                values[reference["output"], reference["source"]] += reference["scores"]
        for output in shop.OUTPUTS:
            labels = np.array(values[output, "label"])
            best, model = (auc(np.array(values[output, source]), labels) for source in ("truth", "pytorch"))
            self.assertGreater(best, model)
            self.assertGreater(model, 0.74)

    def test_example_request(self):
        with open(os.path.join(DEMO, "request.json"), encoding="utf-8") as file:
            request = json.load(file)
        self.assertEqual(request["explain"]["topK"], 5)
        self.assertTrue(any(event["userId"] == request["userId"] for event in read_lines("events.jsonl")))
        self.assertGreaterEqual(min(request["candidates"][0]["ints"]["values"]), FIRST_ITEM)


if __name__ == "__main__":
    unittest.main()
