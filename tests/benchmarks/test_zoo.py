"""The zoo: every net trains, is repeatable, and is what its file says it is."""

import doctest
import re
import sys

import pytest
import torch
from torch import Tensor, nn

import benchmarks.zoo
from benchmarks.zoo import REGISTRY, Case, build, optimizer
from benchmarks.zoo.densenet import DEPTHS_121, DenseNet
from benchmarks.zoo.lora import LoraLinear
from benchmarks.zoo.mobilenet import STAGES, MobileNetV2
from benchmarks.zoo.resnet import BasicBlock, Bottleneck, ResNet
from benchmarks.zoo.tree_lstm import random_merges
from benchmarks.zoo.vgg import DEPTHS_16, Vgg
from benchmarks.zoo.vit import Vit
from tightrope.core import TightropeError

WANTED = {
    "gpt2",
    "bert",
    "vit",
    "llama",
    "resnet18",
    "resnet50",
    "vgg16",
    "unet",
    "densenet121",
    "mobilenetv2",
    "llama_lora",
    "moe",
    "inplace_tied",
    "custom_function",
    "tree_lstm",
}


def _step(case: Case, *, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    loss: Tensor = case.model(*case.inputs)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def _has(model: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())


def test_the_zoo_has_the_nets_that_benchmarks_name() -> None:
    assert set(REGISTRY) >= WANTED


@pytest.mark.parametrize("name", REGISTRY)
def test_one_training_step_gives_a_finite_loss_and_finite_gradients(name: str) -> None:
    case = build(name, scale="test")
    loss = _step(case)
    assert case.model.training
    assert loss.shape == ()
    assert loss.isfinite()
    for path, parameter in case.model.named_parameters():
        assert parameter.dtype == torch.float32, path
        if parameter.requires_grad:
            assert parameter.grad is not None, path
            assert parameter.grad.isfinite().all(), path
            assert parameter.grad.any(), f"{path}: a zero gradient compares equal to any bug that drops it"
        else:
            assert parameter.grad is None, path


@pytest.mark.parametrize("name", REGISTRY)
def test_a_seed_fixes_weights_inputs_and_loss(name: str) -> None:
    first, second, other = (build(name, seed=seed, scale="test") for seed in (3, 3, 4))
    assert torch.equal(_step(first), _step(second))
    for one, two in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        assert one.grad is None or (two.grad is not None and torch.equal(one.grad, two.grad))
    assert not torch.equal(_step(first), _step(other))


@pytest.mark.parametrize("name", REGISTRY)
def test_building_leaves_the_global_random_state_alone(name: str) -> None:
    before = torch.get_rng_state()
    build(name, scale="test")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_dropout_tag_says_whether_the_global_random_state_matters(name: str) -> None:
    case = build(name, scale="test")
    losses = {float(_step(case, seed=seed)) for seed in range(4)}
    assert (len(losses) > 1) == ("dropout" in case.tags)


@pytest.mark.parametrize("name", REGISTRY)
def test_tags_agree_with_the_modules(name: str) -> None:
    model, tags = build(name, scale="test").model, REGISTRY[name].tags
    owners = [parameter for module in model.modules() for parameter in module.parameters(recurse=False)]
    in_place = any(getattr(module, "inplace", False) for module in model.modules())
    assert ("batchnorm" in tags) == _has(model, nn.BatchNorm2d)
    assert ("lora" in tags) == _has(model, LoraLinear)
    assert ("tied" in tags) == (len(owners) != len({id(parameter) for parameter in owners}))
    assert ("inplace" in tags) == in_place


@pytest.mark.few(6)
@pytest.mark.parametrize("name", REGISTRY)
def test_the_file_of_a_net_states_its_parameter_counts(name: str) -> None:
    text = sys.modules[_home(name)].__doc__ or ""
    stated = dict(re.findall(rf"^    {name} +(bench|test) .* ([\d,]+)$", text, re.MULTILINE))
    counted = {scale: f"{build(name, scale=scale).num_parameters:,}" for scale in ("bench", "test")}
    assert stated == counted


def _home(name: str) -> str:
    make = REGISTRY[name].make
    return str(getattr(make, "func", make).__module__)


@pytest.mark.parametrize(
    ("make", "published"),
    [
        (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 64, num_classes=1000), 11_689_512),
        (lambda: ResNet(Bottleneck, (3, 4, 6, 3), 64, num_classes=1000), 25_557_032),
        (lambda: Vgg(DEPTHS_16, 64, pool=7, hidden=4096, num_classes=1000), 138_357_544),
        (lambda: DenseNet(DEPTHS_121, growth=32, width=64, num_classes=1000), 7_978_856),
        (lambda: MobileNetV2(STAGES, stem=32, last=1280, num_classes=1000), 3_504_872),
        (lambda: Vit(size=224, patch=16, width=768, depth=12, num_heads=12, num_classes=1000), 86_567_656),
    ],
    ids=["resnet18", "resnet50", "vgg16", "densenet121", "mobilenetv2", "vit_b_16"],
)
def test_full_size_nets_have_the_published_parameter_count(make: object, published: int) -> None:
    assert callable(make)
    with torch.device("meta"):
        net = make()
    assert sum(parameter.numel() for parameter in net.parameters()) == published


def test_another_tree_gives_another_loss_from_the_same_weights() -> None:
    case = build("tree_lstm", scale="test")
    leaves, merges, target = case.inputs
    torch.manual_seed(1)
    other = random_merges(len(leaves))
    assert not torch.equal(merges, other)
    assert not torch.equal(case.model(leaves, merges, target), case.model(leaves, other, target))


@pytest.mark.parametrize("num_leaves", [2, 3, 17])
def test_random_merges_use_every_node_but_the_root_once(num_leaves: int) -> None:
    merges = random_merges(num_leaves)
    assert sorted(merges.flatten().tolist()) == list(range(2 * num_leaves - 2))
    assert all(max(row) < num_leaves + i for i, row in enumerate(merges.tolist()))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["llama_lora", "resnet18"])
def test_optimizers_move_exactly_the_trainable_parameters(name: str, kind: str) -> None:
    case = build(name, scale="test")
    before = {path: parameter.detach().clone() for path, parameter in case.model.named_parameters()}
    _step(case)
    optimizer(case, kind, lr=0.1).step()  # type: ignore[arg-type]
    for path, parameter in case.model.named_parameters():
        assert torch.equal(parameter, before[path]) != parameter.requires_grad, path


def test_unknown_names_are_refused_with_the_possible_ones() -> None:
    with pytest.raises(TightropeError, match="resnet18"):
        build("resnet19")
    with pytest.raises(TightropeError, match="bench, test"):
        build("resnet18", scale="huge")  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match="sgd, adamw"):
        optimizer(build("unet", scale="test"), "lion")  # type: ignore[arg-type]


def test_the_examples_in_the_docstrings_run() -> None:
    assert doctest.testmod(benchmarks.zoo) == doctest.TestResults(failed=0, attempted=4)


# Dynamo instantiates an autograd.Function while it traces one, and torch warns about that.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in REGISTRY.items() if "dynamic" not in entry.tags])
def test_every_static_net_is_one_graph_with_the_eager_bits(name: str) -> None:
    eager, compiled = build(name, scale="test"), build(name, scale="test")
    want = _step(eager)
    torch.compiler.reset()
    run = torch.compile(compiled.model, backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    got = run(*compiled.inputs)
    got.backward()
    assert torch.equal(got.detach(), want)
    for one, two in zip(eager.model.parameters(), compiled.model.parameters(), strict=True):
        assert one.grad is None or (two.grad is not None and torch.equal(one.grad, two.grad))
