#!/usr/bin/python3
"""roundtrip_torcheasyrec.py: MultiTowerDIN trained by TorchEasyRec, imported and served; see roundtrip.py.

TorchEasyRec does not run beside Debian's PyTorch 1.13: it asks for PyTorch 2.12, torchrec and fbgemm_gpu (8 GB from
PyPI), and is itself not there. So this is skipped, unless two variables are set:

    TORCHEASYREC_SOURCE  a clone of https://github.com/alibaba/TorchEasyRec at 54cac31
    TORCHEASYREC_PYTHON  an interpreter with torch==2.12.1 torchrec==1.7.0 torchmetrics==1.0.3 "protobuf<5" pyarrow
                         pandas psutil fsspec scikit-learn tensorboard anytree safetensors urllib3 requests parameterized,
                         and fbgemm-gpu-cpu==1.7.0 (pip install --no-deps) in place of fbgemm-gpu

Packages that TorchEasyRec takes from its vendor's server, such as pyfg, are replaced by stand-ins: with data of fg_mode
FG_NONE they do nothing. The cases tests/golden/tzrec_* were made by the same classes.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import roundtrip

NAME = "multi_tower_din"
LENGTH, ROWS, STEPS = 6, 64, 20
HISTORIES = (0, 1, 2, LENGTH, LENGTH)  # TorchEasyRec does not cut data of fg_mode FG_NONE
VENDOR = ("pyfg", "graphlearn", "common_io", "odps", "alibabacloud_credentials", "feature_store_py", "confluent_kafka")


def main():
    python, source = (os.environ.get(f"TORCHEASYREC_{name}") for name in ("PYTHON", "SOURCE"))
    if not python or not source:
        roundtrip.skip("TorchEasyRec needs PyTorch 2.12, torchrec and fbgemm_gpu, which do not install beside Debian's "
                       "PyTorch 1.13 (fbgemm_gpu's first build for CPUs needs 2.0), and is not on PyPI; set "
                       "TORCHEASYREC_PYTHON and TORCHEASYREC_SOURCE, see this file")
    with tempfile.TemporaryDirectory() as folder:
        roundtrip.train(python, os.path.abspath(__file__), folder)
        roundtrip.check(folder, NAME, [
            "--from", "torcheasyrec", "--config", f"{folder}/pipeline.config", "--checkpoint", f"{folder}/model.pth",
            "--item", "ad", "--action", "click", "--keep", "oldest", "--order", "oldest-first"])


# --- In TorchEasyRec's environment ----------------------------------------------------------------------------------


class StandIns:
    """Finds modules of the vendor's packages, and makes something of everything that is asked of them."""

    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self) if name.split(".")[0] in VENDOR else None

    def create_module(self, spec):
        from unittest.mock import MagicMock

        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        # TorchEasyRec replaces the __init__ of this class when it is imported.
        module.EcsRamRoleCredentialsProvider = type("Provider", (), {"__init__": lambda self: None})
        return module

    def exec_module(self, module):
        pass


def train(folder):
    source = os.path.join(folder, "source")
    shutil.copytree(os.path.join(os.environ["TORCHEASYREC_SOURCE"], "tzrec"), os.path.join(source, "tzrec"))
    protos = [os.path.join(place, name) for place, _, names in os.walk(os.path.join(source, "tzrec", "protos"))
              for name in names if name.endswith(".proto")]
    subprocess.run(["protoc", "-I", source, "--python_out", source, *protos], check=True)
    sys.path.insert(0, source)
    sys.meta_path.append(StandIns())
    import torch
    from google.protobuf import text_format
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from tzrec.datasets.data_parser import DataParser
    from tzrec.features.feature import FgMode, create_features
    from tzrec.models.model import TrainWrapper
    from tzrec.models.multi_tower_din import MultiTowerDIN
    from tzrec.protos.pipeline_pb2 import EasyRecConfig
    from tzrec.utils.checkpoint_util import save_model
    from tzrec.utils.state_dict_util import init_parameters

    with open(os.path.join(os.environ["DINGHY_SOURCE"], "tests/golden/tzrec_multi_tower_din/case.json")) as file:
        text = json.load(file)["meta"]["config"]
    # With any padding, the gradients of SelfAttentionEncoder are NaN.
    text = "\n".join(line for line in text.splitlines() if "self_attention_encoder" not in line)
    with open(os.path.join(folder, "pipeline.config"), "w", encoding="utf-8") as file:
        file.write(text)
    config = text_format.Parse(text, EasyRecConfig())
    features = create_features(list(config.feature_configs), fg_mode=FgMode.FG_NONE)
    torch.manual_seed(3)
    model = MultiTowerDIN(model_config=config.model_config, features=features, labels=["clk"])
    init_parameters(model, device=torch.device("cpu"))
    wrapper = TrainWrapper(model).train()
    parser = DataParser(features, labels=["clk"])
    draw = random.Random(7)
    batch_of = lambda rows: parser.to_batch(parser.parse(columns_of(rows)))
    rows = [row_of(draw, user_of(draw, draw.randint(0, LENGTH))) for _ in range(ROWS)]
    optimizer = torch.optim.Adam(wrapper.parameters(), lr=0.02)
    for _ in range(STEPS):
        loss, _ = wrapper(batch_of(rows))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_model(os.path.join(folder, "checkpoint"), wrapper)
    dcp_to_torch_save(os.path.join(folder, "checkpoint", "model"), os.path.join(folder, "model.pth"))
    logs = []
    model.eval()
    for number, length in enumerate(HISTORIES):
        user = user_of(draw, length)
        rows = [row_of(draw, user) for _ in range(8)]
        with torch.no_grad():
            scores = model.predict(batch_of(rows))["probs"].tolist()
        logs.append((request_of(f"history {number}", user, rows), {"probs": scores}))
    every = [score for _, outputs in logs for score in outputs["probs"]]
    assert max(every) - min(every) > 1e-2, f"scores that hardly differ prove nothing: {every}"
    roundtrip.write_expected(folder, NAME, logs)


def user_of(draw, length):
    return {"user_id": draw.randrange(9) if draw.random() < 0.8 else None, "age": round(draw.uniform(-1, 1), 3),
            "clicks": [(draw.randrange(8), draw.randrange(5), round(draw.uniform(-2, 2), 3)) for _ in range(length)]}


def row_of(draw, user):
    return {**user, "ad": draw.randrange(8), "cate": draw.randrange(5), "price": draw.randrange(3),
            "tags": [draw.randrange(6) for _ in range(draw.randrange(3))],
            "image": [round(draw.uniform(-1, 1), 3), 0.25]}


def columns_of(rows):
    import pyarrow as pa

    integers, numbers = pa.int64(), pa.float32()
    kinds = {"user_id": integers, "ad": integers, "cate": integers, "price": integers, "age": numbers,
             "tags": pa.list_(integers), "image": pa.list_(numbers)}
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()}
    for place, (name, kind) in enumerate((("ad", integers), ("cate", integers), ("dwell", numbers))):
        values = [[click[place] for click in row["clicks"]] for row in rows]
        columns[f"clicks__{name}"] = pa.array(values, pa.list_(kind))
    columns["clk"] = pa.array([int(row["ad"] % 3 == 0) for row in rows], integers)
    return columns


def request_of(name, user, rows):
    def column(feature, kind, values, lengths=None):
        return {"feature": feature, kind: {"values": values}, **({} if lengths is None else {"lengths": lengths})}

    candidates = [column(feature, "ints", [row[feature] for row in rows]) for feature in ("ad", "cate", "price")]
    for feature, kind in (("tags", "ints"), ("image", "floats")):
        values = [value for row in rows for value in row[feature]]
        candidates.append(column(feature, kind, values, [len(row[feature]) for row in rows]))
    clicks = [column(feature, kind, [click[place] for click in user["clicks"]])
              for place, (feature, kind) in enumerate((("ad", "ints"), ("cate", "ints"), ("dwell", "floats")))]
    given = [] if user["user_id"] is None else [column("user_id", "ints", [user["user_id"]])]
    return {"requestId": name, "user": [column("age", "floats", [user["age"]]), *given], "candidates": candidates,
            "sequences": [{"sequence": "clicks", "columns": clicks}]}


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        main()
