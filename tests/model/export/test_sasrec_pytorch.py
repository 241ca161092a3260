"""The importer of SASRec.pytorch: every wiring against a plain PyTorch module, what it refuses, the command line."""

import contextlib
import io
import json
import math
import os
import tempfile
import unittest
from unittest import mock

import numpy as np
import torch
from torch import nn

from dinghy_export import features
from dinghy_export.__main__ import main
from dinghy_export.bundle import write_lines
from dinghy_export.evaluate import evaluate
from dinghy_export.goldens import GoldenMismatch, golden_requests_of
from dinghy_export.importers import sasrec_pytorch
from dinghy_export.importers.sasrec_pytorch import WIRINGS, build_sasrec, settings_of_name
from dinghy_export.importers.weights import ImportRefused, Weights

ITEMS, WIDTH, MAXLEN, HEADS, BLOCKS = 30, 8, 6, 2, 2


class Sasrec(nn.Module):
    """What the repository computes, by wiring; parameters are named as its state dicts name them."""

    def __init__(self, wiring):
        super().__init__()
        self.wiring = wiring
        self.old = wiring.startswith("2020")
        self.item_emb = nn.Embedding(ITEMS + 1, WIDTH)
        self.pos_emb = nn.Embedding(MAXLEN if self.old else MAXLEN + 1, WIDTH)
        norms = lambda: nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-8) for _ in range(BLOCKS))
        self.attention_layernorms, self.forward_layernorms = norms(), norms()
        self.attention_layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS) for _ in range(BLOCKS))
        self.forward_layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Conv1d(WIDTH, WIDTH, 1) for name in ("conv1", "conv2")}) for _ in range(BLOCKS)
        )
        self.last_layernorm = nn.LayerNorm(WIDTH, eps=1e-8)

    def feed_forward(self, index, x):
        convolutions = self.forward_layers[index]
        hidden = convolutions["conv1"](x.transpose(1, 2))
        if self.wiring != "2020":
            hidden = hidden.relu()
        return convolutions["conv2"](hidden).transpose(1, 2)

    def attend(self, index, query, memory):
        future = torch.ones(MAXLEN, MAXLEN, dtype=torch.bool).triu(1)
        rows = [x.transpose(0, 1) for x in (query, memory, memory)]
        return self.attention_layers[index](*rows, attn_mask=future)[0].transpose(0, 1)

    def forward(self, ids):
        real = (ids != 0)[..., None]
        place = torch.arange(MAXLEN).expand_as(ids)
        place = place if self.old else (place + 1) * (ids != 0)
        x = self.item_emb(ids) * math.sqrt(WIDTH) + self.pos_emb(place)
        if self.old:
            x = x * real
        for index, (first, second) in enumerate(zip(self.attention_layernorms, self.forward_layernorms)):
            if self.wiring == "norm-first":
                normed = first(x)
                x = x + self.attend(index, normed, normed)
                x = x + self.feed_forward(index, second(x))
            elif self.wiring == "post-norm":
                x = first(x + self.attend(index, x, x))
                x = second(x + self.feed_forward(index, x))
            else:
                query = first(x)
                y = second(query + self.attend(index, query, x))
                x = y + self.feed_forward(index, y)
                if self.old:
                    x = x * real
        return self.last_layernorm(x)[:, -1]


def random_state(wiring, seed=5):
    torch.manual_seed(seed)
    module = Sasrec(wiring).double().eval()
    for tensor in module.state_dict().values():
        tensor.copy_((torch.randn_like(tensor) * 0.6).float())
    return module, {name: tensor.float() for name, tensor in module.state_dict().items()}


def arrays(state):
    return {name: tensor.numpy() for name, tensor in state.items()}


def build(state, wiring, **changes):
    return build_sasrec(
        Weights(arrays(state)), **{"name": "m", "wiring": wiring, "heads": HEADS, "maxlen": MAXLEN, **changes}
    )


def request_of(history, candidates):
    return {
        "candidates": [features.ints("item", candidates)],
        "sequences": [{"sequence": "history", "columns": [features.ints("item", history)]}],
    }


HISTORIES = [[], [3], [3, 3], [4, 9, 1, 30], list(range(1, MAXLEN + 1)), list(range(5, 25))]
CANDIDATES = [1, 7, 30, 7]


def expected_logs(module):
    logs = []
    for history in HISTORIES:
        newest = history[-MAXLEN:]
        ids = torch.tensor([[0] * (MAXLEN - len(newest)) + newest])
        logits = module.item_emb.weight[CANDIDATES] @ module(ids)[0]
        logs.append(
            {
                "request": {**request_of(history, CANDIDATES), "requestId": f"{len(history)} behaviors"},
                "outputs": [{"output": "logit", "scores": logits.tolist()}],
            }
        )
    return logs


class WiringTest(unittest.TestCase):
    def test_every_wiring_and_length(self):
        for wiring in WIRINGS:
            module, state = random_state(wiring)
            built = build(state, wiring)
            for log in expected_logs(module):
                with self.subTest(f"{wiring}, {log['request']['requestId']}"):
                    scores = evaluate(built.manifest, built.tensors, built.encoder().encode(log["request"])).scores[
                        "logit"
                    ]
                    np.testing.assert_allclose(scores, log["outputs"][0]["scores"], rtol=0, atol=1e-6)

    def test_goldens_tell_the_wirings_apart(self):
        for trained in WIRINGS:
            module, state = random_state(trained)
            logs = expected_logs(module)
            for wiring in WIRINGS:
                if WIRINGS[wiring].pad_position != WIRINGS[trained].pad_position:
                    continue
                with self.subTest(f"{trained} imported as {wiring}"):
                    if wiring == trained:
                        goldens = golden_requests_of(build(state, wiring), expected=logs)
                        self.assertEqual([golden["tolerance"] for golden in goldens], [1e-4] * len(goldens))
                        self.assertGreater(len(goldens), len(logs) + 5)
                        continue
                    with self.assertRaisesRegex(
                        GoldenMismatch,
                        r'request "\d behaviors": output "logit", candidate \d: the '
                        r"library gave -?[\d.e-]+, this import gives -?[\d.e-]+; the bar is 0.0001",
                    ):
                        golden_requests_of(build(state, wiring), expected=logs)

    def test_unknown_items(self):
        _, state = random_state("original")
        built = build(state, "original")
        encode = built.encoder().encode
        known = evaluate(built.manifest, built.tensors, encode(request_of([3, 4], [5])))
        strange = evaluate(built.manifest, built.tensors, encode(request_of([3, ITEMS + 1, 4], [5, ITEMS + 1])))
        self.assertEqual(strange.scores["logit"][0], known.scores["logit"][0])
        self.assertTrue(any("the pad row of item_emb is not zero" in note for note in built.notes))


class RefusalTest(unittest.TestCase):
    def refused(self, message, change=None, wiring="original", **arguments):
        _, state = random_state(wiring)
        if change is not None:
            change(state)
        with self.assertRaisesRegex(ImportRefused, message):
            build(state, wiring, **arguments)

    def test_contradictions(self):
        self.refused(
            r'"pos_emb.weight": expected 6 rows for maxlen 6 in wiring 2020, got 7; so many are in wiring original, '
            r"norm-first, post-norm",
            lambda s: s.update({"pos_emb.weight": torch.zeros(7, WIDTH)}),
            "2020",
        )
        self.refused(r'"pos_emb.weight": expected 10 rows for maxlen 9 in wiring original, got 7$', maxlen=9)
        self.refused("heads: expected a divisor of the width 8, got 3", heads=3)
        self.refused("blocks: expected 3, got attention_layers of 2", blocks=3)
        self.refused(r'"item_emb.weight": expected shape \[any, 50\], got \[31, 8\]', hidden=50)

    def test_tensors(self):
        self.refused('"last_layernorm.bias": expected in the checkpoint', lambda s: s.pop("last_layernorm.bias"))
        self.refused(
            '"pos_sigmoid.weight": expected only tensors of the model',
            lambda s: s.update({"pos_sigmoid.weight": torch.zeros(1)}),
        )
        self.refused(
            r'"forward_layers.0.conv1.weight": expected shape \[8, 8, 1\], got \[8, 8, 3\]',
            lambda s: s.update({"forward_layers.0.conv1.weight": torch.zeros(8, 8, 3)}),
        )
        self.refused(
            r'"item_emb.weight": expected 2 rows or more, .* got 0',
            lambda s: s.update({"item_emb.weight": torch.zeros(0, 8)}),
        )
        self.refused(
            '"item_emb.weight": expected finite numbers, got nan',
            lambda s: s["item_emb.weight"].__setitem__((2, 1), float("nan")),
        )

    def test_name_of_the_file(self):
        self.assertEqual(
            settings_of_name("a/SASRec.epoch=860.lr=0.001.layer=2.head=1.hidden=50.maxlen=200.pth"),
            {"epoch": 860, "lr": "0.001", "layer": 2, "head": 1, "hidden": 50, "maxlen": 200},
        )
        self.assertEqual(settings_of_name("model.pth"), {})


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.module, state = random_state("original")
        name = f"SASRec.epoch=9.lr=0.001.layer={BLOCKS}.head={HEADS}.hidden={WIDTH}.maxlen={MAXLEN}.pth"
        self.checkpoint, self.state = self.path(name), state
        torch.save(state, self.checkpoint)
        self.expected = self.path("expected.jsonl")
        write_lines(self.expected, expected_logs(self.module))

    def tearDown(self):
        self.root.cleanup()

    def path(self, name):
        return os.path.join(self.root.name, name)

    def run_import(self, *arguments, checkpoint=None):
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                code = main(
                    [
                        "import",
                        "--from",
                        "sasrec-pytorch",
                        "--checkpoint",
                        checkpoint or self.checkpoint,
                        "--name",
                        "m",
                        "--version",
                        "1",
                        "--out",
                        self.path("models"),
                        "--action",
                        "rate",
                        *arguments,
                    ]
                )
            except SystemExit as error:
                code = error.code
        return code, out.getvalue(), errors.getvalue()

    def test_import(self):
        code, out, errors = self.run_import("--wiring", "original", "--expected", self.expected)
        self.assertEqual((code, errors), (0, ""))
        self.assertRegex(out, r"note: 6 requests of the library's own: largest difference \d.\de-\d\d\n")
        with open(os.path.join(self.path("models"), "m", "1", "bundle.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual(
            manifest["sequences"],
            [
                {
                    "name": "history",
                    "actions": ["rate"],
                    "maxLength": MAXLEN,
                    "keep": "NEWEST",
                    "pad": "LEFT",
                    "skipPadOf": "history.item",
                }
            ],
        )
        self.assertEqual(manifest["provenance"]["details"]["wiring"], "original")
        code, _, errors = self.run_import("--wiring", "original")
        self.assertEqual(code, 1)
        self.assertIn("this version exists", errors)

    def test_refusals(self):
        code, out, errors = self.run_import("--wiring", "post-norm", "--expected", self.expected)
        self.assertEqual((code, out), (1, ""))
        self.assertRegex(errors, r'^refused: request "0 behaviors": output "logit", candidate \d: the library gave')
        self.assertFalse(os.path.exists(self.path("models")))
        self.assertRegex(self.run_import("--wiring", "2020")[2], 'refused: tensor "pos_emb.weight": expected 6 rows')
        self.assertRegex(
            self.run_import("--wiring", "original", "--heads", "4")[2], "--heads: expected 2 as the file's name says"
        )
        self.assertRegex(self.run_import()[2], "the following arguments are required: --wiring")
        plain = self.path("model.pth")
        torch.save(self.state, plain)
        self.assertRegex(
            self.run_import("--wiring", "original", checkpoint=plain)[2], "--heads: the weights do not say it"
        )
        self.assertEqual(self.run_import("--wiring", "original", "--heads", "2", checkpoint=plain)[0], 0)
        for error in (KeyError("w"), TypeError("w"), IndexError("w"), AttributeError("w")):
            with mock.patch.object(sasrec_pytorch, "build_sasrec", side_effect=error):
                self.assertRegex(
                    self.run_import("--wiring", "original", "--heads", "2", checkpoint=plain)[2],
                    "^refused: expected a configuration and a checkpoint of sasrec-pytorch, got values of another kind "
                    rf"\({type(error).__name__}: .*, in .*\.py:\d+\)\n$",
                )
        nothing = self.path("nothing.jsonl")
        with open(nothing, "w", encoding="utf-8") as file:
            file.write("\n")
        self.assertRegex(
            self.run_import("--wiring", "original", "--expected", nothing)[2],
            "refused: .*nothing.jsonl: expected scores of the library, .* got an empty file",
        )
        with open(plain, "wb") as file:
            file.write(b"nothing")
        self.assertRegex(
            self.run_import("--wiring", "original", "--heads", "2", checkpoint=plain)[2], "refused: .*model.pth: "
        )


if __name__ == "__main__":
    unittest.main()
