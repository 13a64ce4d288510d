"""What a GPU records of gates, and which products it may round."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headwise.heads import COMPONENTS
from headwise.metrics import metric
from headwise.model.forward.kernels import tf32_products
from headwise.model.measure.engine import Engine
from helpers import word_model, word_task


class Indexed(TorchDispatchMode):
    """Counts how often a tensor is indexed by one that was just made of Python numbers."""

    def __init__(self):
        super().__init__()
        self.made, self.found = [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index.Tensor:
            self.found += any(one is made for one in args[1] for made in self.made)
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten.lift_fresh.default:
            self.made.append(result)
        return result


def test_gates_of_modules_are_not_picked_by_a_list_of_numbers():
    # The list lies in main memory, from where a CUDA graph cannot copy.
    engine = Engine(word_model("llama"), word_task(2), metric("logit_diff"), components=COMPONENTS)
    gates = torch.full((2, *engine.layout.shape), 0.5, requires_grad=True)
    with Indexed() as seen:
        engine.differentiable(engine.table.block([0, 1]), gates).sum().backward()
    assert (gates.grad[:, :, -1] != 0).all()
    assert seen.found == 0
    with Indexed() as seen:
        assert gates.detach()[:, 0, [1]].shape == (2, 1)
    assert seen.found == 1


@pytest.mark.parametrize(("device", "inside"), [("cuda", "high"), ("cpu", "highest")])
def test_only_a_gpu_rounds_products_and_only_meanwhile(device, inside):
    with suppress(ZeroDivisionError), tf32_products(torch.device(device)):
        assert torch.get_float32_matmul_precision() == inside
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "highest"
