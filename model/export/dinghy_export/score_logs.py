"""Events for `dinghy ingest` and request logs for `dinghy replay`: JSON lines of protobuf JSON.

A log's requests carry no sequences: the server fetches the histories from its store, and the log's references say what
PyTorch gave for the same histories.
"""

import numpy as np

BASE_MS = 1546300800000  # 2019-01-01T00:00:00Z: data without times starts here
STEP_MS = 1000


def index_time(index):
    """Time of a user's behavior number `index` (0 is the oldest) in data without times."""
    return BASE_MS + STEP_MS * int(index)


def event(user_id, index, item, action, time_ms=None):
    """An Event; item: int for item_id, str for item_key."""
    key = "itemKey" if isinstance(item, str) else "itemId"
    return {"userId": user_id, "eventTimeMs": str(index_time(index) if time_ms is None else time_ms),
            "eventId": str(int(index)), key: item if isinstance(item, str) else str(int(item)), "action": action}


def column(feature, values, lengths=None):
    """A Column of ints, strings or floats, by the type of the first value."""
    values = list(values)
    if values and isinstance(values[0], str):
        entry = {"feature": feature, "strings": {"values": values}}
    elif values and isinstance(values[0], (float, np.floating)):
        entry = {"feature": feature, "floats": {"values": [number(value) for value in values]}}
    else:
        entry = {"feature": feature, "ints": {"values": [str(int(value)) for value in values]}}
    if lengths is not None:
        entry["lengths"] = [int(length) for length in lengths]
    return entry


def number(value):
    """A float32 with as few digits as tell it apart."""
    return float(str(np.float32(value)))


def score_log(request_id, model, user_id, time_ms, user, candidates, labels, scores, sequences=None):
    """A ScoreLog. user, candidates: Columns; labels, scores (PyTorch's): output -> one number per candidate;
    sequences: SequenceData, None to have the server fetch them."""
    request = {"requestId": request_id, "model": model, "userId": user_id, "requestTimeMs": str(int(time_ms)),
               "user": user, "candidates": candidates}
    if sequences is not None:
        request["sequences"] = sequences
    return {
        "request": request,
        "labels": [{"output": output, "values": [number(v) for v in values]} for output, values in labels.items()],
        "references": [{"output": output, "source": "pytorch", "scores": [number(v) for v in values]}
                       for output, values in scores.items()],
    }
