"""The commands ``fleet`` and ``select``: go or no-go, what to measure next, and what is refused."""

import json

import pytest

from tests.cli.command import run

FLEET = """
[[kinds]]
name = "old phone"
share = 2
bytes = 50_000_000
ms_per_sample = 20
joules_per_sample = 0.05
down = 1e6
up = 5e5

[[kinds]]
name = "new phone"
share = 1
bytes = 200_000_000
ms_per_sample = 4
joules_per_sample = 0.02
down = 4e6
up = 2e6
"""
SMALL = ("--devices", "60", "--steps", "6", "--cohort", "5", "--hours", "12")


@pytest.fixture
def phones(tmp_path):
    (tmp_path / "phones.toml").write_text(FLEET)
    return tmp_path / "phones.toml"


def test_a_forecast_repeats_and_decides(phones):
    done = [run("fleet", phones, *SMALL, "--seed", "3", "--json") for _ in "ab"]
    assert [one.code for one in done] == [0, 0]
    found = json.loads(done[0].out)
    assert found == json.loads(done[1].out)
    tasks = found["tasks"]
    assert tasks.pop("started") == sum(tasks.values())
    refused = run("fleet", phones, *SMALL, "--hours-limit", "0.001").out
    assert "no-go, as limits do not hold (virtual time)" in refused
    assert run("fleet", phones, *SMALL, "--mode", "async", "--bytes-limit", "1KB").code == 3


def test_no_claim_of_room_is_made_without_a_plan(phones):
    found = json.loads(run("fleet", phones, *SMALL, "--json").out)
    room = next(one for one in found["promises"] if one["limit"] == "devices with room")
    assert (found["go"], room["forecast"]) == (None, None)
    assert "unknown without --step" in run("fleet", phones, *SMALL).out
    tiny = FLEET.replace("50_000_000", "1000").replace("200_000_000", "25_999")
    phones.write_text(tiny)
    done = run("fleet", phones, *SMALL, "--size", "26KB")
    assert done.code == 3
    assert "no-go: the model has 26000 bytes, and training may take 25999 on 'new phone'" in done.err
    phones.write_text(tiny.replace("25_999", "26_000"))
    assert run("fleet", phones, *SMALL, "--size", "26KB").code == 0


def test_a_page_shows_limits_and_progress_offline(phones, tmp_path):
    page = tmp_path / "phones.html"
    assert run("fleet", phones, *SMALL, "--page", page).code == 0
    text = page.read_text()
    assert "Content-Security-Policy" in text
    assert "versions of the model at" in text
    assert "time, min" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("bytes = 50_000_000\n", "", "kinds 'old phone' has no bytes; it has name, share,"),
        ("up = 5e5", "up = -1", "kind 'old phone': up = -1.0: give a number above 0"),
        ('"new phone"', '"old phone"', "of different names"),
        ("[[kinds]]", "[[kinds", "fleet.toml"),
    ],
)
def test_a_damaged_profile_is_refused(tmp_path, old, new, message):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.replace(old, new, 1))
    done = run("fleet", path, *SMALL)
    assert done.code == 2
    assert message in done.err


def test_a_choice_and_what_to_measure_next(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("candidate,value\n" + "a,1.0\nb,1.3\n" * 3)
    done = run("select", path, "--logs", "--noise-sd", "0.02", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["choice"] == "a"
    path.write_text("candidate,value,predicted\na,1.0,1.0\nb,,0.9\n")
    done = run("select", path, "--logs")
    assert done.code == 3
    assert "measure b next" in done.out


def test_names_of_candidates_reach_the_terminal_without_its_codes(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("candidate,value\n\x1b[31mred,1.0\n")
    assert "\x1b" not in run("select", path).out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("candidate\na\n", "no column 'value'"),
        ("candidate,value\na,x\n", "line 2: value is 'x': give a finite number"),
        ("candidate,value\na,1\nb,nan\n", "line 3: value is 'nan'"),
        ("candidate,value,predicted\na,1,inf\n", "line 2: predicted is 'inf'"),
        ("candidate,value\na,1\n\nb,2,3\n", "line 4: 3 values, and the header names 2 columns"),
        ("candidate,value\na\n", "line 2: 1 values"),
        ("candidate,value\n,1\n", "line 2: the row has no candidate"),
        ("candidate,value,predicted\na,1,1\na,2,3\n", "line 3: 'a' is predicted as 3, and as 1 above"),
        ("candidate,value\na,\n", "line 2: no row has a value or a prediction"),
        ("candidate,value\n", "no rows below the header"),
        ("", "line 1: no column 'candidate'"),
        ("candidate,value,predicted,predicted\na,1,1,2\n", "line 1: two columns of one name"),
        ("candidate,value,predicted\na,1,1\nb,1,\n", "'b' has no prediction"),
    ],
)
def test_damaged_measurements_are_refused(tmp_path, text, message):
    path = tmp_path / "times.csv"
    path.write_text(text)
    done = run("select", path)
    assert done.code == 2
    assert message in done.err
    assert str(path) in done.err


def test_relative_errors_want_positive_values(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("candidate,value\na,1\nb,-2\n")
    assert run("select", path).code == 0
    done = run("select", path, "--logs")
    assert done.code == 2
    assert f"{str(path)!r}, line 3: value is '-2': give a number above 0, or leave out --logs" in done.err


def test_a_cohort_larger_than_the_fleet_is_refused(phones):
    done = run("fleet", phones, "--devices", "5", "--cohort", "10")
    assert done.code == 2
    assert "--cohort 10: the fleet has 5 devices" in done.err


def test_bytes_of_the_model_are_those_of_the_step(phones, tmp_path):
    script = tmp_path / "net.py"
    script.write_text("import torch\ndef build(): return torch.nn.Linear(100, 100), (torch.ones(2, 100),)\n")
    step = ("--step", f"{script}:build", "--json")
    found, said, small = (
        json.loads(run("fleet", phones, *SMALL, *more).out)["promises"]
        for more in (step, (*step, "--size", "40448"), (*step, "--size", "26KB"))
    )
    assert found == said
    assert found != small


def test_a_step_with_its_optimizer_is_planned_with_its_update(phones, tmp_path):
    script = tmp_path / "net.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Sequential):\n"
        "    def forward(self, x): return super().forward(x).square().mean()\n"
        "def net(): return Net(*[torch.nn.Linear(100, 100) for _ in range(4)]), (torch.ones(2, 100),)\n"
        "def build():\n"
        "    model, x = net()\n"
        "    return model, x, torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    plain, updated = (
        json.loads(run("fleet", phones, *SMALL, "--step", f"{script}:{name}", "--json").out)["kinds"][0]
        for name in ("net", "build")
    )
    gradient = 4 * 100 * 100
    assert plain["whole"] - updated["whole"] > 2 * gradient  # all four, but for one or two at a time


@pytest.mark.parametrize(("option", "value"), [("--hours-limit", "nan"), ("--able-limit", "2")])
def test_a_limit_that_is_no_limit_is_refused(phones, option, value):
    done = run("fleet", phones, *SMALL, option, value, "--page", phones.parent / "page.html")
    assert done.code == 2
    assert f"is {float(value)}: give a number of at least 0" in done.err
    assert not (phones.parent / "page.html").exists()


@pytest.mark.parametrize(("option", "missing"), [("--error-limit", "--fashion"), ("--able-limit", "--step")])
def test_a_limit_on_what_is_not_looked_at_is_refused(phones, option, missing):
    done = run("fleet", phones, *SMALL, option, "0.5")
    assert done.code == 2
    assert f"add {missing}" in done.err


def test_select_reads_optuna_and_takes_spreads_as_shares_of_the_data(tmp_path):
    lines = ['{"op_code":0,"study_name":"s","directions":[1]}']
    for value in (3000.0, 3010.0, 4000.0):
        rate = 0.1 if value < 3500 else 0.2
        lines.append(
            json.dumps(
                {"op_code": 4, "study_id": 0, "state": 1, "value": value, "params": {"lr": rate},
                 "distributions": {"lr": '{"name": "FloatDistribution", "attributes": {}}'}},
                separators=(",", ":"),
            )
        )  # fmt: skip
    path = tmp_path / "study.log"
    path.write_text("\n".join(lines) + "\n")
    found = json.loads(run("select", path, "--json").out)
    assert found["choice"] == "lr=0.1"
    assert (found["noise_sd"], found["tolerance"]) == (150.5, 60.2)  # of 3,010
    assert run("select", path, "--study", "t").code == 2
    table = tmp_path / "t.csv"
    table.write_text("candidate,value\na,3000\nb,4000\na,3001\nb,4001\n")
    assert run("select", table).code == 0
    small = tmp_path / "small.csv"  # the same in another unit gives the same answer
    small.write_text("candidate,value\na,0.003000\nb,0.004000\na,0.003001\nb,0.004001\n")
    assert run("select", small).code == 0
    one, other = (json.loads(run("select", path, "--json").out)["confidence"] for path in (table, small))
    assert abs(one - other) < 1e-6
    assert "is of Optuna's files" in run("select", table, "--study", "s").err


@pytest.mark.parametrize("given", [("--prior-sd", "nan"), ("--noise-sd", "inf")], ids=" ".join)
def test_spreads_that_are_no_numbers_are_refused(tmp_path, given):
    (tmp_path / "t.csv").write_text("candidate,value\na,1\nb,2\n")
    done = run("select", tmp_path / "t.csv", *given)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
