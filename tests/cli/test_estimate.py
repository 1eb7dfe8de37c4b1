"""`tightrope estimate`: what it answers holds."""

import gc
import json
import resource
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from command import run, run_process
from hypothesis import given
from hypothesis import strategies as st

import tightrope
from tightrope.capture.alike import ShortProgram
from tightrope.cli import estimate
from tightrope.cli.capturing import capture_target
from tightrope.cli.estimate import OPTIMIZERS, Asked, Step, describe
from tightrope.cli.estimating import SHOWN, _exactly
from tightrope.cli.machines import find_machine, names
from tightrope.cli.sizes import largest, resized
from tightrope.cli.target import Built, build
from tightrope.cli.ways import largest_that_fits, machines_for, smallest_machines, ways_out
from tightrope.core import InfeasibleError, TightropeError
from tightrope.price.table import price_graph
from tightrope.run.ledger.accounts import accounts
from tightrope.run.ledger.optimizer import Foresight

WORDS = """
import torch
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        blocks = (nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3))
        self.layers = nn.ModuleList(blocks)

    def forward(self, ids, labels):
        mask = torch.arange(4, device=ids.device) > 0
        if mask.any():
            x = self.table(ids)
        for layer in self.layers:
            x = x + layer(x)
        scores = x @ self.table.weight.t()
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def build(device="cpu"):
    with torch.device(device):
        net = Words()
        ids = torch.ones(4, 128, dtype=torch.long)
    return net, (ids, ids)


def meta():
    return build("meta")
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a small language model, on the CPU and on meta."""
    file = tmp_path_factory.mktemp("words") / "words.py"
    file.write_text(WORDS)
    return file


def step_of(words: Path, **asked: Any) -> Step:
    """Capture the small language model with prices of a laptop, or as asked."""
    target = f"{words}:build"
    return Step(Asked(target, **({"machine": find_machine("laptop-16gb")} | asked)), build(target))


def printed(*arguments: str | Path, code: int = 0) -> Any:
    """Run a command and read the JSON that it prints."""
    done = run(*arguments, "--json")
    assert done.code == code, done.err
    return json.loads(done.out)


def test_times_that_were_measured_beside_other_work_are_doubted(words: Path) -> None:
    step = step_of(words, machine=None)
    step.waited = 0.0
    assert step.prices == "every op was measured alone, here"
    step.waited = 0.4
    assert "for 40% of that time others had the processor" in step.prices


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 60), st.integers(0, 2000))
def test_the_largest_size_is_found_however_bytes_grow(grows: list[int], start: int, limit: int) -> None:
    sums = [sum(grows[:size]) if size <= len(grows) else 10**6 for size in range(2 + max(start, len(grows)))]
    best = max((size for size, needs in enumerate(sums) if size and needs <= limit), default=0)
    seen = []

    def need(size: int) -> int:
        seen.append(size)
        return sums[size] if size < len(sums) else 10**6

    assert largest(need, limit, start).size == best
    assert best + 1 in seen


def test_a_size_that_cannot_be_had_ends_the_search_and_says_why() -> None:
    def need(size: int) -> int:
        if size > 7:
            raise TightropeError("the table has 7 rows")
        return size

    assert largest(need, 100, 3) == (7, "8 cannot be had: the table has 7 rows")


def test_a_model_of_one_size_is_called_with_one_more_and_no_other() -> None:
    seen = []

    def need(size: int) -> int:
        seen.append(size)
        if size != 16:
            raise TightropeError("only 16 rows will do")
        return size

    assert largest(need, 100, 16) == (16, "17 cannot be had: only 16 rows will do")
    assert seen == [16, 32, 17]
    with pytest.raises(
        TightropeError, match="a size of 16 needs 16 bytes, more than 10, and 8 cannot be had"
    ):
        largest(need, 10, 16)


@pytest.mark.slow
def test_measured_steps_of_equal_layers_are_those_of_all_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep.py"
    file.write_text(WORDS.replace("range(3)", "range(8)"))
    target = f"{file}:build"
    found = Step(Asked(target), build(target))
    calls: list[bool] = []

    def whole(target: str, built: Built, *, short: bool = True, noted: bool = True) -> ShortProgram:
        calls.append(short)
        return capture_target(target, built, short=False, noted=noted)

    monkeypatch.setattr(estimate, "capture_target", whole)
    every = Step(Asked(target), build(target))
    assert calls == [True]
    assert found.graph.fingerprint == every.graph.fingerprint
    assert found.measured
    assert found.total() == every.total()
    assert found.graph.base_ns == pytest.approx(every.graph.base_ns, rel=0.5)


def test_a_model_on_meta_is_traced_as_on_the_cpu(words: Path) -> None:
    cpu, meta = (
        printed("estimate", f"{words}:{name}", "--machine", "laptop-16gb") for name in ("build", "meta")
    )
    assert cpu == meta
    assert cpu["update_bytes"] > 0
    assert cpu["num_ops"] > 40


@pytest.mark.slow
def test_lengths_of_sequences_give_a_row_each(words: Path) -> None:
    command = ("estimate", f"{words}:build", "--machine", "laptop-16gb", "--optimizer", "none")
    rows = printed(*command, "--seq", "64,128", "--batch", "2,4")["rows"]
    assert [(row["batch"], row["seq"]) for row in rows] == [(2, 64), (2, 128), (4, 64), (4, 128)]
    peaks = [row["peak_bytes"] for row in rows]
    assert peaks[0] < min(peaks[1:3]) <= max(peaks[1:3]) < peaks[3]
    assert printed(*command) == rows[-1]


def test_features_are_no_length_and_a_size_that_a_model_does_not_take_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        "import torch\n\ndef build():\n    return torch.nn.Linear(8, 2), (torch.zeros(4, 8),)\n", "utf-8"
    )
    command = ("estimate", f"{path}:build", "--machine", "laptop-16gb")
    assert (printed(*command)["batch"], printed(*command)["seq"]) == (4, None)
    done = run(*command, "--batch", "2", "--seq", "16")
    assert done.code == 2
    assert "tightrope: with --batch 2 --seq 16: Linear fails with these arguments" in done.err
    assert run(*command, "--largest", "batch", "--budget", "64KiB").err.count("note: ") == 1
    assert run(*command, "--batch", "2,4,8").err.count("note: ") == 1


@pytest.mark.slow
def test_a_budget_below_what_a_step_needs_has_a_price(words: Path) -> None:
    whole = describe(step_of(words))
    assert (whole["fits"], whole["more_time_percent"]) == (True, 0.0)
    least = whole["smallest_dropping_bytes"]
    assert least < min(whole["total_bytes"], whole["smallest_bytes"])
    tight, none = (describe(step_of(words, budget=str(size))) for size in (least, least - 1))
    assert (tight["fits"], tight["fits_with_a_plan"]) == (False, True)
    assert tight["more_time_percent"] > 0
    assert not tight["fits_in_any_loop"]
    assert (none["fits_with_a_plan"], none["more_time_percent"]) == (False, None)


@pytest.mark.slow
def test_ways_out_fit_and_the_cheapest_comes_first(words: Path) -> None:
    whole = describe(step_of(words))
    limit = (whole["smallest_dropping_bytes"] + whole["once_bytes"]) // 2
    step = step_of(words, budget=str(limit))
    ways = {way["way"]: way for way in ways_out(step)}
    assert set(ways) == {"recompute", "optimizer", "batch"}
    added = [way["more_time_percent"] for way in ways_out(step)]
    assert added == sorted(added)
    assert ways["recompute"]["more_time_percent"] == describe(step)["more_time_percent"]
    name = ways["optimizer"]["text"].split()[0]
    assert name in OPTIMIZERS
    if ways["optimizer"]["more_time_percent"] == 0.0:
        assert describe(step_of(words, budget=str(limit), optimizer=name))["fits"]
    fewer = int(ways["batch"]["text"].split()[3])
    for size, fits in ((fewer, True), (fewer + 1, False)):
        call = resized(step.built, "batch", size)
        assert describe(Step(step.asked, call))["fits"] is fits
    done = run("estimate", f"{words}:build", "--machine", "laptop-16gb", "--budget", str(limit))
    assert done.code == 3
    assert done.out.count("way out: ") == 3
    assert "smallest profile that holds it as it is: rtx3060-12gb" in done.out


@pytest.mark.slow
def test_no_way_out_is_named_that_is_none(words: Path) -> None:
    assert ways_out(step_of(words, budget="1000")) == []


def test_the_largest_batch_that_is_named_trains_and_one_more_is_refused(words: Path) -> None:
    target = f"{words}:build"
    long = resized(build(target), "seq", 1024)  # a row is far more than what a budget has to spare
    wide = 3 * Step(Asked(target), long).floor.dropping // 2
    best = largest_that_fits(Step(Asked(target, str(wide)), long), "batch")["with_a_plan"]
    assert best["bytes"] <= wide < best["next_bytes"]
    budget = (best["bytes"] + best["next_bytes"]) // 2  # away from both: other tests hold things
    for size in (best["size"], best["size"] + 1):
        gc.collect()
        beside = accounts().charged()
        built = resized(resized(build(target), "seq", 1024), "batch", size)
        model: Any = tightrope.compile(built.model, budget=budget + beside, progress=False)
        optimizer = torch.optim.AdamW(model.parameters())
        trained = 0
        try:
            for _ in range(3):
                optimizer.zero_grad()
                model(*built.args).backward()
                optimizer.step()
                trained += 1
        except InfeasibleError:
            pass
        assert trained == (3 if size == best["size"] else 0)
        del built, model, optimizer


def test_an_update_of_all_parameters_is_foreseen_in_their_order() -> None:
    sizes = [(100, 300), (10,), (100, 300), (50, 50), (100, 200)]
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = torch.optim.AdamW(parameters)
    native = accounts().allocator
    assert native is not None
    foresight = Foresight(parameters, native)
    said = foresight.update_of(optimizer).beside
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    assert foresight.update_of(optimizer).beside == said
    for _ in range(2):
        before = native.stats().live
        native.reset_peaks()
        optimizer.step()
    assert native.stats().live_peak - before == pytest.approx(said, abs=512)
    for parameter in parameters[1:4]:  # an update may leave these out, or not
        parameter.grad = None
    assert foresight.update_of(optimizer).beside >= said
    before = native.stats().live
    native.reset_peaks()
    optimizer.step()
    assert native.stats().live_peak - before <= foresight.update_of(optimizer).beside


@pytest.mark.slow
def test_the_command_names_the_largest_length(words: Path) -> None:
    command = ("estimate", f"{words}:build", "--machine", "laptop-16gb", "--budget")
    limit = 800 * 1024
    found = printed(*command, str(limit), "--largest", "seq")
    assert found["in_any_loop"]["size"] < found["with_a_plan"]["size"]
    for key in SHOWN:
        assert found[key]["bytes"] <= limit < found[key]["next_bytes"]
    lines = run(*command, str(limit), "--largest", "seq").out.splitlines()
    for key, line in zip(SHOWN, lines, strict=False):
        assert f"seq {found[key]['size']} needs {_exactly(found[key]['bytes'])}" in line
    assert run(*command, "1KiB", "--largest", "batch").code == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--largest", "batch", "--batch", "1,2"), "Give one or the other"),
        (("--seq", "0"), "seq '0'"),
        (("--batch", str(10**15)), "batch '1000000000000000' is too large: give sizes of at most 2147483647"),
        (("--batch", "1," + 5000 * "9"), "is too large"),
        (("--batch", "2147483647"), "batch 2147483647: the inputs alone would take"),
        (("--largest", "batch", "--budget", "80%"), "give bytes"),
    ],
)
def test_questions_that_do_not_go_together_are_refused(
    words: Path, options: tuple[str, ...], message: str
) -> None:
    done = run("estimate", f"{words}:build", "--machine", "laptop-16gb", *options)
    assert done.code == 2
    assert message in done.err


@pytest.mark.slow
def test_the_smallest_machines_hold_the_step_and_no_smaller_one_does(words: Path) -> None:
    step = step_of(words)
    rows = machines_for(step)
    assert [row["limit_bytes"] for row in rows] == sorted(row["limit_bytes"] for row in rows)
    assert not {"cortex-m4f-256k", "poet-raspberry-pi"} & {row["machine"] for row in rows}
    assert smallest_machines(step) == rows[:1]
    assert "mi300x-192gb" in run("estimate", f"{words}:build", "--machine", "laptop-16gb", "--machines").out


@pytest.mark.slow
def test_a_curve_says_what_budgets_of_the_loop_cost(words: Path) -> None:
    found = printed("estimate", f"{words}:build", "--machine", "laptop-16gb", "--curve")
    budgets = [one["budget_bytes"] for one in found["curve"]]
    times = [one["seconds"] for one in found["curve"]]
    assert budgets == sorted(budgets)
    assert times == sorted(times, reverse=True)
    assert budgets[0] >= found["smallest_dropping_bytes"]
    assert budgets[-1] == found["once_bytes"]


def test_products_of_16_bits_have_the_rate_of_their_type(words: Path) -> None:
    model, args, _ = build(f"{words}:build")
    wide = tightrope.capture(model.bfloat16(), *args)
    slow, fast = find_machine("v100-32gb"), find_machine("a100-40gb")
    product = next(op.id for op in wide.ops if op.target == "aten.mm.default")
    same = {**slow.flops, "matmul-bfloat16": fast.flops["matmul-bfloat16"]}
    times = [
        price_graph(wide, tightrope.Machine(name="m", tiers=slow.tiers, flops=flops)).ops[product].ns
        for flops in ({"matmul": 1e9}, {"matmul": 1e9, "matmul-bfloat16": 2e9}, same)
    ]
    assert times[0] - 3000 == pytest.approx(2 * (times[1] - 3000), rel=0.01)
    assert times[2] < times[1]


@pytest.mark.parametrize("name", names())
def test_every_profile_names_its_source(name: str) -> None:
    text = (files("tightrope") / "machines" / f"{name}.toml").read_text(encoding="utf-8")
    assert "\n# Source: " in text
    assert find_machine(name).name == name


LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.zoo.language import LanguageLoss
from benchmarks.zoo.lora import add_lora


def full(rank=0):
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        use_cache=False, attn_implementation="sdpa",
    )
    with torch.device("meta"):
        net = LanguageLoss(LlamaForCausalLM(config))
        if rank:
            add_lora(net, rank=rank, alpha=32.0)
        ids = torch.zeros(1, 4096, dtype=torch.long)
    return net.to(torch.bfloat16), (ids, ids)


def lora():
    return full(16)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "parameters", "trained"), [("full", 8030261248, 8030261248), ("lora", 8072204288, 41943040)]
)
def test_a_llama_of_8_billion_parameters_is_sized_without_memory(
    function: str, parameters: int, trained: int, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(LLAMA)
    root = str(Path(__file__).parents[2])
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of other tests' processes
    done = run_process(
        "estimate", f"{tmp_path}/llama.py:{function}", "--machine", "h100-80gb", "--json",
        seconds=900, PYTHONPATH=f"{root}/src:{root}",
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    beside = found["persistent_bytes"] - found["state_bytes"] - 2 * parameters
    assert 2 * 4096 * 8 // 2 <= beside < 2**20  # token ids and frequencies of the rotation
    assert found["state_bytes"] == pytest.approx(4 * trained, rel=1e-3)
    assert "modelled and not measured" in found["note"]
    unit = 1 if sys.platform == "darwin" else 1024
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 4 * 2**30 // unit)


def test_files_of_the_same_name_are_modules_of_their_own(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        file = tmp_path / folder / "net.py"
        file.parent.mkdir()
        net = "class Net(torch.nn.Module):\n    pass\n\ndef build():\n    return Net(), ()\n"
        file.write_text(f"import torch\n{folder} = torch.nn.Linear\n\n{net}")
        made.append((folder, build(f"{file}:build").model))
    for folder, model in made:
        assert hasattr(sys.modules[type(model).__module__], folder)
