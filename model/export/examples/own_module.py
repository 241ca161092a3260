"""A module of one's own, from training to a bundle.

    export PYTHONPATH=model/export OMP_NUM_THREADS=1
    python3 -m dinghy_export import --from torch --module model/export/examples/own_module.py:export \
        --name books --version 1 --out models
    dinghy validate models/books/1

BookNet is a click model as people write them: DIN's activation unit with Dice and multi-head cross-attention over the
books that a user read, and a tower with batch norm and PReLU. `train` fits it to made-up readers for a few seconds;
`export` says which layer each of its parts is, and lets the module itself score the golden requests.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dinghy_export import attention, features
from dinghy_export.builder import Builder
from dinghy_export.goldens import module_goldens
from dinghy_export.manifest import provenance
from dinghy_export.modules import Modules

BOOKS, GENRES, LONGEST = 400, 12, 20  # rows of the tables; row 0 pads, row 1 stands for what is unknown
FIRST = 2
MEAN_AGE, SPREAD_OF_AGE = 40.0, 15.0


# --- The module -----------------------------------------------------------------------------------------------------


class Dice(nn.Module):
    """p x + alpha (1 - p) x with p = sigmoid(batch norm of x) (Zhou et al., 2018)."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        p = torch.sigmoid(self.norm(x))
        return p * x + self.alpha * (1 - p) * x


class BookNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.book = nn.Embedding(BOOKS, 16, padding_idx=0)
        self.genre = nn.Embedding(GENRES, 8, padding_idx=0)
        self.unit = nn.Sequential(nn.Linear(4 * 24, 24), Dice(24), nn.Linear(24, 1))
        self.attention = nn.MultiheadAttention(24, 4, dropout=0.1, batch_first=True)
        self.tower = nn.Sequential(
            nn.Linear(3 * 24 + 1, 32), nn.BatchNorm1d(32), nn.PReLU(32), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, book, genre, read_books, read_genres, age):
        """Logits [N] of N readers with one book each; read_books and read_genres [N, LONGEST], filled up with 0 behind
        the newest; age [N, 1], normalised."""
        query = torch.cat([self.book(book), self.genre(genre)], dim=-1)
        rows = torch.cat([self.book(read_books), self.genre(read_genres)], dim=-1)
        real = read_books != 0
        wide = query[:, None].expand_as(rows)
        parts = torch.cat([wide, rows, wide - rows, wide * rows], dim=-1)
        scores = self.unit(parts.flatten(0, 1)).view(real.shape) * real
        interest = (scores[:, None] @ rows)[:, 0]
        hidden = ~real & real.any(dim=1, keepdim=True)  # who read nothing attends to the filling, in place of NaN
        context = self.attention(query[:, None], rows, rows, key_padding_mask=hidden, need_weights=False)[0][:, 0]
        return self.tower(torch.cat([interest, context, query, age], dim=-1))[:, 0]


def train(steps=150, seed=1):
    """A BookNet that has learned that readers like the genres which they read, and the young like some more."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    genre_of = np.concatenate([[0, 1], random.integers(FIRST, GENRES, BOOKS - FIRST)])
    net = BookNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        favorite = random.integers(FIRST, GENRES, 256)
        read = random.integers(FIRST, BOOKS, (256, LONGEST))
        by_genre = np.argsort(genre_of != favorite[:, None], axis=1, kind="stable")
        read[:, ::2] = by_genre[np.arange(256)[:, None], random.integers(0, 20, (256, LONGEST // 2))]
        read[np.arange(LONGEST) >= random.integers(0, LONGEST + 1, 256)[:, None]] = 0
        book = np.where(random.random(256) < 0.5, read[:, 0], random.integers(FIRST, BOOKS, 256))
        book[random.random(256) < 0.02] = 1
        age = random.normal(0, 1, 256)
        liked = 2.5 * (genre_of[book] == favorite) - 1.5 - age * (genre_of[book] % 2)
        label = random.random(256) < 1 / (1 + np.exp(-liked))
        ids = map(torch.from_numpy, (book, genre_of[book], read, genre_of[read]))
        logits = net(*ids, torch.from_numpy(age[:, None]).float())
        loss = functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(label).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


# --- Its layers -----------------------------------------------------------------------------------------------------


def dice(b, prefix, module):
    """Which activation Dice is, and its parameters."""
    return "DICE", b.dice(prefix, module.alpha, Modules(b).batch_norm(f"{prefix}.norm", module.norm))


def export(checkpoint=None):
    """The Built of a trained BookNet; `checkpoint`: its state dict, or None to train one here."""
    net = train() if checkpoint is None else BookNet()
    if checkpoint is not None:
        net.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
    net.eval()

    b = Builder("books", item_feature="book")
    m = Modules(b, activations={Dice: dice})
    m.table("book", net.book)
    m.table("genre", net.genre)
    # As BookNet pads: behind the newest, with row 0; and a behavior that takes row 0 does not count.
    b.sequence("reads", ["read"], LONGEST, keep="NEWEST", pad="RIGHT", skip_pad_of="reads.book")
    ids = dict(pad_row=0, oov_row=1, unknown="OOV_ROW", negative="OOV_ROW", missing_id="OOV_ROW")
    for name, rows in (("book", BOOKS), ("genre", GENRES)):
        vocabulary = features.identity(rows)
        b.feature(features.id_feature(name, "CANDIDATE", name, vocabulary, **ids))
        b.feature(features.id_feature(f"reads.{name}", "SEQUENCE", name, vocabulary, source="EVENT", **ids))
    b.feature(features.numeric_feature("age", "USER", MEAN_AGE, SPREAD_OF_AGE, missing=MEAN_AGE))

    query, rows = ["book", "genre"], ["reads.book", "reads.genre"]
    attention.din(b, "interest", query, rows, layers=m.dense_list("interest.unit", net.unit),
                  parts=["QUERY", "KEY", "DIFFERENCE", "PRODUCT"], normalization="NONE", empty="ZEROS")
    m.cross_attention("context", net.attention, query, rows, empty="PAD_VALUE")
    m.layer("tower", net.tower, inputs=["interest", "context", *query, "age"])
    b.output("click", "tower")
    built = b.build(provenance(f"PyTorch {torch.__version__}", "made-up readers", "2024-06-01T08:00:00Z", seed=1))

    encoder = built.encoder()

    def score(request):
        """What the module itself gives: the proof that the layers above are the module."""
        encoded = encoder.encode(request)
        count, length = encoded.candidates, encoded.lengths["reads"]
        values = {name: torch.from_numpy(value) for name, value in encoded.values.items()}
        filled = (functional.pad(values[f"reads.{name}"], (0, LONGEST - length)) for name in ("book", "genre"))
        reads = [row.expand(count, -1) for row in filled]
        with torch.no_grad():
            logits = net(values["book"], values["genre"], *reads, values["age"].expand(count, -1))
        return {"click": torch.sigmoid(logits)}

    built.expected = module_goldens(built, [example_request()], score)
    return built


def example_request():
    """A ScoreRequest as a client sends it, here with the history in it."""
    return {
        "requestId": "example",
        "user": [features.floats("age", [31.0])],
        "candidates": [features.ints("book", [17, 250, 3]), features.ints("genre", [5, 2, 11])],
        "sequences": [
            {"sequence": "reads", "columns": [features.ints("book", [40, 17]), features.ints("genre", [5, 5])]}],
    }
