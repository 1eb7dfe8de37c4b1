"""`tightrope ranks`: what it prints, and how it leaves."""

import json
from pathlib import Path

import pytest

from tests.cli.command import run
from tightrope.core import format_bytes
from tightrope_ranks.commands.ranks import PRECISION_NAMES
from tightrope_ranks.pipeline.precision import PRECISIONS

LAYERS = """
import torch


def build():
    with torch.device("meta"):
        return torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), torch.zeros(32, 64)


def model():
    return torch.nn.Linear(4, 4), torch.zeros(2, 4)


def two():
    return build()[0], (torch.zeros(32, 64), torch.zeros(32, 64))


def frozen():
    return build()[0].requires_grad_(False), torch.zeros(32, 64)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 64)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x, *, scale):
        x = self.first(x) * scale
        for block in self.blocks:
            x = block(x)
        return x.sum()


def net():
    return Net(), {"x": torch.zeros(32, 8), "scale": torch.ones(())}
"""
EXPERTS = """
import torch
import torch.nn.functional as F


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.up = torch.nn.Linear(64, 4), torch.nn.Parameter(torch.empty(4, 64, 64))

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        order = chosen.argsort()
        ends = torch.histc(chosen.float(), 4, 0, 3).cumsum(0).int()
        return x.index_add(0, order, F.grouped_mm(x[order], self.up, offs=ends))


def experts():
    with torch.device("meta"):
        layers = [Mixture().bfloat16() for _ in range(4)]
    return torch.nn.Sequential(*layers), torch.zeros(32, 64, dtype=torch.bfloat16)
"""
CLUSTER = """
name = "small"
devices = 4
flops = { matmul = 1e12 }
tiers = [{ name = "hbm", bytes = 1073741824 }]
links = [{ name = "ethernet", latency = 1e-5, bandwidth = 1e9 }]
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """A file with layers, and the options that name a cluster of four."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    (folder / "layers.py").write_text(LAYERS)
    (folder / "mixture.py").write_text(EXPERTS)
    (folder / "small.toml").write_text(CLUSTER)
    return f"{folder}/layers.py", ["--machine", str(folder / "small.toml"), "--ranks"]


def test_one_json_object_says_what_every_rank_takes(here: tuple[str, list[str]]) -> None:
    file, on = here
    done = run("ranks", f"{file}:build", *on, "4", "--pipeline", "2", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["pipeline_ranks"], found["replicas"], found["micro_batches"]) == (2, 2, 8)
    assert [one["devices"] for one in found["per_rank"]] == [[0, 1], [2, 3]]
    assert max(one["peak_bytes"] for one in found["per_rank"]) == found["peak_bytes"] <= found["limit_bytes"]
    assert found["estimated_seconds"] >= found["bound_seconds"] > 0
    forwards = [word for row in found["orders"] for word in row.split() if "F" in word]
    assert len(forwards) == found["stages"] * found["micro_batches_per_replica"]


def test_people_read_layout_schedule_bytes_and_times(here: tuple[str, list[str]]) -> None:
    file, on = here
    done = run("ranks", f"{file}:build", *on, "2", "--budget", "1MiB")
    assert done.code == 0, done.err
    for said in (
        "fits: 2 ranks as a pipeline of",
        "limit 1.00 MiB per rank on small",
        "schedule: ",
        "modelled",
    ):
        assert said in done.out


def test_a_page_shows_every_rank_of_the_pipeline(here: tuple[str, list[str]], tmp_path: Path) -> None:
    file, on = here
    page = tmp_path / "ranks.html"
    asked = ("ranks", f"{file}:build", *on, "4", "--pipeline", "2", "--page", str(page))
    done = run(*asked, "--json")
    assert done.code == 0, done.err
    found, text = json.loads(done.out), page.read_text()
    assert [f'<g data-rank="{rank}">' in text for rank in range(3)] == [True, True, False]
    assert "on 4 ranks: a pipeline of 2 and 2 replicas" in text
    for one in found["per_rank"]:
        assert f"rank {one['rank']}: at most {format_bytes(one['peak_bytes'])} of 1.00 GiB" in text
    page.unlink()
    assert run(*asked, "--budget", "1KiB").code == 3
    assert not page.exists()
    done = run(*asked[:-1], str(tmp_path / "none" / "ranks.html"))
    assert done.code == 2
    assert "none" in done.err


def test_any_model_with_a_list_of_layers_is_told(here: tuple[str, list[str]]) -> None:
    file, on = here
    done = run("ranks", f"{file}:net", *on, "2", "--pipeline", "2", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["layer_names"] == [
        "before the layers",
        *(f"blocks.{k}" for k in range(4)),
        "after the layers",
    ]
    assert max(some[1] for one in found["per_rank"] for some in one["layers"]) == 6
    done = run("ranks", f"{file}:net", *on, "2", "--pipeline", "2")
    assert "before the layers to blocks." in done.out


def test_notes_and_a_share_of_the_memory(here: tuple[str, list[str]]) -> None:
    file, on = here
    said = "nothing here requires a gradient: this is a forward pass alone, without a backward."
    done = run("ranks", f"{file}:frozen", *on, "2", "--budget", "50%", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["limit_bytes"] == 2**29
    assert found["notes"][0].startswith(said)
    assert said in " ".join(run("ranks", f"{file}:frozen", *on, "2").out.split())


def test_types_and_optimizers_change_what_is_held(here: tuple[str, list[str]]) -> None:
    file, on = here

    def held(*options: str) -> int:
        done = run("ranks", f"{file}:build", *on, "1", "--json", *options)
        assert done.code == 0, done.err
        (one,) = json.loads(done.out)["per_rank"]
        return int(one["held_bytes"]) // (4 * 65)

    adam, narrow = held(), held("--precision", "bf16-fp32-gradients")
    assert (adam, narrow) == (16 * 64, 18 * 64)
    divided = json.loads(run("ranks", f"{file}:build", *on, "4", "--json", "--sharded").out)
    assert divided["sharded"]
    assert divided["layers_computed_again"] == 0
    small = held("--precision", "bf16", "--optimizer", "adamw8bit")
    assert 10 * 64 <= small < 10.2 * 64


def test_too_few_bytes_leave_with_three(here: tuple[str, list[str]]) -> None:
    file, on = here
    asked = ("ranks", f"{file}:build", *on, "2", "--pipeline", "2", "--budget", "1KiB")
    done = run(*asked)
    assert done.code == 3
    assert "smallest plan found" in done.err
    done = run(*asked, "--json")
    assert done.code == 3
    found = json.loads(done.out)
    assert not found["fits"]
    assert found["limit_bytes"] == 1024 < found["smallest_found_bytes"]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("model", ["2"], "no sequence of layers"),
        ("two", ["2"], "called with tuple: give one tensor"),
        ("build", ["8"], "has devices = 4"),
        ("build", ["2", "--batch", "1,2"], "No such option"),
        ("build", ["2", "--optimizer", "best"], "no optimizer 'best'"),
        ("build", ["4", "--context", "2"], "no layer has attention"),
        ("build", ["2", "--tensor", "two"], "--tensor 'two': give a number from 1 to 1024, or any"),
        ("build", ["2", "--tensor", "0"], "--tensor '0': give a number"),
        ("build", ["2", "--precision", "fp8"], "precision='fp8': give one of model, fp32, bf16"),
    ],
)
def test_errors_leave_with_two(
    here: tuple[str, list[str]], function: str, options: list[str], message: str
) -> None:
    file, on = here
    done = run("ranks", f"{file}:{function}", *on, *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_the_names_of_types_are_those_that_there_are() -> None:
    assert tuple(PRECISIONS) == PRECISION_NAMES


def test_ranks_need_their_number_and_a_machine(here: tuple[str, list[str]]) -> None:
    file, _ = here
    for options, message in (([], "Missing option '--ranks'"), (["--ranks", "2"], "needs --machine")):
        done = run("ranks", f"{file}:build", *options)
        assert done.code == 2
        assert message in done.err


def test_help_shows_examples_that_are_parsed(here: tuple[str, list[str]], tmp_path: Path) -> None:
    file, on = here
    shown = run("ranks", "--help").out
    lines = [line.split()[1:] for line in shown.splitlines() if line.startswith("    tightrope ranks ")]
    assert len(lines) == 4
    given = {"layers.py:build": f"{file}:build", "cluster.toml": on[1], "64": "4", "8": "2"}
    given |= {"train.py:build": f"{file}:build", "512": "4"}
    given |= {name: str(tmp_path / name) for name in ("ranks.html", "run.toml")}
    for words in lines:
        done = run(*(given.get(word, word) for word in words))
        assert done.code == 0, done.err


def test_experts_are_divided_among_replicas_and_said(here: tuple[str, list[str]], tmp_path: Path) -> None:
    file, on = here
    mixture = file.replace("layers.py", "mixture.py")
    given = ("ranks", f"{mixture}:experts", *on, "4", "--pipeline", "1", "--expert")
    done = run(*given, "4", "--sharded", "--json", "--torchtitan", str(tmp_path / "run.toml"))
    assert "expert_parallel_degree = 4" in (tmp_path / "run.toml").read_text()
    found = json.loads(done.out)
    told = found["experts"]
    assert (found["expert_ranks"], told["ways"], told["parameters"]) == (4, 4, 4 * 2 * 64 * 64)
    assert (told["rows"], told["worst"]) == (2 * 32 * 64, 4 * 2 * 32 * 64)
    said = run(*given, "2").out
    assert "experts over 2 ranks: 64.00 KiB of parameters per rank" in said.replace("\n", " ")
    assert "not divide 4 experts and 4 ranks" in run(*given, "3").err
    assert "few': give a number" in run(*given, "few").err
