"""What a GPU changes: what is refused there, device by device, and on a real one the promise itself."""

import gc
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch._subclasses import FakeTensorMode

import tightrope
from tightrope.core import CaptureError, TightropeError
from tightrope.native import build
from tightrope.price import device as devices
from tightrope.run import step
from tightrope.run.session import on_gpu
from tightrope.run.session.on_gpu import (
    accounts_for,
    refuse_on_gpu,
    refuse_other_device,
    refuse_step_on_gpu,
    refuse_uncaptured_on_gpu,
)
from tightrope.run.session.unit import Settings

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or a torch without CUDA")


def test_arguments_that_need_the_cpu_are_refused_by_name() -> None:
    with pytest.raises(TightropeError, match=r"fuse=True .* on cuda:0"):
        refuse_on_gpu(GPU, Settings(2**30, fuse=True))
    paged: Any = object()
    with pytest.raises(TightropeError, match=r"page_to .* on cuda:0"):
        refuse_on_gpu(GPU, Settings(2**30, pages=paged))
    with pytest.raises(TightropeError, match=r'verify="eager" .* on cuda:0: use verify="graph"'):
        refuse_on_gpu(GPU, Settings(2**30, "eager"))
    refuse_on_gpu(GPU, Settings(2**30))
    refuse_on_gpu(CPU, Settings(2**30, fuse=True, pages=paged))


def test_steps_and_models_without_a_plan_are_refused_with_a_way_on() -> None:
    with pytest.raises(TightropeError, match=r"tightrope\.compile\(model, budget=\.\.\.\)"):
        refuse_step_on_gpu(GPU)
    with pytest.raises(CaptureError, match=r"because\. .*set_per_process_memory_fraction"):
        refuse_uncaptured_on_gpu(GPU, "because.")
    refuse_step_on_gpu(CPU)
    refuse_uncaptured_on_gpu(CPU, "because.")


def test_a_gpu_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nothing/c++")
    with pytest.raises(TightropeError, match=r"a model on cuda:0 .* C\+\+ compiler"):
        refuse_on_gpu(GPU, Settings(2**30))
    refuse_on_gpu(CPU, Settings(2**30))


def test_a_model_on_two_devices_is_refused() -> None:
    with FakeTensorMode():
        both = [torch.empty(2, device="cuda:0"), torch.empty(2)]
        gpus = [torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")]
    with pytest.raises(TightropeError, match="parameters on cpu and cuda:0: move all of them"):
        accounts_for(both, Settings(2**30))
    with pytest.raises(TightropeError, match="parameters on cuda:0 and cuda:1"):
        accounts_for(gpus, Settings(2**30))


def _on(devices: str) -> tightrope.Graph:
    graph = tightrope.capture(torch.nn.Linear(2, 2), torch.ones(1, 2))
    return replace(graph, name="Net", environment=(("device", devices),))


def test_a_graph_on_another_device_or_on_several_gpus_is_refused() -> None:
    with pytest.raises(TightropeError, match="parameters on cpu, and is called with tensors on cuda:0"):
        refuse_other_device(_on("cpu,cuda:0"), CPU)
    with pytest.raises(TightropeError, match="tensors on cuda:0 and cuda:1: use one GPU"):
        refuse_other_device(_on("cuda:0,cuda:1"), GPU)
    refuse_other_device(_on("cuda"), GPU)
    refuse_other_device(_on("cpu"), CPU)


@pytest.mark.parametrize("options", [{}, {"shapes": "bucket"}, {"fallback": "replay"}], ids=str)
def test_a_model_that_moved_after_it_was_compiled_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tightrope.compile(torch.nn.Linear(2, 2), budget="1GiB", progress=False, **options)
    monkeypatch.setattr(on_gpu, "device_named", lambda environment: GPU)
    with pytest.raises(TightropeError, match="parameters on cpu, and is called with tensors on cuda:0"):
        model(torch.ones(1, 2))


def test_a_step_of_a_model_that_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2)
    train = tightrope.step(lambda x: model(x).sum(), model=model, budget="1GiB", progress=False)
    monkeypatch.setattr(step, "device_named", lambda environment: GPU)
    with pytest.raises(TightropeError, match=r"tightrope\.step of a model on cuda:0"):
        train(torch.ones(1, 2))


def test_the_device_is_read_from_tensors_and_from_graphs() -> None:
    model = torch.nn.Linear(2, 2)
    assert accounts_for(list(model.parameters()), Settings(2**30)).device == CPU
    graph = tightrope.capture(model, torch.ones(1, 2))
    assert devices.device_named(graph.environment) == CPU
    assert devices.device_named((("device", "cpu,cuda:1"),)) == torch.device("cuda", 1)
    assert (devices.alignment_on(CPU), devices.alignment_on(GPU)) == (64, 512)
    assert graph.alignment == 64


def test_the_library_for_cuda_is_built_for_a_torch_with_cuda_alone() -> None:
    assert ("cuda_allocator" in build.sources()) == (torch.version.cuda is not None)


def test_a_saved_state_draws_the_same_numbers_again() -> None:
    saved = devices.saved_state(CPU)
    first = torch.rand(4)
    between = devices.random_state(CPU)
    with devices.in_state(saved):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(devices.random_state(CPU), between)


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1))
        for _ in range(8)
    ]
    return torch.nn.Sequential(*layers).cuda()


def _train(call: Any, model: torch.nn.Module, x: torch.Tensor) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    losses, gradients = [], []
    for _ in range(4):
        loss = call(x).square().mean()
        loss.backward()
        losses.append(float(loss))
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses, gradients


@needs_gpu
@pytest.mark.parametrize("budget", ["1GiB", "90%"])
def test_a_plan_on_a_gpu_keeps_the_budget_and_the_bits(budget: str) -> None:
    x = torch.randn(4096, 256, device="cuda")
    eager = _net()
    losses, gradients = _train(eager, eager, x)
    del eager
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    planned = tightrope.compile(_net(), budget=budget, progress=False)
    found, bits = _train(planned, planned, x)
    said = tightrope.report(planned)
    assert found == losses
    assert all(torch.equal(one, two) for one, two in zip(bits, gradients, strict=True))
    assert said.level == "L1"
    assert said.observed_peak == said.forecast_peak
    assert torch.cuda.max_memory_reserved() <= said.budget


@needs_gpu
def test_more_than_the_budget_is_refused_on_a_gpu() -> None:
    model = tightrope.compile(_net(), budget="200MiB", progress=False)
    with pytest.raises(tightrope.InfeasibleError) as refused:
        model(torch.randn(65536, 256, device="cuda")).sum().backward()
    assert refused.value.smallest_found is not None
    assert refused.value.smallest_found > 200 * 2**20
