"""Layouts that kernels really give, and what is derived from them."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tightrope.capture.relay import relay


def seen(x: Tensor) -> Tensor:
    return x.sin().view(6, 4).cos()


def test_what_can_be_no_view_any_more_is_one_of_a_copy() -> None:
    module = make_fx(seen, tracing_mode="fake")(torch.ones(2, 3, 4))
    (sine,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    relay(module.graph, {sine.name: {-1: (torch.float32, (12, 1, 3), 0)}})
    module.recompile()
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    aten = torch.ops.aten
    assert targets == [op.default for op in (aten.sin, aten.clone, aten.view, aten.cos)]
    assert sine.meta["val"].stride() == (12, 1, 3)
    x = torch.rand(2, 3, 4)
    odd = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(module(odd), seen(x))
