"""The floor plan of DESIGN.md, section 2: which folder may include which, and who may see oneDNN.

    python3 tests/includes_test.py [UNITTEST ARGUMENTS]
"""
import os
import re
import tempfile
import unittest

# folder -> folders it may include from, beside itself; the longest matching folder counts.
ALLOWED = {
    "proto": [],
    "features": ["proto"],
    "features/behavior": ["proto", "features"],
    "model/ops": [],
    "model/layers": ["proto", "features", "model/ops", "model"],
    "model": ["proto", "features", "model/ops", "model/layers"],
    "server/replay": ["proto", "features", "features/behavior", "model", "model/ops"],
    "server/workers": ["proto", "features", "features/behavior", "model", "model/ops"],
    "server/bench": ["proto", "features", "model", "model/ops", "server/replay", "server/workers"],
    "server": ["proto", "features", "features/behavior", "model", "model/ops", "server/replay", "server/bench",
               "server/workers"],
}
# Of model itself, layers sees only these.
LAYERS_SEE = {"model/model_options.h", "model/tensor.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def folder_of(path):
    """The entry of ALLOWED that a path belongs to, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in ALLOWED:
        folder = os.path.dirname(folder)
    return folder or None


def violations(root):
    """Every include against the floor plan, as 'file:line: message'."""
    found = []
    for top in ("proto", "features", "model", "server"):
        for where, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if not name.endswith((".h", ".cc")):
                    continue
                path = os.path.relpath(os.path.join(where, name), root)
                for number, line in enumerate(open(os.path.join(root, path), encoding="utf-8"), 1):
                    match = INCLUDE.match(line)
                    if match:
                        message = fault(path, match.group(1))
                        if message:
                            found.append(f"{path}:{number}: {message}")
    return found


def fault(path, included):
    source = folder_of(path)
    if re.search(r"(^|/)(dnnl|oneapi/dnnl)", included):
        return None if source == "model/ops" else f"only model/ops may include {included}"
    if included.split("/")[0] == "tests":
        return f"sources may not include {included}"
    target = folder_of(included)
    if target is None or target == source:
        return None
    if target not in ALLOWED[source]:
        return f"{source} may not include {included}"
    if source == "model/layers" and target == "model" and included not in LAYERS_SEE:
        return f"model/layers may include only {', '.join(sorted(LAYERS_SEE))} of model, not {included}"
    return None


class Includes(unittest.TestCase):
    def test_sources_keep_to_the_floor_plan(self):
        root = os.environ.get("DINGHY_SOURCE", os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self.assertEqual([], violations(root))

    def test_bad_includes_are_found(self):
        bad = {
            "features/a.cc": '#include "model/model.h"',
            "features/b.cc": '#include "features/behavior/store.h"',
            "model/c.cc": '#include "features/behavior/store.h"',
            "model/d.cc": '#include "server/scorer.h"',
            "model/layers/e.cc": '#include <oneapi/dnnl/dnnl.hpp>',
            "model/layers/f.cc": '#include "model/bundle.h"',
            "model/ops/g.cc": '#include "proto/bundle.pb.h"',
            "server/h.cc": '#include "dnnl.hpp"',
            "server/i.cc": '#include "tests/testing/test_bundle.h"',
        }
        good = {
            "features/behavior/j.cc": '#include "features/feature_batch.h"\n#include <string>',
            "model/ops/k.cc": '#include <dnnl.hpp>\n#include "model/ops/gemm.h"',
            "model/layers/l.cc": '#include "model/tensor.h"',
            "server/m.cc": '#include "features/behavior/store.h"\n#include "model/model.h"',
        }
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**bad, **good}.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text + "\n")
            self.assertEqual(sorted(bad), sorted(v.split(":")[0] for v in violations(root)))


if __name__ == "__main__":
    unittest.main()
