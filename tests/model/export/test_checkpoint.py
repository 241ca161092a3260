"""Reading checkpoints: every form that torch writes, and files that would run something if they could."""

import collections
import io
import os
import pickle
import struct
import tempfile
import unittest
import zipfile

import numpy as np
import torch
from torch import nn

from dinghy_export import safetensors
from dinghy_export.importers.checkpoint import read_checkpoint
from dinghy_export.importers.unpickling import CheckpointError, Inert, InertUnpickler, StoredTensor
from dinghy_export.importers.weights import ImportRefused, Weights

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Config(dict):
    """A class that only its trainer knows."""

    def __init__(self):
        super().__init__(width=3)
        self.layers = [8, 4]
        self.when = collections.Counter("aab")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("kept", torch.arange(3.0))
        self.register_buffer("dropped", torch.zeros(1), persistent=False)
        self.stack = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU())


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.root.name, "model.pth")

    def tearDown(self):
        self.root.cleanup()

    def save(self, value, zipped, path=None):
        path = path or self.path
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
        return path

    def both(self, value):
        for zipped in (True, False):
            with self.subTest(zipped=zipped):
                yield read_checkpoint(self.save(value, zipped))

    def refused(self, text, path=None):
        with self.assertRaisesRegex(CheckpointError, text) as caught:
            read_checkpoint(path or self.path)
        self.assertIn(path or self.path, str(caught.exception))

    # --- What it reads ----------------------------------------------------------------------------------------------

    def test_every_dtype(self):
        torch.manual_seed(1)
        state = {str(dtype): (torch.randn(3, 5) * 50).to(dtype) for dtype in DTYPES}
        for checkpoint in self.both(state):
            self.assertEqual(list(checkpoint.tensors), list(state))
            for name, tensor in state.items():
                expected = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
                np.testing.assert_array_equal(checkpoint.tensors[name], expected.numpy())
                self.assertEqual(checkpoint.tensors[name].dtype, expected.numpy().dtype)

    def test_views_are_read_in_their_logical_order(self):
        base = torch.arange(24.0).reshape(4, 6)
        state = {
            "base": base,
            "transposed": base.t(),
            "part": base[1:3, ::2],
            "row": base[2],
            "repeated": base[0].expand(3, 6),
            "scalar": base[3, 5],
            "empty": base[:0],
            "permuted": base.reshape(2, 3, 4).permute(2, 0, 1),
        }
        for checkpoint in self.both(state):
            for name, tensor in state.items():
                np.testing.assert_array_equal(checkpoint.tensors[name], tensor.numpy())
                self.assertTrue(checkpoint.tensors[name].flags.c_contiguous)

    def test_parameters_and_the_places_of_state_dicts(self):
        net = Net()
        expected = net.state_dict()
        for value in (
            expected,
            dict(expected),
            {"state_dict": expected, "epoch": 3},
            {"model_state_dict": expected},
            {"state_dict": expected, "means": np.zeros(3)},
            collections.OrderedDict(
                (name, nn.Parameter(tensor) if tensor.is_floating_point() else tensor)
                for name, tensor in expected.items()
            ),
        ):
            for checkpoint in self.both(value):
                self.assertEqual(list(checkpoint.tensors), list(expected))
                for name, tensor in expected.items():
                    np.testing.assert_array_equal(checkpoint.tensors[name], tensor.detach().numpy())

    def test_other_objects(self):
        value = {
            "state_dict": {"w": torch.ones(2)},
            "config": Config(),
            "numbers": np.arange(6.0).reshape(2, 3),
            "one": np.float32(1.5),
            "big": np.arange(3, dtype=">i4"),
            "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
            "texts": np.array(["a", "bc"]),
            "any": np.array([{"k": 1}, None], dtype=object),
            "set": {1, 2},
            "bytes": b"\x00\xff",
            "size": torch.Size([2, 3]),
            "device": torch.device("cpu"),
            "dtype": torch.float16,
        }
        for checkpoint in self.both(value):
            objects = checkpoint.objects
            config = objects["config"]
            self.assertIsInstance(config, Inert)
            self.assertEqual(config.path, f"{Config.__module__}.Config")
            self.assertEqual(config.items, [("width", 3)])
            self.assertEqual(config.attribute("layers"), [8, 4])
            self.assertEqual(config.attribute("when").args, ({"a": 2, "b": 1},))
            for name in ("numbers", "big", "columns", "texts", "any"):
                np.testing.assert_array_equal(objects[name], value[name])
            self.assertEqual(objects["one"], 1.5)
            self.assertEqual((objects["set"], objects["bytes"], objects["size"]), ({1, 2}, b"\x00\xff", (2, 3)))
            self.assertEqual(objects["device"].args, ("cpu",))
            self.assertIsInstance(objects["state_dict"]["w"], StoredTensor)

    def test_module_pickled_whole(self):
        net = Net().eval()
        for checkpoint in self.both(net):
            self.assertEqual(
                list(checkpoint.tensors),
                [
                    "kept",
                    "linear.weight",
                    "linear.bias",
                    "norm.weight",
                    "norm.bias",
                    "norm.running_mean",
                    "norm.running_var",
                    "norm.num_batches_tracked",
                    "stack.0.weight",
                ],
            )
            for name, tensor in net.state_dict().items():
                np.testing.assert_array_equal(checkpoint.tensors[name], tensor.numpy())
            self.assertRegex(checkpoint.notes[0], r"pickled whole \(.*Net\)")
            Weights.of_checkpoint(checkpoint).take("linear.weight", [2, 3])

    def test_module_left_in_training_mode(self):
        for checkpoint in self.both(Net()):
            with self.assertRaisesRegex(
                ImportRefused,
                r"evaluation mode, got one pickled in training mode, where "
                r"norm \(BatchNorm1d\) computes something else; call eval\(\)",
            ):
                Weights.of_checkpoint(checkpoint)
        harmless = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        for checkpoint in self.both(harmless):
            Weights.of_checkpoint(checkpoint).take("0.weight", [2, 2])

    def test_untyped_storages_as_torch_2_writes_them(self):
        data = pickled_call(
            "torch._utils", "_rebuild_tensor_v3", ("storage", "torch.storage", "UntypedStorage"), "float32"
        )
        with zipfile.ZipFile(self.path, "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/data/0", np.arange(6, dtype=">f4").tobytes())
            archive.writestr("archive/byteorder", "big")
        np.testing.assert_array_equal(read_checkpoint(self.path).tensors["w"], np.arange(6.0).reshape(2, 3))

    def test_big_endian(self):
        value = {"w": torch.arange(6.0), "n": torch.arange(3), "b": torch.arange(4.0).bfloat16()}
        self.save(value, True)
        swapped = os.path.join(self.root.name, "swapped.pth")
        with zipfile.ZipFile(self.path) as archive, zipfile.ZipFile(swapped, "w") as copy:
            for name in archive.namelist():
                content = archive.read(name)
                if name.endswith("/byteorder"):  # written by PyTorch 2
                    continue
                if "/data/" in name:
                    size = {24: 4, 8: 2}[len(content)] if name[-1] != "1" else 8
                    content = np.frombuffer(content, dtype=f"u{size}").byteswap().tobytes()
                copy.writestr(name, content)
            copy.writestr("model/byteorder", b"big")
        tensors = read_checkpoint(swapped).tensors
        np.testing.assert_array_equal(tensors["w"], np.arange(6.0))
        np.testing.assert_array_equal(tensors["n"], np.arange(3))
        np.testing.assert_array_equal(tensors["b"], np.arange(4.0))

    def test_names_that_wrappers_put_before(self):
        """torch.compile and DataParallel, one inside the other."""
        for prefix in ("module.", "_orig_mod.", "_orig_mod.module."):
            self.save({f"{prefix}a.b": torch.arange(3.0), f"{prefix}c": torch.ones(2)}, True)
            checkpoint = read_checkpoint(self.path)
            self.assertEqual(list(checkpoint.tensors), ["a.b", "c"])
            self.assertEqual(
                checkpoint.notes,
                [f'every tensor is named "{prefix}...", as by torch.compile or DataParallel; ' "it is left out"],
            )
        self.save({"module.a": torch.ones(2), "b": torch.ones(2)}, True)
        self.assertEqual(list(read_checkpoint(self.path).tensors), ["module.a", "b"])

    def test_safetensors(self):
        safetensors.write(self.path, {"a.b": np.arange(6, dtype=np.float32).reshape(2, 3)})
        np.testing.assert_array_equal(read_checkpoint(self.path).tensors["a.b"], np.arange(6.0).reshape(2, 3))
        bits = torch.tensor([1.5, -2.0]).bfloat16().view(torch.int16).numpy().tobytes()
        half = b'"h":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}'
        header = b"{" + half + b',"n":{"dtype":"I64","shape":[],"data_offsets":[4,12]}}'
        with open(self.path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header + bits + struct.pack("<q", -7))
        tensors = read_checkpoint(self.path).tensors
        np.testing.assert_array_equal(tensors["h"], [1.5, -2.0])
        self.assertEqual(tensors["n"], -7)

    def test_safetensors_that_contradict_themselves(self):
        a, b = ('"%s":{"dtype":"I16","shape":[2],"data_offsets":[%d,%d]}' % entry for entry in (("a", 0, 4), ("b", 2, 6)))
        hole = b.replace("[2,6]", "[6,10]")
        for header, size, message in (
            ([a, a.replace("[0,4]", "[4,8]")], 8, 'expected "a" once, got it twice'),
            ([a, b], 6, 'tensor "b": expected to begin at byte 4, got 2'),
            ([a, hole], 10, 'tensor "b": expected to begin at byte 4, got 6'),
            ([a], 6, "expected 4 bytes of tensors, got 6"),
        ):
            text = ("{" + ",".join(header) + "}").encode()
            with open(self.path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + b"\0" * size)
            self.refused(message)

    def test_names_and_storages_are_told_apart(self):
        torch.save({1: torch.zeros(1), "1": torch.ones(1)}, self.path)
        self.refused("expected names of tensors, got 1")
        tensor = torch.zeros(3)
        for legacy in (False, True):
            torch.save([tensor, tensor[1:]], self.path, _use_new_zipfile_serialization=not legacy)
            self.refused("expected a state dict, got list")  # one storage, named twice
        with zipfile.ZipFile(self.path, "w") as archive:
            first = pickled_call("torch._utils", "_rebuild_tensor_v3", ("storage", "torch", "FloatStorage"), "float32", 6)
            other = pickled_call("torch._utils", "_rebuild_tensor_v3", ("storage", "torch", "IntStorage"), "int32", 6)
            archive.writestr("archive/data.pkl", first[:-1] + other[2:-1] + b"\x86.")
            archive.writestr("archive/data/0", b"\0" * 24)
        self.refused('storage "0": expected 6 of float32 as before, got 6 of int32')

    # --- What it does not run ---------------------------------------------------------------------------------------

    def test_nothing_from_the_file_is_run(self):
        made = os.path.join(self.root.name, "made")
        value = {"state_dict": {"w": torch.arange(3.0)}, "config": Runs(made), "more": [Runs(made)]}
        self.save(value, True)
        torch.load(self.path, weights_only=False)  # the default of PyTorch before 2.6
        self.assertTrue(os.path.exists(made), "the file does not run anything even where it could")
        os.remove(made)
        for checkpoint in self.both(value):
            np.testing.assert_array_equal(checkpoint.tensors["w"], [0, 1, 2])
            self.assertEqual(checkpoint.objects["config"].path, f"{os.system.__module__}.system")
            self.assertEqual(checkpoint.objects["config"].args, (f"touch {made}",))
            self.assertFalse(os.path.exists(made))

    def test_every_way_a_pickle_calls(self):
        made = os.path.join(self.root.name, "made").encode()
        command = b"S'touch " + made + b"'\n"
        programs = {
            "reduce": b"cos\nsystem\n(" + command + b"tR.",
            "inst": b"(" + command + b"ios\nsystem\n.",
            "obj": b"(cos\nsystem\n" + command + b"o.",
            "newobj": b"\x80\x02cos\nsystem\n(" + command + b"t\x81.",
            "newobj_ex": b"\x80\x04cos\nsystem\n(" + command + b"t}\x92.",
            "eval": b"cbuiltins\neval\n(S'open(" + repr(made.decode()).encode().replace(b"'", b'"') + b',"w")\'\ntR.',
            "getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR(" + command + b"tR.",
            "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93(" + command + b"tR.",
            "import": b"cbuiltins\n__import__\n(S'antigravity'\ntR.",
            "nested name": b"\x80\x04\x8c\x05torch\x8c\x0e_utils.os.path\x93(" + command + b"tR.",
        }
        for name, program in programs.items():
            with self.subTest(name):
                try:
                    result = InertUnpickler(io.BytesIO(program)).load()
                    self.assertIsInstance(result, Inert)
                except (TypeError, CheckpointError):
                    pass  # an Inert is not called: that ends the reading
                self.assertFalse(os.path.exists(made))

    def test_stand_ins_are_not_changed(self):
        for name in (b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nfloat32\n"):
            for state in (b"}S'dtype'\nS'int8'\nsb.", b"(N}S'dtype'\nS'int8'\nstb."):
                with self.assertRaisesRegex(CheckpointError, "a change of torch itself"):
                    InertUnpickler(io.BytesIO(name + state)).load()

    # --- What it refuses --------------------------------------------------------------------------------------------

    def test_cut_off_files(self):
        value = {"w": torch.arange(1000.0)}
        for zipped in (True, False):
            self.save(value, zipped)
            with open(self.path, "rb") as file:
                whole = file.read()
            for size in (0, 1, 7, 50, len(whole) // 2, len(whole) - 1):
                with self.subTest(zipped=zipped, size=size):
                    with open(self.path, "wb") as file:
                        file.write(whole[:size])
                    self.refused("")
        self.save(value, False)
        with open(self.path, "r+b") as file:
            file.truncate(os.path.getsize(self.path) - 1)
        self.refused("expected 4000 more bytes, got 3999: the file is cut off")

    def test_files_that_contradict_themselves(self):
        cases = {
            "storage .0.: expected at least 24 bytes for a tensor \\[2, 3\\], got 20": (20, "float32"),
            "storage .0.: expected 24 bytes, got 23": (24, "float32", 23),
        }
        for message, (size, dtype, *real) in cases.items():
            with zipfile.ZipFile(self.path, "w") as archive:
                archive.writestr(
                    "archive/data.pkl",
                    pickled_call(
                        "torch._utils",
                        "_rebuild_tensor_v3",
                        ("storage", "torch.storage", "UntypedStorage"),
                        dtype,
                        size,
                    ),
                )
                archive.writestr("archive/data/0", b"\0" * (real[0] if real else size))
            self.refused(message)

    def test_what_is_no_checkpoint(self):
        with open(self.path, "wb") as file:
            pickle.dump({"a": 1}, file)
        self.refused("expected a PyTorch or safetensors file, got a pickle of something else")
        with open(self.path, "wb") as file:
            file.write(b"no checkpoint at all")
        self.refused("damaged or of another kind")
        self.save({"config": 3, "weights": {}}, True)
        self.refused(
            "expected tensors, or one of state_dict, model_state_dict, got a dict with the keys config, weights"
        )
        self.save({"state_dict": {"w": torch.ones(1)}, "model_state_dict": {"w": torch.ones(1)}}, True)
        self.refused("expected tensors, or one of")
        self.save([torch.ones(1)], True)
        self.refused("expected a state dict, got list")
        torch.jit.script(nn.Linear(2, 2)).save(self.path)
        self.refused("got a TorchScript program; save the module's state_dict")
        self.save({"w": torch.ones(1), "sparse": torch.eye(2).to_sparse()}, True)
        self.assertEqual(read_checkpoint(self.path).unread, {"sparse": "torch._utils._rebuild_sparse_tensor"})
        with self.assertRaises(FileNotFoundError):
            read_checkpoint(self.path + ".absent")


def pickled_call(module, name, storage, dtype, size=24):
    """{"w": module.name(storage 0, 0, (2, 3), (3, 1), False, None, torch.<dtype>)} by hand, in protocol 2."""
    kind, storage_module, storage_name = storage
    return (
        b"\x80\x02}U\x01w"
        + f"c{module}\n{name}\n".encode()
        + b"((U\x07"
        + kind.encode()
        + f"c{storage_module}\n{storage_name}\n".encode()
        + b"U\x010U\x03cpuK"
        + bytes([size])
        + b"tQ"
        + b"K\x00K\x02K\x03\x86K\x03K\x01\x86\x89N"
        + f"ctorch\n{dtype}\n".encode()
        + b"tRs."
    )


if __name__ == "__main__":
    unittest.main()
