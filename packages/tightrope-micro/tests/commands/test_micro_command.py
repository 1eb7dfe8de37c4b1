"""The commands ``tightrope micro compile`` and ``tightrope micro profile``."""

import json
from pathlib import Path

import pytest

from tests.cli.command import run
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler

TRAIN = """
import torch


class Net(torch.nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.act = torch.nn.Softplus() if smooth else torch.nn.ReLU()
        self.fc = torch.nn.Linear(4 * 4 * 4, 3)

    def forward(self, x, y):
        return torch.nn.functional.cross_entropy(self.fc(self.act(self.conv(x)).flatten(1)), y)


def build(smooth=False):
    torch.manual_seed(0)
    model = Net(smooth)
    return model, (torch.randn(2, 1, 6, 6), torch.tensor([0, 2])), torch.optim.SGD(model.parameters(), lr=0.1)


def smooth():
    return build(smooth=True)


def without():
    return build()[:2]


def block():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.LayerNorm(40), torch.nn.Linear(40, 40), torch.nn.GELU()).eval()
    model[0].eps = 0.0
    return model, (torch.randn(1, 40),), [(torch.randn(1, 40),) for _ in range(8)]
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("micro") / "train.py"
    file.write_text(TRAIN)
    return file


def test_it_compiles_and_profiles_as_promised(train: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        "micro", "compile", f"{train}:build", "--machine", "nrf52840", "--ram", "6KiB", "-o", out, "--json"
    )
    assert done.code == 0, done.err
    promised = json.loads(done.out)
    assert promised["ram"] <= promised["ram_limit"] == 6144
    assert "page_in(" in (out / "step.c").read_text()
    assert "conv (train.py:" in (out / "step.c").read_text()
    if c_compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) is installed")
    seen = run("micro", "profile", out, "--json")
    assert seen.code == 0, seen.err
    measured = json.loads(seen.out)
    assert measured["holds"]
    for name in ("arena", "pages_in", "bytes_in", "pages_out", "bytes_out"):
        assert measured[name]["measured"] == measured[name]["promised"] == promised[name]
    if not missing_tools():
        assert measured["ram"]["measured"] <= promised["ram"]
        assert measured["instructions"] > 0
    assert "arena" in run("micro", "profile", out).out


@pytest.mark.parametrize(
    ("target", "options", "code", "says"),
    [
        ("build", ("--ram", "3KiB"), 3, "The next limit to try is"),
        ("smooth", ("--ram", "6KiB"), 2, "aten.softplus.default in act (train.py:"),
        ("without", ("--ram", "6KiB"), 2, "must return (model, inputs, optimizer)"),
        ("build", ("--ram", "6KiB", "--machine", "nrf99"), 2, "no machine 'nrf99'"),
        ("build", ("--ram", "1GiB"), 2, "has 262144 B"),
        ("build", ("--ram", "much"), 2, "much"),
        ("block", ("--ram", "6KiB", "--integer", "--sparse"), 2, "--sparse chooses what a step updates"),
        ("block", ("--ram", "6KiB", "--integer", "--seconds", "1"), 2, "are of a training step"),
        ("block", ("--ram", "6KiB", "--infer", "--objective", "joules"), 2, "are of a training step"),
        ("block", ("--ram", "6KiB", "--infer", "--no-recompute"), 2, "--no-recompute is of a training step"),
        ("build", ("--ram", "2300", "--sparse"), 3, "The next limit to try is"),
        ("build", ("--ram", "6KiB", "--core", "cortex-m3"), 2, "give --integer with them"),
        ("build", ("--ram", "6KiB", "--infer", "--stream-error", "0.1"), 2, "give --integer with them"),
        ("block", ("--ram", "6KiB", "--integer", "--stream-error", "nan"), 2, "give 0 or more"),
        ("block", ("--ram", "6KiB", "--integer", "--core", "z80"), 2, "are known for core 'z80'"),
        ("block", ("--ram", "6KiB", "--integer", "--core", "none", "--float-kernels"), 2, "no core is given"),
    ],
)
def test_refusals_leave_no_folder(
    target: str, options: tuple[str, ...], code: int, says: str, train: Path, tmp_path: Path
) -> None:
    done = run("micro", "compile", f"{train}:{target}", *options, "-o", tmp_path / "out")
    assert (done.code, says in done.err) == (code, True), done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "forms"),
    [
        (("--core", "none"), ["polynomial", "table"]),
        (("--core", "cortex-m3"), ["table", "table"]),
        (("--core", "x86-64-v3", "--float-kernels"), ["float", "float"]),
    ],
)
def test_a_core_chooses_the_forms_of_kernels(
    options: tuple[str, ...], forms: list[str], train: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = run(
        "micro", "compile", f"{train}:block", "--integer", "--ram", "8KiB", *options, "-o", out, "--json"
    )
    assert done.code == 0, done.err
    promised = json.loads(done.out)
    assert list(promised["forms"].values()) == forms
    assert ("float" in (out / "net.c").read_text()) == ("float" in forms)


@pytest.mark.slow
def test_a_sparse_step_says_what_it_updates(train: Path, tmp_path: Path) -> None:
    command = ("micro", "compile", f"{train}:build", "--ram", "6KiB", "-o", tmp_path / "out", "--json")
    every = json.loads(run(*command).out)
    limit = 0.9 * every["seconds_modelled"]
    some = json.loads(run(*command, "--sparse", "--seconds", limit).out)
    assert every["updated"] == "fc.weight, fc.bias, conv.weight, conv.bias"
    assert set(some["updated"].split(", ")) < set(every["updated"].split(", "))
    assert some["seconds_modelled"] <= limit


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    done = run("micro", "profile", tmp_path)
    assert (done.code, "manifest.json" in done.err) == (2, True)
    (tmp_path / "manifest.json").write_text('{"machine": 1}')
    done = run("micro", "profile", tmp_path)
    assert (done.code, "is not a manifest" in done.err) == (2, True)


@pytest.mark.slow
def test_counts_that_differ_from_the_promise_are_told(train: Path, tmp_path: Path) -> None:
    if c_compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) is installed")
    out = tmp_path / "out"
    assert run("micro", "compile", f"{train}:build", "--ram", "6KiB", "-o", out).code == 0
    text = (out / "step.c").read_text()
    line = next(line for line in text.splitlines() if line.lstrip().startswith("page_in("))
    (out / "step.c").write_text(text.replace(line, f"{line}\n{line}"))
    assert run("micro", "profile", out).code == 3
