"""The simulated shop: trains the reference model and its ablations, compares them, and writes the demo.

    python3 -m dinghy_export.shop --out deploy/demo

trains all variants (a few minutes each on one thread), prints their AUC on later pages than the training's next to the
best AUC possible, and writes the bundle of `din_sasrec`, the events, and a log of requests with labels.

    python3 -m dinghy_export.shop --late_joiners --models din,din_auto --out shop_auto

lets users join at different times, so that histories of all lengths are trained and tested, prints the AUCs by the
length of the history too, and writes the bundle of `din_auto`, which takes another score over long histories than over
short ones.
"""

import argparse
import bisect
import dataclasses
import datetime
import json
import os
import time

import numpy as np
import torch
from torch.nn import functional

from dinghy_export import features
from dinghy_export.bundle import plain, write_bundle, write_lines
from dinghy_export.goldens import golden_requests, scores_of
from dinghy_export.manifest import encoder_of, manifest_of, provenance, tensors_of
from dinghy_export.models import VARIANTS, IdFeature, ModelSpec, NumericFeature, ReferenceModel, SequenceSpec, Table
from dinghy_export.models import TimeSince
from dinghy_export.shop_simulator import CITIES, FIRST_CATEGORY, FIRST_ITEM, Shop
from dinghy_export.training import auc, bootstrap_auc_difference

MODEL = "shop"
OUTPUTS = ("click", "purchase")
PRICE_BANDS = 10
CITY_BUCKETS = 128
CLICKS, PURCHASES = 20, 8
FIRST_TRAIN_PAGE, FIRST_TEST_PAGE = 8, 30  # before these pages histories are short, and from these on is the test
OOV_SHARE = 0.01  # of item ids while training, so that the row of unknown items is trained
GOLDEN_REQUESTS = ((3, 32), (14, 5), (15, 34))  # (user, page)
DEMO_USERS, DEMO_PAGES, EXAMPLE = 120, (30, 32, 34), (0, 35)  # those in the demo's log; and one (user, page)
# What each model should beat.
RIVALS = {
    "no_history": None,
    "mean_pooling": "no_history",
    "din": "mean_pooling",
    "din_auto": "din",
    "din_sasrec": "din",
    "sasrec": "mean_pooling",
}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
AGES = (MINUTE, 5 * MINUTE, 20 * MINUTE, HOUR, 3 * HOUR, 8 * HOUR, DAY, 2 * DAY, 4 * DAY, 7 * DAY, 14 * DAY)


def catalog_of(shop):
    """The item catalog: category and price band, the tenth of all prices it lies in."""
    bounds = np.quantile(shop.price, np.arange(1, PRICE_BANDS) / PRICE_BANDS)
    items = np.arange(len(shop.category)) + FIRST_ITEM
    return {
        "columns": [
            features.ints("item", items.tolist()),
            features.ints("category", (shop.category + FIRST_CATEGORY).tolist()),
            features.ints("price_band", (np.searchsorted(bounds, shop.price, side="right") + 2).tolist()),
        ]
    }


def spec_of(shop, variant="din_sasrec"):
    items, categories = len(shop.category) + FIRST_ITEM, shop.options.categories + FIRST_CATEGORY
    city = features.murmur3(17, CITY_BUCKETS, 2, ["Porto", "Umea", "Kraków"], remainder="UNSIGNED")
    rows = {"pad_row": 0, "oov_row": 1}
    ages = TimeSince("behavior_age", AGES)
    return ModelSpec(
        name=MODEL,
        variant=variant,
        tables={
            "item": Table(items, 8, zero_row=0),
            "category": Table(categories, 16, zero_row=0),
            "price_band": Table(PRICE_BANDS + 2, 4, zero_row=0),
            "city": Table(CITY_BUCKETS + 2, 4, zero_row=0),
            "behavior_age": Table(len(AGES) + 1, 8),
        },
        user=(
            NumericFeature("age", mean=40.0, stddev=14.0, missing=40.0),
            IdFeature("city", "city", city, type="STRING", missing_id="OOV_ROW", **rows),
        ),
        candidate=(
            IdFeature("item", "item", features.identity(items), **rows),
            IdFeature(
                "category", "category", features.identity(categories), source="CATALOG", missing_id="OOV_ROW", **rows
            ),
            IdFeature(
                "price_band",
                "price_band",
                features.identity(PRICE_BANDS + 2),
                source="CATALOG",
                missing_id="OOV_ROW",
                **rows,
            ),
        ),
        sequences=(
            SequenceSpec("clicks", ("click",), CLICKS, ("item", "category"), time_since=ages),
            SequenceSpec("purchases", ("purchase",), PURCHASES, ("item", "category"), time_since=ages),
        ),
        outputs=OUTPUTS,
        attention_hidden=(16, 8),
        attention_activation="RELU",
        attention_normalization="SOFTMAX",
        input_scale=4.0,
        tower_hidden=(48, 24),
        dropout=0.0,
    )


def model_of(shop, variant, seed):
    """An untrained model. Items start alike, so that their categories are learned first; self-attention blocks start as
    the identity and positions unlike: so the order is learned in a fraction of the steps."""
    torch.manual_seed(seed)
    model = ReferenceModel(spec_of(shop, variant))
    with torch.no_grad():
        model.tables["item"].weight.mul_(0.2)
    for node in model.nodes:
        if node.kind == "self_attention":
            torch.nn.init.normal_(node.module.positions, std=0.5)
            for block in node.module.blocks:
                torch.nn.init.zeros_(block.out.weight)
                torch.nn.init.zeros_(block.ffn[-1].weight)
    return model


def late_joiners(shop, seed):
    """The page at which each user joined, any of them alike, [users]."""
    return np.random.default_rng([seed, 1]).integers(0, shop.options.pages, shop.options.users)


class ShopRequests:
    """Requests of a simulated shop, by user and page. `joined`: each user's first page, before which nothing is known
    of the user; None: all were there from the start."""

    def __init__(self, shop, joined=None):
        self.shop = shop
        self.joined = np.zeros(shop.options.users, dtype=np.int64) if joined is None else joined
        self._times, self._items = {}, {}
        for action in ("click", "purchase"):
            of_action = [[event for event in events if event.action == action] for events in shop.events]
            self._times[action] = [[event.time_ms for event in events] for events in of_action]
            self._items[action] = [[event.item for event in events] for events in of_action]

    def keys(self, pages) -> list:
        """(user, page) of all users that were there at those of the `pages`."""
        return [(user, page) for user in range(self.shop.options.users) for page in pages if page >= self.joined[user]]

    def of_lengths(self, keys) -> list:
        """Three of the keys: with the longest histories, with the shortest, and between."""
        def lengths(key):
            return tuple(sorted(len(data["eventTimeMs"]) for data in self.request(*key)["sequences"]))

        ordered = sorted(keys, key=lengths)
        return [ordered[-1], ordered[0], ordered[len(ordered) // 2]]

    def request(self, user, page, inline=True):
        """A ScoreRequest; `inline` False leaves the histories to the store."""
        shop = self.shop
        now = int(shop.time_ms[user, page])
        request = {
            "requestId": f"u{user}-{page}",
            "model": MODEL,
            "userId": f"u{user}",
            "requestTimeMs": now,
            "user": [
                features.floats("age", [float(shop.age[user])]),
                features.strings("city", [CITIES[shop.city[user]]]),
            ],
            "candidates": [features.ints("item", shop.items[user, page].tolist())],
        }
        if inline:
            request["sequences"] = [
                self._history("clicks", "click", CLICKS, user, now),
                self._history("purchases", "purchase", PURCHASES, user, now),
            ]
        return request

    def _history(self, sequence, action, limit, user, now):
        times = self._times[action][user]
        begin, end = (bisect.bisect_left(times, time) for time in (self.shop.time_ms[user, self.joined[user]], now))
        kept = slice(max(begin, end - limit), end)
        return {
            "sequence": sequence,
            "eventTimeMs": times[kept],
            "columns": [features.ints("item", self._items[action][user][kept])],
        }

    def labels(self, user, page):
        return {"click": self.shop.clicked[user, page], "purchase": self.shop.purchased[user, page]}

    def truth(self, user, page):
        return {
            "click": self.shop.click_probability[user, page],
            "purchase": self.shop.purchase_probability[user, page],
        }


def batches_of(shop, requests, encoder, pages, size):
    """(Batch, labels by output) pairs of all users' `pages`, each user's requests together."""
    order = requests.keys(pages)
    batches = []
    for begin in range(0, len(order), size):
        chunk = order[begin : begin + size]
        batch = features.collate([encoder.encode(requests.request(*key)) for key in chunk])
        users, chunk_pages = zip(*chunk)
        labels = {
            "click": torch.from_numpy(shop.clicked[users, chunk_pages].astype(np.float32)),
            "purchase": torch.from_numpy(shop.purchased[users, chunk_pages].astype(np.float32)),
        }
        batches.append((batch, labels))
    return batches


def train(model, batches, epochs, seed, learning_rate=5e-3, report=lambda line: print(line, flush=True)):
    """Trains on (Batch, labels) pairs in a random order; the learning rate rises for a tenth and falls to zero."""
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=epochs * len(batches), pct_start=0.1
    )
    model.train()
    for epoch in range(epochs):
        begin, total = time.monotonic(), 0.0
        for index in torch.randperm(len(batches), generator=random).tolist():
            batch, labels = batches[index]
            logits = model(_with_unknown_items(batch, random))
            loss = sum(functional.binary_cross_entropy_with_logits(logits[name], labels[name]) for name in labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        report(f"  epoch {epoch + 1}: loss {total / len(batches):.4f}, {time.monotonic() - begin:.0f} s")
    model.eval()


def _with_unknown_items(batch, random):
    """The batch with some candidates, catalog features and all, replaced by the out-of-vocabulary rows."""
    drawn = torch.rand(batch.values["item"].shape, generator=random) < OOV_SHARE
    values = dict(batch.values)
    for name in ("item", "category", "price_band"):
        values[name] = torch.where(drawn, torch.ones_like(values[name]), values[name])
    return dataclasses.replace(batch, values=values)


def predict(model, batches):
    """Probabilities by output, [requests, candidates]."""
    model.eval()
    with torch.no_grad():
        scores = [model.probabilities(batch) for batch, _ in batches]
    return {output: torch.cat([part[output] for part in scores]).numpy() for output in OUTPUTS}


def print_table(shop, scores, keys, which=""):
    """AUC of every model, its gap to the best possible, and its step over the model that it should beat. `scores`:
    variant -> output -> [requests, candidates] of the (user, page) `keys`; `which`: says which requests these are."""
    shown = tuple(np.array(keys).T)
    users = np.repeat(shown[0], shop.options.candidates)
    truths = {"click": shop.click_probability[shown], "purchase": shop.purchase_probability[shown]}
    for output, labels in (("click", shop.clicked[shown].ravel()), ("purchase", shop.purchased[shown].ravel())):
        best = auc(truths[output].ravel(), labels)
        print(f"\n{output}{which}: {labels.size} samples, {labels.mean():.2%} positive, best possible AUC {best:.4f}")
        print(f"{'model':14} {'AUC':>7} {'gap':>7}  {'over':14} {'step':>7}  standard error, paired by user")
        for variant, rival in RIVALS.items():
            if variant not in scores:
                continue
            value = auc(scores[variant][output].ravel(), labels)
            line = f"{variant:14} {value:7.4f} {best - value:7.4f}"
            if rival in scores:
                step = bootstrap_auc_difference(
                    scores[variant][output].ravel(), scores[rival][output].ravel(), labels, users, samples=200
                )
                line += f"  {rival:14} {step['difference']:+.4f}  {step['standard_error']:.4f}"
            print(line, flush=True)


def print_by_length(shop, scores, keys, batches):
    """The table for histories on either side of din_auto's limit."""
    lengths = torch.cat([batch.lengths["clicks"] for batch, _ in batches]).numpy()
    short = lengths <= CLICKS // 2
    for which, picks in ((f"up to {CLICKS // 2} clicks", short), (f"more than {CLICKS // 2} clicks", ~short)):
        picked = {name: {output: values[picks] for output, values in by.items()} for name, by in scores.items()}
        print_table(shop, picked, [key for key, pick in zip(keys, picks) if pick], f", {which}")


def write_model(folder, requests, catalog, model, origin, keys):
    """The bundle; its golden requests are made of those of the (user, page) `keys`."""
    goldens = golden_requests(model, [requests.request(*key) for key in keys], catalog)
    path = write_bundle(
        os.path.join(folder, "models"), 1, manifest_of(model, origin), tensors_of(model), goldens, catalog
    )
    print(f"wrote {path}")


def write_demo(folder, shop, requests, catalog, model, origin):
    """The bundle, the events of some users, their requests on later pages with labels and scores, and one request."""
    write_model(folder, requests, catalog, model, origin, GOLDEN_REQUESTS)
    write_lines(os.path.join(folder, "events.jsonl"), _events(shop))
    encoder = encoder_of(model.spec, catalog)
    keys = [(user, page) for user in range(DEMO_USERS) for page in DEMO_PAGES]
    logs = (_score_log(requests, model, encoder, *key) for key in keys)
    write_lines(os.path.join(folder, "requests.jsonl"), logs)
    best = np.argsort(-scores_of(model, encoder, requests.request(*EXAMPLE))["click"])[:2]
    explain = {"topK": 5, "candidates": best.tolist()}
    example = dict(requests.request(*EXAMPLE, inline=False), explain=explain)
    with open(os.path.join(folder, "request.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(plain(example), indent=1) + "\n")


def _events(shop):
    for user in range(DEMO_USERS):
        for number, event in enumerate(shop.events[user]):
            yield {
                "userId": f"u{user}",
                "eventTimeMs": event.time_ms,
                "eventId": number,
                "itemId": event.item,
                "action": event.action,
            }


def _score_log(requests, model, encoder, user, page):
    """The request as a client sends it, without histories; PyTorch scored it with those that the store will return."""
    labels, truth = requests.labels(user, page), requests.truth(user, page)
    scores = scores_of(model, encoder, requests.request(user, page))
    references = [{"output": name, "source": "pytorch", "scores": scores[name]} for name in OUTPUTS]
    references += [
        {"output": name, "source": "truth", "scores": truth[name].astype(np.float32)} for name in OUTPUTS
    ]
    return {
        "request": requests.request(user, page, inline=False),
        "labels": [{"output": name, "values": labels[name].astype(int)} for name in OUTPUTS],
        "references": references,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="write the demo here: models/, events.jsonl, requests.jsonl, request.json")
    parser.add_argument("--models", default="all", help="comma-separated variants, or all: " + ", ".join(VARIANTS))
    parser.add_argument(
        "--late_joiners", action="store_true", help="users join at different times; --out writes the bundle of din_auto"
    )
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--created", help="time of the bundle's provenance, RFC 3339; default: now")
    options = parser.parse_args()
    variants = list(VARIANTS) if options.models == "all" else options.models.split(",")
    if not set(variants) <= set(VARIANTS):
        parser.error(f"--models: expected some of {', '.join(VARIANTS)}, got {options.models}")
    written = "din_auto" if options.late_joiners else "din_sasrec"
    if options.out and written not in variants:
        parser.error(f"--out writes the bundle of {written}, which is not among --models")
    torch.set_num_threads(1)
    shop = Shop.simulate(options.seed)
    requests = ShopRequests(shop, late_joiners(shop, options.seed) if options.late_joiners else None)
    catalog = catalog_of(shop)
    encoder = encoder_of(spec_of(shop), catalog)
    test_pages = range(FIRST_TEST_PAGE, shop.options.pages)
    train_set = batches_of(shop, requests, encoder, range(FIRST_TRAIN_PAGE, FIRST_TEST_PAGE), 32)
    test_set = batches_of(shop, requests, encoder, test_pages, 250)
    scores, models = {}, {}
    for variant in variants:
        print(variant, flush=True)
        models[variant] = model_of(shop, variant, options.seed)
        train(models[variant], train_set, options.epochs, options.seed)
        scores[variant] = predict(models[variant], test_set)
    test_keys = requests.keys(test_pages)
    print_table(shop, scores, test_keys)
    if options.late_joiners:
        print_by_length(shop, scores, test_keys, test_set)
    if options.out:
        origin = provenance(
            f"dinghy_export.shop, PyTorch {torch.__version__}",
            "simulated shop (dinghy_export.shop_simulator)",
            options.created or datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seed=options.seed,
            epochs=options.epochs,
        )
        if options.late_joiners:
            write_model(options.out, requests, catalog, models[written], origin, requests.of_lengths(test_keys[:500]))
        else:
            write_demo(options.out, shop, requests, catalog, models[written], origin)


if __name__ == "__main__":
    main()
