"""Golden requests: requests with everything inline and the scores that they must get.

They travel in the bundle, and the server scores them when it loads it. Beside the requests given, they cover an empty
history, one behavior, a full history and one that is cut, an item outside the vocabulary, an item that is in no catalog
and brings its own features, and many candidates.

    golden_requests(model, requests)                   # of a ReferenceModel: its scores
    golden_requests_of(built)                          # of a Built: what its manifest says, computed by evaluate()
    golden_requests_of(built, expected=read_lines(f))  # and what the library that trained it says, compared first
    built.expected = module_goldens(built, requests, score)  # what a module of your own says
"""

import copy
import json

import numpy as np
import torch

from dinghy_export.evaluate import evaluate
from dinghy_export.features import collate, column_rows
from dinghy_export.manifest import encoder_of
from dinghy_export.random_requests import random_requests

TOLERANCE = 1e-5  # of probabilities
RAW_TOLERANCE = 1e-4  # of raw outputs
MANY_CANDIDATES = 150
UNKNOWN_INTEGER = 987654321987
UNKNOWN_TEXT = "an item that nobody knows"


def golden_requests(model, requests, catalog=None) -> list:
    """ScoreLogs of `requests` (ScoreRequest dicts, sequences inline; the first needs at least two candidates and two
    behaviors in each sequence) and of requests derived from the first."""
    spec = model.spec
    encoder = encoder_of(spec, catalog)
    base = requests[0]
    derived = {
        "empty history": _with_behaviors(base, lambda sequence: 0),
        "one behavior": _with_behaviors(base, lambda sequence: 1),
        "full history": _with_behaviors(base, lambda sequence: sequence.max_length, spec),
        "history to be cut": _with_behaviors(base, lambda sequence: sequence.max_length + 7, spec),
        "unknown items": _with_unknown_items(spec, base, encoder),
        "many candidates": _with_candidates(base, MANY_CANDIDATES),
    }
    inline = _with_inline_features(spec, base, catalog)
    if inline is not None:
        derived["new item with its own features"] = inline
    named = [(f"request {index}", request) for index, request in enumerate(requests)] + list(derived.items())
    return [_golden(model, encoder, name, request) for name, request in named]


class GoldenMismatch(ValueError):
    """What was built does not give what the library gave."""


def golden_requests_of(built, requests=None, expected=(), seed=20240601) -> list:
    """ScoreLogs for a Built.

    `requests`: ScoreRequests with sequences inline, or None for random ones with the edges; their scores are those of
    evaluate(). `expected`: ScoreLogs whose outputs the library itself computed, on the same weights. Raises
    GoldenMismatch where evaluate() is further from them than the bar: 1e-5 for probabilities, 1e-4 for raw outputs.
    """
    encoder, links = built.encoder(), {output["name"]: output["link"] for output in built.manifest["outputs"]}
    logs, worst = [], 0.0
    for line, log in enumerate(expected):
        try:
            title, scores = _expected_of(built, line, log)
            computed = evaluate(built.manifest, built.tensors, encoder.encode(log["request"])).scores
        except (KeyError, TypeError, AttributeError) as error:
            raise GoldenMismatch(f"expected requests, line {line + 1}: expected a ScoreLog of proto/score_log.proto as "
                                 f"JSON, got one that is not ({type(error).__name__}: {error})") from None
        worst = max(worst, _compare(title, links, scores, computed))
        logs += _logs_of(links, {**log["request"], "model": built.manifest["name"]}, title, scores)
    if expected:
        built.notes.append(f"{len(expected)} requests of the library's own: largest difference {worst:.1e}")
    if requests is None:
        named = random_requests(built, seed)
    else:
        named = [(request.get("requestId") or f"request {index}", request) for index, request in enumerate(requests)]
    for title, request in named:
        scores = evaluate(built.manifest, built.tensors, encoder.encode(request)).scores
        logs += _logs_of(links, {**request, "model": built.manifest["name"]}, title, scores)
    return logs


def module_goldens(built, requests, score, seed=20240601) -> list:
    """ScoreLogs, for Built.expected, of `requests` and of random ones with the edges: an empty history, one behavior, a
    full one, one to be cut, unknown ids, many candidates. `score`: function from a ScoreRequest to {output: a number for
    each candidate}, computed by the module itself in evaluation mode: a probability, or the raw number where the
    output's link is RAW."""
    named = [(request.get("requestId") or f"request {index}", request) for index, request in enumerate(requests)]
    logs = []
    for title, request in named + random_requests(built, seed):
        outputs = []
        for output, values in score(request).items():
            values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64)
            if not np.isfinite(values).all():
                raise GoldenMismatch(f'request "{title}": output "{output}": expected finite numbers of the module, '
                                     f"got {values[~np.isfinite(values)].flat[0]}")
            outputs.append({"output": output, "scores": values})
        logs.append({"request": {**request, "requestId": title}, "outputs": outputs})
    return logs


def read_lines(path) -> list:
    """Messages of a file of JSON lines."""
    messages = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    messages.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"{path}:{number}: expected a line of JSON, got {error}") from None
    return messages


def _expected_of(built, line, log):
    """The title and the scores by output of a ScoreLog that the library made."""
    if not isinstance(log, dict) or not isinstance(log.get("request"), dict):
        raise GoldenMismatch(
            f"expected requests, line {line + 1}: expected a ScoreLog with a request, got {str(log)[:60]}")
    request = log["request"]
    title = request.get("requestId") or f"line {line + 1}"
    inline = {data["sequence"] for data in request.get("sequences", [])}
    for sequence in built.manifest["sequences"]:
        if sequence["name"] not in inline:
            raise GoldenMismatch(f'request "{title}": sequence "{sequence["name"]}": expected it inline (an empty '
                                 f"history as empty columns), got none")
    outputs = log.get("outputs", [])
    return title, {output["output"]: np.asarray(output["scores"], dtype=np.float64) for output in outputs}


def _compare(title, links, expected, scores):
    """The largest difference; raises GoldenMismatch where one is above its bar."""
    if not expected:
        raise GoldenMismatch(f'request "{title}": expected outputs of the library, got none')
    worst = 0.0
    for output, values in expected.items():
        if output not in links:
            raise GoldenMismatch(f'request "{title}": output "{output}": expected one of {", ".join(links)}')
        got, bar = scores[output], TOLERANCE if links[output] == "SIGMOID" else RAW_TOLERANCE
        if got.shape != values.shape:
            raise GoldenMismatch(f'request "{title}": output "{output}": expected {len(got)} scores, got '
                                 + (str(len(values)) if values.ndim == 1 else f"an array of shape {list(values.shape)}"))
        difference = np.abs(got - values)
        if not (difference <= bar).all():
            at = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
            raise GoldenMismatch(
                f'request "{title}": output "{output}", candidate {at}: the library gave {values[at]:.7g}, this import '
                f"gives {got[at]:.7g}; the bar is {bar:g}. The options of the import are not those of the training, or "
                f"the requests were not scored with these weights in evaluation mode")
        worst = max(worst, float(difference.max(initial=0.0)))
    return worst


def _logs_of(links, request, title, scores):
    """A ScoreLog for each bar that the outputs have."""
    logs = []
    for link, bar in (("SIGMOID", TOLERANCE), ("RAW", RAW_TOLERANCE)):
        chosen = {output: values for output, values in scores.items() if links[output] == link}
        if chosen:
            limited = {"outputs": list(chosen)} if len(chosen) < len(links) else {}
            logs.append({
                "request": {**request, "requestId": title, **limited},
                "outputs": [{"output": output, "scores": [np.float32(value) for value in values]}
                            for output, values in chosen.items()],
                "tolerance": bar,
            })
    return logs


def scores_of(model, encoder, request) -> dict:
    """Probabilities by output, float32 [candidates], of one request scored alone in eval mode."""
    training = model.training
    model.eval()
    with torch.no_grad():
        scores = model.probabilities(collate([encoder.encode(request)]))
    model.train(training)
    return {output: values[0].numpy() for output, values in scores.items()}


def _golden(model, encoder, name, request):
    read = {sequence.name for sequence in model.read_sequences()}
    request = dict(copy.deepcopy(request), requestId=name, model=model.spec.name)
    request["sequences"] = [data for data in request.get("sequences", []) if data["sequence"] in read]
    scores = scores_of(model, encoder, request)
    return {
        "request": request,
        "outputs": [{"output": output, "scores": list(values)} for output, values in scores.items()],
        "tolerance": TOLERANCE,
    }


def _with_behaviors(request, count_of, spec=None):
    """The request with its sequences repeated or cut to a number of behaviors; `spec` None: the same for all."""
    request = copy.deepcopy(request)
    by_name = {sequence.name: sequence for sequence in spec.sequences} if spec else {}
    for data in request["sequences"]:
        count = count_of(by_name.get(data["sequence"]))
        rows = len(data["eventTimeMs"]) if "eventTimeMs" in data else len(column_rows(data["columns"][0])[1])
        # The newest behaviors, preceded by copies of all, as many as needed.
        picks = [row % rows for row in range(-count, 0)]
        if "eventTimeMs" in data:
            times = [int(data["eventTimeMs"][row]) for row in picks]
            for row in range(count - 2, -1, -1):
                times[row] = min(times[row], times[row + 1])
            data["eventTimeMs"] = times
        data["columns"] = [_pick(column, picks) for column in data["columns"]]
    return request


def _with_candidates(request, count):
    request = copy.deepcopy(request)
    rows = len(column_rows(request["candidates"][0])[1])
    picks = [row % rows for row in range(count)]
    request["candidates"] = [_pick(column, picks) for column in request["candidates"]]
    return request


def _with_unknown_items(spec, request, encoder):
    """Unknown ids as a candidate and, where there is one, as the newest behavior. Where the features of the model let
    no unknown item in, the request stays as it is."""
    changed = copy.deepcopy(request)
    columns = [column for column in changed["candidates"] if column["feature"] == spec.item_feature]
    unknown = [UNKNOWN_INTEGER, -5] if "ints" in columns[0] else [UNKNOWN_TEXT, UNKNOWN_TEXT]
    _replace(columns[0], 0, unknown[0])
    _replace(columns[0], 1, unknown[1])
    for data in changed["sequences"]:
        for column in data["columns"]:
            if column["feature"] == spec.item_feature:
                _replace(column, -1, unknown[0])
    try:
        encoder.encode(changed)
    except ValueError:
        return copy.deepcopy(request)
    return changed


def _with_inline_features(spec, request, catalog):
    """A new item among the candidates with the catalog features of its neighbour, all inline; None without catalog."""
    names = [feature.name for feature in spec.candidate if feature.source == "CATALOG"]
    item_feature = spec.candidate_feature(spec.item_feature)
    if catalog is None or not names or item_feature.unknown == "REFUSE":
        return None
    columns = {column["feature"]: column for column in catalog["columns"]}
    place = {item: row for row, item in enumerate(column_rows(columns[spec.item_feature])[1])}
    request = copy.deepcopy(request)
    items = next(column for column in request["candidates"] if column["feature"] == spec.item_feature)
    ids = column_rows(items)[1]
    if any(item not in place for item in ids):
        return None
    request["candidates"] = [column for column in request["candidates"] if column["feature"] not in names]
    request["candidates"] += [_pick(columns[name], [place[item] for item in ids]) for name in names]
    _replace(items, 0, UNKNOWN_INTEGER if "ints" in items else UNKNOWN_TEXT)
    return request


def _pick(column, picks):
    """The column with these rows."""
    kind, rows = column_rows(column)
    rows = [rows[row] for row in picks]
    picked = {"feature": column["feature"]}
    if column.get("lengths") is not None and len(column["lengths"]):
        picked[kind] = {"values": [value for row in rows for value in row]}
        picked["lengths"] = [len(row) for row in rows]
    else:
        picked[kind] = {"values": rows}
    return picked


def _replace(column, row, value):
    kind = "ints" if "ints" in column else "strings"
    values = list(column[kind]["values"])
    values[row] = value
    column[kind] = {"values": values}
