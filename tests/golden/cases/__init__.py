"""Golden cases: one module a library, which knows how its cases are laid out.

build(case, tensors) -> (Built, requests, expectations):

    case          what case.json holds
    tensors       the state dict, name -> array
    requests      ScoreRequests, sequences inline
    expectations  Expectation, for every output that the case has

A model that Dinghy does not serve raises NotSupported.
"""

from dataclasses import dataclass

import numpy as np

SCORE, VALUE = "score", "value"
# The bar of the cases, absolute: on probabilities, and on every other output.
PROBABILITY_BAR, OTHER_BAR = 1e-5, 1e-4


class NotSupported(Exception):
    """The case names a model that is not served; the text says which."""


@dataclass
class Expectation:
    """What one request must give.

    `kind`: SCORE, where `name` is an output and `rows` picks candidates; or VALUE, where `name` is a layer or feature
    and `rows` picks its rows. `rows`: an index, a slice, or None for all. `expected`: of the shape that this picks.
    """

    request: int
    kind: str
    name: str
    rows: object
    expected: np.ndarray
    bar: float
    label: str = ""  # the case's name of it
