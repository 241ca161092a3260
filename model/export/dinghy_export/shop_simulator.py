"""A simulated shop in which the true probabilities are known.

Users see pages of candidates and click or buy. What they do depends on
  * the item: its quality and its price, to which users of different ages and cities are differently sensitive;
  * a few categories that interest them now; interests drift, so recent behaviors say more than old ones;
  * order: categories lie on a ring, and the category after that of the user's very last click attracts. The clicks of
    a page lie seconds apart and the next page comes minutes to days later, so the time alone does not tell which was last;
  * for purchases also what was bought: the same category is not bought again soon, its accessory category is.

    shop = Shop.simulate(seed=7)
    shop.click_probability      # float64 [users, pages, candidates], the truth
"""

from dataclasses import dataclass

import numpy as np

FIRST_ITEM = 2  # row 0 is padding, row 1 is for items out of the vocabulary
FIRST_CATEGORY = 2
START_MS = 1704067200000  # 2024-01-01
CITIES = (
    "Aveiro Bergen Bremen Brno Cadiz Cork Dresden Dundee Esbjerg Faro Gdansk Genoa Ghent Girona Graz Haarlem Izmir Jena "
    "Kaunas Kiel Kosice Lahti Leiden Liege Linz Lodz Lugano Malaga Metz Namur Narva Oulu Parma Pecs Porto Rennes Split "
    "Tartu Turku Umea"
).split()


@dataclass(frozen=True)
class ShopOptions:
    users: int = 2500
    pages: int = 36
    candidates: int = 20
    categories: int = 24
    items_per_category: int = 40
    interests: int = 3
    drift: float = 0.15  # chance that an interest is replaced, per page


@dataclass(frozen=True)
class Event:
    time_ms: int
    item: int
    action: str


@dataclass
class Shop:
    options: ShopOptions
    # Items, by id - FIRST_ITEM.
    category: np.ndarray  # 0 to categories - 1
    price: np.ndarray
    # Users.
    age: np.ndarray
    city: np.ndarray  # index into CITIES
    # Pages: [users, pages] and [users, pages, candidates].
    time_ms: np.ndarray
    items: np.ndarray  # ids
    click_probability: np.ndarray
    purchase_probability: np.ndarray
    clicked: np.ndarray
    purchased: np.ndarray
    events: list  # per user: its Events by time

    @staticmethod
    def simulate(seed=7, options=ShopOptions()):
        return _Simulation(seed, options).run()


class _Simulation:
    def __init__(self, seed, options):
        self.random = np.random.default_rng(seed)
        self.options = options
        random, users, categories = self.random, options.users, options.categories
        items = categories * options.items_per_category
        self.category = np.repeat(np.arange(categories), options.items_per_category)
        self.next_category = _ring(random.permutation(categories))
        self.accessory = _ring(random.permutation(categories))
        self.quality = random.normal(0, 0.5, items)
        log_price = random.normal(3, 0.5, categories)[self.category] + random.normal(0, 0.5, items)
        self.price = np.round(np.exp(log_price), 2)
        self.dearness = (log_price - log_price.mean()) / log_price.std()
        exposure = np.exp(random.normal(0, 0.8, items) + self.quality).reshape(categories, -1)
        self.exposure = np.cumsum(exposure / exposure.sum(1, keepdims=True), axis=1)
        self.category_exposure = np.exp(random.normal(0, 0.5, categories))
        self.category_exposure /= self.category_exposure.sum()
        self.age = np.clip(random.normal(40, 14, users), 16, 85).round()
        self.city = random.integers(0, len(CITIES), users)
        thrift_of_city = random.normal(0, 0.6, len(CITIES))
        self.thrift = thrift_of_city[self.city] + 0.6 * (40 - self.age) / 14
        self.interests = np.stack([random.choice(categories, options.interests, replace=False) for _ in range(users)])
        # The newest clicked categories (last column the newest) and bought ones; -1: none yet.
        self.last_clicked = np.full((users, 5), -1)
        self.last_bought = np.full((users, 4), -1)
        self.events = [[] for _ in range(users)]

    def run(self):
        options, random = self.options, self.random
        time = START_MS + random.integers(0, 86_400_000, options.users)
        pages = []
        for _ in range(options.pages):
            time = time + np.exp(random.uniform(np.log(2 * 60e3), np.log(4 * 86400e3), options.users)).astype(np.int64)
            self._drift()
            items = self._show()
            click, buy = self._probabilities(items)
            clicked = random.random(items.shape) < click
            purchased = clicked & (random.random(items.shape) < buy)
            pages.append((time, items + FIRST_ITEM, click, click * buy, clicked, purchased))
            time = self._record(time, items, clicked, purchased)
        stacked = [np.stack(parts, axis=1) for parts in zip(*pages)]
        return Shop(options, self.category, self.price, self.age, self.city, *stacked, self.events)

    def _drift(self):
        users = np.flatnonzero(self.random.random(self.options.users) < self.options.drift)
        slots = self.random.integers(0, self.options.interests, len(users))
        self.interests[users, slots] = self.random.integers(0, self.options.categories, len(users))

    def _show(self):
        """Candidates [users, candidates], each once: what a recommender finds near the user, and popular items."""
        options, random = self.options, self.random
        users, near = options.users, options.candidates * 3 // 5
        categories = random.choice(options.categories, (users, options.candidates), p=self.category_exposure)
        sources = np.concatenate([self.interests, self.last_clicked, self.next_category[self.last_clicked]], axis=1)
        usable = np.concatenate([np.ones_like(self.interests), self.last_clicked >= 0, self.last_clicked >= 0], axis=1)
        picks = random.integers(0, sources.shape[1], (users, near))
        picked = np.take_along_axis(sources, picks, axis=1)
        categories[:, :near] = np.where(np.take_along_axis(usable, picks, axis=1) > 0, picked, categories[:, :near])
        items = self._pick(categories)
        while True:
            order = np.argsort(items, axis=1, kind="stable")
            ranked = np.take_along_axis(items, order, axis=1)
            repeated = np.zeros(items.shape, dtype=bool)
            np.put_along_axis(repeated, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
            if not repeated.any():
                return random.permuted(items, axis=1)
            items[repeated] = self._pick(random.integers(0, options.categories, int(repeated.sum())))

    def _pick(self, categories):
        drawn = self.random.random(categories.shape)[..., None]
        rank = (drawn > self.exposure[categories]).sum(-1)
        rank = np.minimum(rank, self.options.items_per_category - 1)
        return categories * self.options.items_per_category + rank

    def _probabilities(self, items):
        """Of a click, and of a purchase given the click."""
        category, quality = self.category[items], self.quality[items]
        interested = (category[:, :, None] == self.interests[:, None, :]).any(-1)
        last = self.last_clicked[:, -1]
        follows = (category == self.next_category[last][:, None]) & (last >= 0)[:, None]
        price = -0.5 * self.thrift[:, None] * self.dearness[items]
        click = -3.6 + 2.2 * interested + 3.0 * follows + quality + price
        bought = (category[:, :, None] == self.last_bought[:, None, :]).any(-1)
        accessories = np.where(self.last_bought >= 0, self.accessory[self.last_bought], -1)
        accessory = (category[:, :, None] == accessories[:, None, :]).any(-1)
        buy = -1.3 - 2.0 * bought + 1.6 * accessory + 0.5 * quality + price
        return _sigmoid(click), _sigmoid(buy)

    def _record(self, time, items, clicked, purchased):
        """Events of the page, in random order, seconds apart. Returns when each user was done."""
        end = time.copy()
        for user in np.flatnonzero(clicked.any(1)):
            moment = int(time[user])
            for place in self.random.permutation(np.flatnonzero(clicked[user])):
                moment += int(self.random.integers(1500, 9000))
                item = int(items[user, place])
                self.events[user].append(Event(moment, item + FIRST_ITEM, "click"))
                self.last_clicked[user] = np.append(self.last_clicked[user][1:], self.category[item])
                if purchased[user, place]:
                    moment += int(self.random.integers(1500, 9000))
                    self.events[user].append(Event(moment, item + FIRST_ITEM, "purchase"))
                    self.last_bought[user] = np.append(self.last_bought[user][1:], self.category[item])
            end[user] = moment
        return end


def _ring(permutation):
    """successor[c] along one ring through all."""
    successor = np.empty_like(permutation)
    successor[permutation] = np.roll(permutation, -1)
    return successor


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
