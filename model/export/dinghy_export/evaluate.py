"""A bundle's manifest, computed slowly in float64: what the engine must give, without the engine.

    encoded = built.encoder().encode(request)
    result = evaluate(built.manifest, built.tensors, encoded)
    result.scores["click"]       # float64 [candidates]
    result.values["interest"]    # float64 [rows, width] of a layer or feature; of a sequence the real behaviors only

It follows proto/bundle.proto word by word and shares no code with what it checks. Where a sequence has pads it really
pads: such a sequence has max_length rows here, some of them pad behaviors. What a pad behavior has no value for (a
time, an id without a pad row, a row that sees nothing) is NaN; a result that it reaches is refused.
"""

import math
from dataclasses import dataclass

import numpy as np

from dinghy_export import evaluate_attention as attention
from dinghy_export.evaluate_rows import dense, layer_norm, activate, batch_norm

USER, SEQUENCE, CANDIDATE = "USER", "SEQUENCE", "CANDIDATE"


class EvaluationError(ValueError):
    """A manifest that cannot be computed: it lacks what the request needs."""


@dataclass
class Evaluation:
    scores: dict  # output -> float64 [candidates]
    values: dict  # feature or layer -> float64 [rows, width]


@dataclass
class Table:
    """An embedding table as it is stored: float32, float16, or int8 with a scale for each row."""

    stored: np.ndarray
    scale: np.ndarray

    @property
    def width(self):
        return self.stored.shape[1]

    def rows(self, rows):
        """Float64 [rows, width]; integers times their scale are rounded to float32, as the engine has them."""
        values = self.stored[rows]
        if self.scale is not None:
            values = values.astype(np.float32) * self.scale[rows][:, None]
        return values.astype(np.float64)


@dataclass
class Rows:
    """The values of a feature or layer, [rows, width]; of a sequence with pads, [max_length, width]."""

    level: str
    values: np.ndarray
    sequence: str = ""


def evaluate(manifest, tensors, encoded) -> Evaluation:
    """`manifest`: BundleManifest, `tensors`: name -> array, `encoded`: an Encoded of dinghy_export.features."""
    return _Evaluator(manifest, tensors, encoded).run()


class _Evaluator:
    def __init__(self, manifest, tensors, encoded):
        self.manifest = manifest
        self.encoded = encoded
        self.tensors = tensors
        self.tables = {table["name"]: self._table(table) for table in manifest.get("tables", [])}
        self.real = {sequence["name"]: self._real(sequence) for sequence in manifest.get("sequences", [])}
        self.rows = {}

    def tensor(self, name):
        return np.asarray(self._stored(name), dtype=np.float64)

    def _stored(self, name):
        if name not in self.tensors:
            raise EvaluationError(f'tensor "{name}": expected in the bundle, got none of that name')
        return self.tensors[name]

    def _table(self, table):
        return Table(self._stored(table["tensor"]), self._stored(table["scale"]) if table.get("scale") else None)

    def run(self) -> Evaluation:
        for feature in self.manifest["features"]:
            self.rows[feature["name"]] = self._feature(feature)
        for layer in self.manifest["layers"]:
            try:
                self.rows[layer["name"]] = self._layer(layer)
            except KeyError as error:
                raise EvaluationError(f'layer "{layer["name"]}": {error} is missing or not known') from error
            except (ValueError, IndexError) as error:
                raise EvaluationError(f'layer "{layer["name"]}": {type(error).__name__}: {error}') from error
        values = {}
        for name, rows in self.rows.items():
            values[name] = rows.values[self.real[rows.sequence]] if rows.level == SEQUENCE else rows.values
        return Evaluation({output["name"]: self._output(output) for output in self.manifest["outputs"]}, values)

    # --- Sequences and features -------------------------------------------------------------------------------------

    def _real(self, sequence):
        """Which of the rows of a sequence are real behaviors, bool [rows]."""
        length, pads = self.encoded.lengths[sequence["name"]], 0
        if sequence["pad"] != "NONE":
            pads = sequence["maxLength"] - length
        real = [True] * length
        return np.array([False] * pads + real if sequence["pad"] == "LEFT" else real + [False] * pads, dtype=bool)

    def _feature(self, feature) -> Rows:
        name, level = feature["name"], feature["level"]
        rows = np.asarray(self.encoded.values[name])
        if "numeric" in feature or "vector" in feature:
            width = feature["vector"]["dim"] if "vector" in feature else 1
            values, pad = rows.reshape(len(rows), width).astype(np.float64), np.zeros(width)
        else:
            table = self.tables[feature["table"]]
            kind = feature.get("id", {})
            bag = kind.get("bag", "SINGLE")
            pad = np.full(table.width, np.nan)
            if bag == "SINGLE":
                values = table.rows(rows.reshape(len(rows)))
                if "padRow" in kind:
                    pad = table.rows([kind["padRow"]])[0]
            else:
                values, pad = np.array([_bag(table, row[row >= 0], bag) for row in rows]), np.zeros(table.width)
                values = values.reshape(len(rows), table.width)
        if level != SEQUENCE:
            return Rows(level, values)
        real = self.real[feature["sequence"]]
        padded = np.empty((len(real), values.shape[1]))
        padded[real], padded[~real] = values, pad
        return Rows(level, padded, feature["sequence"])

    # --- Layers -----------------------------------------------------------------------------------------------------

    def _concat(self, names) -> Rows:
        """The columns of all names side by side, at the highest of their levels."""
        parts = [self.rows[name] for name in names]
        leader = self._leader(parts)
        return Rows(
            leader.level, np.concatenate([self._spread(part, leader) for part in parts], axis=1), leader.sequence
        )

    @staticmethod
    def _leader(parts) -> Rows:
        levels = {(part.level, part.sequence) for part in parts if part.level != USER}
        if len(levels) > 1:
            raise EvaluationError(f"expected one level above USER, got {sorted(levels)}")
        return next((part for part in parts if part.level != USER), parts[0])

    @staticmethod
    def _spread(part, leader):
        return part.values if part.level == leader.level else np.repeat(part.values, len(leader.values), axis=0)

    def _layer(self, layer) -> Rows:
        kind = next(key for key in layer if key not in ("name", "inputs"))
        message = layer[kind]
        if kind in ("add", "multiply"):
            terms = [self._concat(term["inputs"]) for term in message["terms"]]
            leader = self._leader(terms)
            spread = [self._spread(term, leader) for term in terms]
            if len({values.shape for values in spread}) != 1:
                raise EvaluationError(f"expected terms of equal width, got {[values.shape[1] for values in spread]}")
            result = sum(spread[1:], spread[0]) if kind == "add" else math.prod(spread[1:], start=spread[0])
            return Rows(leader.level, result, leader.sequence)
        if kind == "dot":
            left, right = self._concat(message["left"]), self._concat(message["right"])
            leader = self._leader([left, right])
            product = self._spread(left, leader) * self._spread(right, leader)
            return Rows(leader.level, product.sum(axis=1, keepdims=True), leader.sequence)
        if kind == "targetAttention":
            query, keys, values = (self._concat(message[part]) for part in ("query", "keys", "values"))
            if keys.sequence != values.sequence or SEQUENCE in (query.level,) or keys.level != SEQUENCE:
                raise EvaluationError("expected a query outside, keys and values of one sequence")
            pooled = attention.target_attention(
                message, query.values, keys.values, values.values, self.real[keys.sequence], self.tensor,
                bf16=self.manifest.get("precision") == "BF16",
            )
            return Rows(query.level, pooled)
        rows = self._concat(layer["inputs"])
        if kind == "selfAttention":
            result = attention.self_attention(message, rows.values, self.real[rows.sequence], self.tensor)
        elif kind == "pooling":
            return Rows(USER, attention.pooling(message, rows.values, self.real[rows.sequence]))
        elif kind == "dense":
            result = dense(message, rows.values, self.tensor)
        elif kind == "mlp":
            result = rows.values
            for part in message["layers"]:
                result = dense(part, result, self.tensor)
        elif kind == "layerNorm":
            result = layer_norm(message, rows.values, self.tensor)
        elif kind == "activation":
            result = activate(message["function"], message.get("parameters", {}), rows.values, self.tensor)
        elif kind == "batchNorm":
            result = batch_norm(message, rows.values, self.tensor)
        else:
            raise EvaluationError(f"kind {kind} is not known")
        return Rows(rows.level, result, rows.sequence)

    # --- Outputs ----------------------------------------------------------------------------------------------------

    def _output(self, output):
        rows = self.rows[output["input"]]
        if rows.values.shape[1] != 1 or rows.level == SEQUENCE:
            raise EvaluationError(
                f'output "{output["name"]}": expected one number a candidate, got {rows.level} rows of '
                f"{rows.values.shape[1]}"
            )
        raw = np.repeat(rows.values[:, 0], self.encoded.candidates) if rows.level == USER else rows.values[:, 0]
        if not np.isfinite(raw).all():
            raise EvaluationError(f'output "{output["name"]}": it reads a pad behavior that has no value')
        return raw.copy() if output["link"] == "RAW" else np.array([_calibrated(output, z) for z in raw])


def _bag(table, rows, kind):
    if len(rows) == 0:
        return np.zeros(table.width)
    return table.rows(rows).sum(axis=0) / (len(rows) if kind == "BAG_MEAN" else 1)


def _calibrated(output, z):
    """The probability of the logit z, after the output's calibration."""
    p = _sigmoid(z)
    if "negativeDownsampling" in output:
        return p / (p + (1 - p) / output["negativeDownsampling"]["rate"])
    if "platt" in output:
        return _sigmoid(output["platt"]["slope"] * z + output["platt"]["intercept"])
    if "piecewiseLinear" in output:
        points = output["piecewiseLinear"]
        return float(np.interp(p, [0.0, *points["x"], 1.0], [0.0, *points["y"], 1.0]))
    return p


def _sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
