"""Options of the import command that name features: lists, assignments, files.

split_names(["a,b", "c"])                          # ["a", "b", "c"]
split_assignments("--actions", ["clicks=click"])   # {"clicks": "click"}
"""

import json

from dinghy_export.importers.weights import ImportRefused


def add_level_arguments(parser):
    """--user and --candidate, which levels_of reads, and --catalog."""
    parser.add_argument("--user", action="append", metavar="FEATURE,...", help="features with one value a request")
    parser.add_argument(
        "--candidate", action="append", metavar="FEATURE,...", help="features with one value a candidate"
    )
    parser.add_argument("--catalog", metavar="FILE", help="features by item: protobuf JSON of a Catalog")


def split_names(texts) -> list:
    """The names in repeated options that take lists: ["a,b", "c"] -> ["a", "b", "c"]."""
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]


def split_assignments(option, texts) -> dict:
    """Repeated options of the form NAME=VALUE."""
    assignments = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise ImportRefused(f"{option}: expected NAME=VALUE, got {text!r}")
        if name in assignments:
            raise ImportRefused(f"{option}: expected {name!r} once, got it twice")
        assignments[name] = value
    return assignments


def levels_of(user, candidate) -> dict:
    """Feature -> USER or CANDIDATE, of the lists after --user and --candidate."""
    levels = dict.fromkeys(split_names(user), "USER")
    for name in split_names(candidate):
        if levels.setdefault(name, "CANDIDATE") != "CANDIDATE":
            raise ImportRefused(f'feature "{name}": expected --user or --candidate to name it, got both')
    return levels


def read_object(path) -> dict:
    """The object that a JSON file holds."""
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ImportRefused(f"{path}: expected JSON, got {error}") from None
    if not isinstance(content, dict):
        raise ImportRefused(f"{path}: expected an object, got {type(content).__name__}")
    return content
