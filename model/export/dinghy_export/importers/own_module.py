"""A PyTorch module of your own, which a function of yours maps onto layers.

    python3 -m dinghy_export import --from torch \\
        --module own_module.py:export --name books --version 1 --out models

calls export() of own_module.py, or export(FILE) where it takes an argument and --checkpoint FILE is given. It returns a
Built (dinghy_export.builder), made with dinghy_export.modules and dinghy_export.attention, with the scores of the
module itself in `built.expected` (dinghy_export.goldens.module_goldens): the import is refused where the bundle gives
something else. The file is run as any Python program is; import only what you trust.
model/export/examples/own_module.py is a whole example.
"""

import importlib.util
import inspect
import os
import sys

from dinghy_export.builder import Built
from dinghy_export.importers.weights import ImportRefused

NEEDS_CHECKPOINT = False


def add_arguments(parser) -> None:
    parser.add_argument("--module", required=True, metavar="FILE.py:FUNCTION", help="what returns the Built")


def import_model(args) -> Built:
    function = load_function(args.module)
    built = call(args.module, function, args.checkpoint)
    if not isinstance(built, Built):
        raise ImportRefused(f"{args.module}: expected a Built, as Builder.build returns it, got {type(built).__name__}")
    if not built.expected and not args.expected:
        raise ImportRefused(f"{args.module}: expected the module's scores in built.expected (goldens.module_goldens), "
                            f"or --expected FILE, got neither: nothing would prove that the bundle is the module")
    built.manifest["name"] = args.name
    if args.data:
        built.manifest["provenance"]["data"] = args.data
    return built


def load_function(place):
    """The function of "FILE.py:FUNCTION"; the file may import its neighbours."""
    path, separator, name = place.rpartition(":")
    if not separator or not path or not name.isidentifier():
        raise ImportRefused(f"--module: expected FILE.py:FUNCTION, got {place}")
    if not os.path.isfile(path):
        raise ImportRefused(f"--module: expected a Python file, got {path}, which is not there")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    title = os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(title, path)
    if spec is None:
        raise ImportRefused(f"--module: expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module  # where dataclasses and pickles look a class up
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        got = "none" if function is None else type(function).__name__
        raise ImportRefused(f"--module: expected a function {name} in {path}, got {got}")
    return function


def call(place, function, checkpoint):
    parameters = inspect.signature(function).parameters.values()
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in takes if p.default is p.empty]
    if checkpoint is None:
        if needed:
            raise ImportRefused(f"{place}: it takes {needed[0].name}: give --checkpoint")
        return function()
    if not takes or len(needed) > 1:
        raise ImportRefused(f"{place}: expected a function of one argument for --checkpoint, got {len(needed)}")
    return function(checkpoint)
