"""Takes over a model that another library trained.

    python3 -m dinghy_export import --from LIBRARY --help
    python3 -m dinghy_export import --from LIBRARY --checkpoint FILE ... \\
        --name NAME --version N --out MODEL_ROOT

LIBRARY is deepctr-torch, fuxictr, recbole, sasrec-pytorch, torch (a module of
your own) or torcheasyrec; each has options of its own, which its help lists.
"""

import argparse
import datetime
import importlib
import os
import shutil
import sys
import textwrap
import traceback

from dinghy_export.bundle import write_bundle
from dinghy_export.goldens import golden_requests_of, read_lines
from dinghy_export.precision import add_precision_option, add_tables_option, lower

# One line a library: its name, its module in dinghy_export.importers.
IMPORTERS = {
    "deepctr-torch": "deepctr_torch",
    "fuxictr": "fuxictr",
    "recbole": "recbole",
    "sasrec-pytorch": "sasrec_pytorch",
    "torch": "own_module",
    "torcheasyrec": "torcheasyrec",
}


def main(arguments=None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] != "import":
        print(__doc__.strip(), file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"], ["help"]) else 2
    choice = argparse.ArgumentParser(prog="dinghy_export import", add_help=False)
    choice.add_argument("--from", dest="source", choices=list(IMPORTERS), metavar="LIBRARY")
    chosen, _ = choice.parse_known_args(arguments[1:])
    importer = (
        importlib.import_module(f"dinghy_export.importers.{IMPORTERS[chosen.source]}") if chosen.source else None
    )
    args = _parser(importer).parse_args(arguments[1:])
    try:
        built = importer.import_model(args)
        lines = read_lines(args.expected) if args.expected else []
        if args.expected and not lines:
            raise ValueError(f"{args.expected}: expected scores of the library, a ScoreLog a line, got an empty file")
        expected = built.expected + lines
        goldens = golden_requests_of(built, [] if built.expected else None, expected)
        built.notes += lower(
            built.manifest, built.tensors, goldens, built.encoder(), precision=args.precision, tables=args.tables
        )
        folder = write_bundle(
            args.out, args.version, built.manifest, built.tensors, goldens, built.catalog, built.vocabularies
        )
    except (ValueError, OSError) as error:
        by_system = isinstance(error, OSError) and error.strerror and error.filename is not None
        print(f"refused: {f'{error.filename}: {error.strerror}' if by_system else error}", file=sys.stderr)
        return 1
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        if chosen.source == "torch":  # the user's own program
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"refused: expected a configuration and a checkpoint of {chosen.source}, got values of another kind "
            f"({type(error).__name__}: {error}, in {os.path.basename(place.filename)}:{place.lineno})",
            file=sys.stderr,
        )
        return 1
    for note in built.notes:
        print(f"note: {note}")
    if not expected:
        print("note: the golden requests say what the manifest says; --expected proves it against the library")
    print(folder)
    return 0


def _fitted(text):
    """Paragraphs filled to the terminal's width; what is indented stays as it is, to be copied."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else textwrap.fill(part, width) for part in paragraphs)


def _parser(importer):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    parser = argparse.ArgumentParser(
        prog="dinghy_export import",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=_fitted(importer.__doc__ if importer else __doc__),
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        choices=list(IMPORTERS),
        metavar="LIBRARY",
        help=f"the library: {', '.join(IMPORTERS)}",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        required=getattr(importer, "NEEDS_CHECKPOINT", True),
        help="the weights: PyTorch (zip or legacy) or safetensors",
    )
    parser.add_argument("--name", required=True, help="the model's name, a folder in the model root")
    parser.add_argument("--version", required=True, type=int, metavar="N", help="its version, which must be new")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="model root, where <name>/<version>/ is written")
    parser.add_argument(
        "--expected",
        metavar="FILE",
        help="JSON lines of ScoreLog: requests, and outputs that the library gave them; the "
        "import is refused where it gives something else",
    )
    parser.add_argument("--data", default="", metavar="TEXT", help="for the record: what data it was trained on")
    parser.add_argument("--created", default=now, metavar="TIME", help="for the record: when, RFC 3339; default: now")
    add_precision_option(parser)
    add_tables_option(parser)
    if importer is not None:
        importer.add_arguments(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
