"""The command ``tightrope export``: files, figures, exit codes and sentences."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tightrope.cli.app import main
from tightrope_export.play import imported

_NETS = Path(__file__).with_name("export_nets.py")
_Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> _Call:
    def called(*words: object) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "step.plan.json"
    with suppress(SystemExit):
        main(["plan", f"{_NETS}:build_mlp", "--budget", "80%", "-o", str(path)])
    assert path.is_file()
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["sac", "hf", "blocks"])
def test_a_plan_becomes_a_file_that_runs_as_promised(
    call: _Call, plan: Path, target: str, tmp_path: Path
) -> None:
    output = tmp_path / "recompute.py"
    words = (
        "export",
        plan,
        "--model",
        f"{_NETS}:build_mlp",
        "--to",
        target,
        "-o",
        output,
        "--check",
        "--json",
    )
    code, out, err = call(*words)
    assert code == 0, err
    row = json.loads(out)
    assert row["wrong"] == []
    assert row["target"] == target
    assert row["forecast_bytes"] <= row["budget_bytes"] == json.loads(plan.read_text())["budget"]
    assert row["modules"] == len(row["regions"]) > 0
    assert row["coarser"] == (
        row["forecast_bytes"] > row["plan_bytes"] or row["more_time_percent"] > row["plan_more_time_percent"]
    )
    assert {one["path"] for one in row["regions"]} == {*imported(output).REGIONS}


def test_a_function_and_a_budget_are_enough(call: _Call, tmp_path: Path) -> None:
    output = tmp_path / "recompute.py"
    code, out, _ = call("export", f"{_NETS}:build_mlp", "--budget", "90%", "--to", "blocks", "-o", output)
    assert code == 0
    assert "computed again" in out
    assert "the exported form is" in out
    assert f"written   {output}" in out
    assert "import tightrope" not in output.read_text()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "said"), [("torchtitan", "[activation_checkpoint]\nmode = "), ("megatron", "--recompute-")]
)
def test_settings_are_written(call: _Call, plan: Path, target: str, said: str, tmp_path: Path) -> None:
    output = tmp_path / "settings"
    code, _, err = call("export", plan, "--model", f"{_NETS}:build_mlp", "--to", target, "-o", output)
    assert code == 0, err
    assert output.read_text().startswith(said)


def test_a_budget_that_no_form_holds_ends_in_3_with_the_smallest(
    call: _Call, plan: Path, tmp_path: Path
) -> None:
    text = json.loads(plan.read_text())
    text["budget"] = 1000
    small, output = tmp_path / "small.plan.json", tmp_path / "recompute.py"
    small.write_text(json.dumps(text))
    code, _, err = call("export", small, "--model", f"{_NETS}:build_mlp", "--to", "hf", "-o", output)
    assert code == 3
    assert "the smallest has a forecast peak of" in err
    assert not output.exists()
    smallest = err.rpartition("--budget ")[2].strip().rstrip(".")
    code, out, _ = call(
        "export", f"{_NETS}:build_mlp", "--budget", smallest, "--to", "hf", "-o", output, "--json"
    )
    assert code == 0
    assert json.loads(out)["forecast_bytes"] <= int(smallest)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{nets}:build_mlp", "--to", "sac"), "add --budget"),
        (("{nets}:build_mlp", "--to", "sac", "--budget", "much"), "much"),
        (
            ("{nets}:build_mlp", "--to", "sac", "--budget", "1GiB", "--model", "{nets}:build_mlp"),
            "leave out --model",
        ),
        (("{nets}:build_mlp", "--to", "engine", "--budget", "1GiB"), "engine"),
        (("{nets}:no_such", "--to", "sac", "--budget", "1GiB"), "no_such"),
        (("{plan}", "--to", "sac"), "add --model"),
        (("{plan}", "--to", "sac", "--model", "{nets}:build_mlp", "--budget", "1GiB"), "leave out --budget"),
        (("{plan}", "--to", "sac", "--model", "{nets}:build_conv"), "the plan was made for graph"),
        (
            ("{plan}", "--to", "megatron", "--model", "{nets}:build_mlp", "--check"),
            "--check runs Python files",
        ),
        (("missing.plan.json", "--to", "sac", "--model", "{nets}:build_mlp"), "missing.plan.json"),
    ],
)
def test_bad_input_ends_in_2_with_one_sentence(
    call: _Call, plan: Path, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    output = tmp_path / "recompute.py"
    given = [word.format(nets=_NETS, plan=plan) for word in words]
    code, _, err = call("export", *given, "-o", output)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not output.exists()
