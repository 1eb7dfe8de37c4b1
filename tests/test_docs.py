"""What the documentation shows is run: docstrings, the README's snippets, the examples."""

import doctest
import gc
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tightrope
from tests.api_reference import reference
from tests.packages import ROOT, distributions, packages
from tightrope.capture._torch import reset_dynamo

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OPTIONAL = {"accelerate", "lightning", "peft", "transformers"}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
PAGES += [page for plugin in distributions() if (page := plugin / "README.md").is_file()]


def modules() -> list[str]:
    """List every module of the core and of plug-ins that can be imported without running a command."""
    found = [
        info.name
        for package in packages()
        for info in pkgutil.walk_packages([str(package)], f"{package.name}.")
    ]
    return sorted(name for name in found if not name.endswith("__main__"))


def skip_without(*names: str) -> None:
    """Skip what shows a library that is not installed; our own modules are there."""
    for name in set(names) & OPTIONAL:
        pytest.importorskip(name)


@pytest.mark.few(160)
@pytest.mark.parametrize("name", modules())
def test_docstring_examples_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # `tightrope.plan` and `tightrope.capture` are functions too: the modules are found by import
    skip_without(name.rpartition(".")[2] if ".integrations." in name else "torch")
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        # a module of its own: torch looks up by name the module in which a traced global lives, and keeps it
        place = ModuleType("docstring_example_" + example.name.replace(".", "_"))
        monkeypatch.setitem(sys.modules, place.__name__, place)
        place.__dict__.update(example.globs, __name__=place.__name__)
        example.globs = place.__dict__
        runner.run(example, clear_globs=False)
        place.__dict__.clear()
    reset_dynamo()  # compiled code holds its model, and that its budget, against the tests that follow
    gc.collect()
    assert runner.failures == 0


def test_the_public_functions_have_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    for function in (
        tightrope.compile,
        tightrope.replay,
        tightrope.capture,
        tightrope.plan,
        tightrope.report,
        tightrope.save,
        tightrope.load,
    ):
        (found,) = finder.find(function, function.__name__)
        assert found.examples, function.__name__


def run(script: str | Path) -> str:
    """Run a Python file, or a text as one, in a process of its own; return what it prints."""
    arguments = [str(script)] if isinstance(script, Path) else ["-c", script]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("example", "prints"),
    [
        pytest.param("compile_a_model.py", "enforced", marks=pytest.mark.slow),
        pytest.param("plan_a_graph.py", "smallest feasible found", marks=pytest.mark.slow),
        pytest.param("replay_any_loop.py", "0 elsewhere", marks=pytest.mark.slow),
        ("the_idea.py", "budget 352: arena 352, 3 runs again, gradient equal"),
        pytest.param("u_net.py", "equal to eager in every step: True", marks=pytest.mark.slow),
        pytest.param("lora.py", "equal to eager in every step: True", marks=pytest.mark.slow),
        pytest.param("with_lightning.py", "within the budget: True", marks=pytest.mark.slow),
        pytest.param("with_trainer.py", "within the budget: True", marks=pytest.mark.slow),
    ],
)
def test_examples_run_and_print_what_they_promise(example: str, prints: str) -> None:
    skip_without(*re.findall(r"(?m)^from (\w+)", (ROOT / "examples" / example).read_text()))
    assert prints in run(ROOT / "examples" / example)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_short(example: Path) -> None:
    assert len(example.read_text().splitlines()) <= (110 if example.name == "the_idea.py" else 80)


def test_the_idea_refuses_what_cannot_fit_and_its_judge_notices_a_wrong_address() -> None:
    script = (
        "import sys; sys.path.insert(0, 'examples'); import the_idea\n"
        "runs, offsets, arena = the_idea.plan(352)\n"
        "wrong = [offsets[0], *offsets[:-1]]\n"
        "for bad in (lambda: the_idea.plan(320), lambda: the_idea.judge(runs, wrong, 352)):\n"
        "    try: bad()\n"
        "    except (MemoryError, AssertionError) as error: print(type(error).__name__)\n"
    )
    assert run(script).split() == ["MemoryError", "AssertionError"]


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
IN_TURN = """
import gc, os, sys, types
import torch
for number, (name, text) in enumerate(TEXTS):
    if name == "the pages":
        os.chdir(text)
        continue
    print(name)
    page = sys.modules[f"page{number}"] = types.ModuleType(f"page{number}")
    exec(compile(text, name, "exec"), page.__dict__)
    page.__dict__.clear()
    torch._dynamo.reset()
    gc.collect()
"""
"""Run texts in one process, each as a module of its own."""


def blocks_of(page: Path) -> str:
    return "\n".join(re.findall(r"(?:```python|<!-- before:)\n(.*?)(?:```|-->)", page.read_text(), re.DOTALL))


def imports_in(snippet: str) -> list[str]:
    return re.findall(r"(?m)^(?:from|import) (\w+)", snippet)


def of_absent_plugin(text: str) -> bool:
    """Tell whether code shows a plug-in whose folder is not in this checkout."""
    shown = {name for name in imports_in(text) if name.startswith("tightrope_")}
    return not shown <= {package.name for package in packages()}


def in_absent_plugin(target: Path) -> bool:
    """Tell whether a link leads into the folder of a plug-in that is not in this checkout."""
    file = Path(os.path.normpath(target))
    parts = file.relative_to(ROOT).parts if file.is_relative_to(ROOT) else ("",)
    return parts[0] == "packages" and len(parts) > 1 and not (ROOT / parts[0] / parts[1]).exists()


WITH_BLOCKS = [
    page
    for page in PAGES
    if "docs" in page.parts and "```python" in page.read_text() and not of_absent_plugin(blocks_of(page))
]


def test_the_readme_the_blocks_of_pages_and_examples_run_in_turn(tmp_path: Path) -> None:
    here = [snippet for snippet in SNIPPETS if all(map(importlib.util.find_spec, imports_in(snippet)))]
    first = sorted(WITH_BLOCKS, key=lambda page: page.name != "fleet.md")  # it looks at what is loaded
    texts = [(f"README.md, block {number}", snippet) for number, snippet in enumerate(here)]
    pages = [(page.name, blocks_of(page)) for page in first]
    promised = {
        "compile_a_model.py": "enforced",
        "plan_a_graph.py": "smallest feasible found",
        "replay_any_loop.py": "0 elsewhere",
    }
    examples = [(name, f"{(ROOT / 'examples' / name).read_text()}\nmain()\n") for name in promised]
    texts = [("the pages", str(tmp_path)), *pages, *texts, *examples]  # what holds less comes first
    printed = run(f"TEXTS = {texts!r}{IN_TURN}")
    for name, prints in promised.items():
        assert prints in printed.partition(f"\n{name}\n")[2].partition(".py\n")[0], name


@pytest.mark.slow
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_the_readme_snippets_run(snippet: str) -> None:
    skip_without(*imports_in(snippet))
    run(snippet)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda file: file.name)
def test_the_blocks_of_a_page_run_one_after_another(page: Path, tmp_path: Path) -> None:
    run(f"import os; os.chdir({str(tmp_path)!r})\n{blocks_of(page)}")


def commands() -> list[tuple[str, str, frozenset[str]]]:
    """List the commands that pages show: page, name, options."""
    found = set()
    for page in PAGES:
        for line in re.findall(r"\btightrope ([a-z]+[^`\n#;|]*)", page.read_text()):
            name, *rest = line.split()
            shown = frozenset(word for word in rest if re.fullmatch(r"--[a-z-]+", word.rstrip(",.)")))
            if shown or any(".py:" in word or word.endswith(".json") for word in rest):
                found.add((page.name, name, frozenset(word.rstrip(",.)") for word in shown)))
    return sorted(found, key=str)


def test_commands_that_pages_show_have_these_options() -> None:
    from typer import Context
    from typer.main import get_command

    from tightrope.cli.app import app
    from tightrope.cli.plugins import KNOWN

    known: dict[str, set[str]] = {}
    group: Any = get_command(app)
    context = Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        below = getattr(command, "commands", {}).values()
        params = [*command.params, *(one for sub in below for one in sub.params)]
        known[name] = {"--help", *(option for one in params for option in (*one.opts, *one.secondary_opts))}
    shown = commands()
    assert len(shown) > 20
    absent = {name for name in KNOWN if name not in known}
    for page, name, options in shown:
        if name in absent and not (ROOT / "packages" / KNOWN[name].distribution).is_dir():
            continue
        assert name in known, (page, name)
        assert options <= known[name], (page, name, options - known[name])


def test_the_train_py_of_the_readme_is_shipped_and_planned() -> None:
    from typer.testing import CliRunner

    from tightrope.cli.app import app

    shown = next(snippet for snippet in SNIPPETS if "def build" in snippet)
    shipped = (ROOT / "examples" / "train.py").read_text()
    assert re.sub(r"\n+", "\n", shipped).endswith(re.sub(r"\n+", "\n", shown))
    assert len(shown.splitlines()) <= 8
    target = f"{ROOT / 'examples' / 'train.py'}:build"
    found = CliRunner().invoke(app, ["plan", target, "--budget", "80%", "--json"])
    assert found.exit_code == 0, found.output


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_two_line_diff_of_the_readme_runs_in_a_loop() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for line in diff.splitlines() if line.startswith("+")]
    assert len(lines) == 2
    before = "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\n"
    loop = "batches = [torch.ones(2, 8)] * 2\n" + re.sub(r"(?m)^[ +]", "", diff)
    run(before + loop.replace("8GiB", "64MiB"))


def anchors_of(page: Path) -> set[str]:
    """List the anchors of a page, as GitHub makes them of its headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    dead = []
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        if "://" in target or in_absent_plugin(file):
            continue
        if not (file.exists() and (not anchor or anchor in anchors_of(file))):
            dead.append(f"{target}#{anchor}")
    return dead


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOT.glob("[A-Z]*.md")], ids=lambda file: str(file.relative_to(ROOT))
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_and_a_dead_anchor_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# Here: it *is*\n\n```\n# code\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#here-it-is) [b](there.md#code) [c](gone.md) [d](#e) [e](https://x.org/#y)")
    assert dead_links(page) == ["there.md#code", "gone.md#", "#e"]


def test_code_and_tests_name_pages_that_exist() -> None:
    texts = [*ROOT.glob("[A-Z]*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    texts += [
        file
        for folder in ("src", "tests", "benchmarks", "examples", "packages")
        for file in (ROOT / folder).rglob("*.py")
    ]
    named = {
        (file.name, *found)
        for file in texts
        for found in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    for name, page, anchor in named:
        assert (ROOT / "docs" / page).exists(), (name, page)
        assert not anchor or anchor in anchors_of(ROOT / "docs" / page), (name, page, anchor)


def test_the_pages_are_few_and_short() -> None:
    pages = [*(ROOT / "docs").glob("*.md")]
    assert len(pages) <= 12
    assert sum(len(page.read_text().split()) for page in pages) <= 24_000
    assert len((ROOT / "docs" / "how-it-works.md").read_text().split()) <= 2_500


def test_planners_and_benchmarks_that_pages_name_exist() -> None:
    from benchmarks.__main__ import _QUESTIONS
    from tightrope.plan import PLANNERS
    from tightrope.plan.registry import KNOWN

    text = "\n".join(page.read_text() for page in PAGES)
    named = re.findall(r"--planner ([\w-]+)", text)
    assert {"checkmate", "moccasin", "treewidth"} <= set(named) <= {*PLANNERS, *KNOWN, "auto"}
    asked = re.findall(r"python -m benchmarks (\w+)", text)
    assert {"spine", "estimating"} <= set(asked) <= set(_QUESTIONS)


def test_the_reference_of_the_api_is_that_of_the_docstrings() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == reference(), "python -m tests.api_reference writes it"
