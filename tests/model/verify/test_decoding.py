"""What batches of a family may do in generation, in any dtype."""

from __future__ import annotations

import pytest
import torch

from headwise.model.verify.shortcuts import decoding
from headwise.model.verify.tiny import tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("family", "prefix"), [("llama", True), ("bloom", True), ("mpt", False)])
def test_a_shared_beginning_is_read_once_only_where_padding_after_it_is_no_distance(family, prefix, dtype):
    """MPT's linear biases go by places in the batch; BLOOM's by the tokens that are no padding."""
    able = decoding(tiny_model(family).to(dtype).eval())
    assert (able.padding, able.cache, able.prefix) == (True, True, prefix)
