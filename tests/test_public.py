"""The public surface: what it holds, what importing it costs, and its two ambiguous names."""

import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest
import torch

import tightrope
from tightrope.core import Op, Storage

HEAVY = ("torch._dynamo", "torch._inductor", "transformers", "sklearn", "typer", "sympy.core.basic")


def test_every_public_name_exists() -> None:
    assert list(tightrope.__all__) == sorted(set(tightrope.__all__))
    assert all(hasattr(tightrope, name) for name in tightrope.__all__)


def test_what_the_page_calls_stable_is_what_is_public() -> None:
    page = (Path(__file__).parents[1] / "docs" / "compat.md").read_text()
    rows = re.findall(r"(?m)^\| (?:verbs|values[^|]*|units|errors) \| (.*) \|$", page)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(rows) == 4
    assert sorted(named) == sorted(tightrope.__all__)


def test_the_public_errors_are_one_family() -> None:
    errors = [name for name in tightrope.__all__ if name.endswith("Error")]
    assert len(errors) >= 8
    assert all(issubclass(getattr(tightrope, name), tightrope.TightropeError) for name in errors)


@pytest.mark.parametrize("statement", ["import tightrope", "import tightrope.cli.app"])
def test_importing_is_light(statement: str) -> None:
    names = HEAVY if statement == "import tightrope" else HEAVY[:4]
    script = (
        f"import sys, torch; before = set(sys.modules); {statement}\n"
        f"print([name for name in {names!r} if name in sys.modules and name not in before])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["tightrope", "tightrope.cli"])
def test_nobody_waits_for_torch_before_it_is_needed(module: str) -> None:
    script = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_plan_is_the_function_and_the_package_stays_importable() -> None:
    import tightrope.plan.search  # binds nothing over the function: the package is loaded already
    from tightrope.plan import solve
    from tightrope.plan.search import solve as same

    assert isinstance(tightrope.plan, FunctionType)
    assert solve is same
    graph = tightrope.Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
    assert tightrope.plan(graph, budget="1KiB") == solve(graph, budget=1024)


def test_capture_is_the_function_and_the_package_stays_importable() -> None:
    from tightrope.capture import measured

    assert callable(measured)
    assert tightrope.capture(torch.nn.Linear(8, 8), torch.ones(2, 8)).ops[0].target == "aten.addmm.default"


@pytest.mark.slow
def test_type_checkers_see_the_function(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        "import torch, tightrope\n"
        "from tightrope.plan import solve\n"
        "graph = tightrope.capture(torch.nn.Linear(8, 8), torch.ones(2, 8))\n"
        'plan: tightrope.Plan = tightrope.plan(graph, budget="100%")\n'
        "again: tightrope.Plan = solve(graph, budget=plan.budget)\n"
        "wrong: int = tightrope.plan(graph, budget=8)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)], capture_output=True, text=True, check=False
    )
    assert "user.py:6" in done.stdout
    assert done.stdout.count("error:") == 1, done.stdout
