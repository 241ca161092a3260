"""What the tests of the float64 evaluator share: PyTorch modules as messages, random numbers, comparison."""

import numpy as np
import torch


def seeded(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Tensors(dict):
    """Tensors by name; put() names one."""

    def put(self, values, name=None):
        name = name or f"t{len(self)}"
        self[name] = values.detach().numpy().astype(np.float64)
        return name

    def linear(self, module, activation="LINEAR"):
        return {
            "weight": self.put(module.weight),
            "bias": "" if module.bias is None else self.put(module.bias),
            "activation": activation,
        }

    def norm(self, module):
        return {"weight": self.put(module.weight), "bias": self.put(module.bias), "epsilon": module.eps}


def randomize(module, seed=3):
    generator = torch.Generator().manual_seed(seed)
    module.double().eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 0.7)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.abs_().add_(0.1)
    return module


def close(test, got, expected):
    expected = expected.detach().numpy() if torch.is_tensor(expected) else np.asarray(expected)
    test.assertEqual(got.shape, expected.shape)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11)
