"""Plug-ins are found by entry points: without one the core works, and its commands say what to install."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tightrope
from tests.packages import CORE, libraries, package_of, plugins, project
from tightrope import record
from tightrope.cli.plugins import GROUP, KNOWN
from tightrope.core import Graph, Op, Storage
from tightrope.core.codec import dump_graph
from tightrope.formats import read
from tightrope.plan import registry, solve

HIDE = """
import importlib.metadata, sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("tightrope_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **given: (
    one for one in every(**given) if not (one.name or "").startswith("tightrope-")
)
"""
"""Put into a process before anything else, it is as if no plug-in were installed."""

PLAN = """
from tightrope.core import Graph, Op, Storage
from tightrope.plan import PLANNERS, solve


def plan(planner):
    graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
    print(solve(graph, budget=128, planner=planner).forecast.total)


"""
"""Plans a graph of one op."""

PRESENT = [name for name, part in KNOWN.items() if part.distribution in {one.name for one in plugins()}]
"""Commands of the plug-ins that are in this checkout."""

LEFT = "\nprint([name for name in sys.modules if name.startswith('tightrope_')])"


def process(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a text in a process of its own, away from the checkout."""
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd="/",
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def command(*words: str, hidden: bool) -> subprocess.CompletedProcess[str]:
    """Call the command line, without plug-ins if ``hidden``."""
    start = HIDE if hidden else ""
    return process(f"{start}\nfrom tightrope.cli import main\nmain({list(words)!r})")


def modules() -> list[str]:
    """List the modules of the core, but for those that are run, and those that need libraries of others."""
    names = (".".join(file.relative_to(CORE.parent).with_suffix("").parts) for file in CORE.rglob("*.py"))
    kept = (name for name in names if not name.endswith("__main__") and ".integrations." not in name)
    return sorted(name.removesuffix(".__init__") for name in kept)


def test_the_core_is_imported_without_plug_ins() -> None:
    done = process(f"{HIDE}\nimport tightrope, tightrope.cli.app\ntightrope.Plan{LEFT}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]"]


@pytest.mark.slow
def test_every_module_of_the_core_is_imported_without_plug_ins() -> None:
    script = f"{HIDE}\nfrom importlib import import_module\nfor name in {modules()!r}: import_module(name)\n"
    done = process(script + LEFT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_the_commands_of_the_core_without_plug_ins() -> None:
    done = command("--help", hidden=True)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert {"plan", "estimate", "judge"} <= listed
    assert not listed & set(KNOWN)


@pytest.mark.few(5)
@pytest.mark.parametrize("words", [*((name,) for name in KNOWN), ("jobs", "--help")], ids=" ".join)
def test_a_command_of_a_missing_plug_in_says_what_to_install(words: tuple[str, ...]) -> None:
    name, *_ = words
    done = command(*words, hidden=True)
    assert done.returncode == 2
    assert not done.stdout
    part = KNOWN[name]
    assert done.stderr.splitlines() == [
        f"tightrope: {name} is part of {part.distribution}: pip install 'tightrope[{part.extra}]'."
    ]


def test_what_became_a_command_of_a_plug_in_is_refused_where_it_was() -> None:
    done = command("estimate", "layers.py:build", "--ranks", "64", "--machine", "no.toml", hidden=True)
    assert done.returncode == 2
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    assert "tightrope ranks layers.py:build --ranks 64" in line
    assert "pip install 'tightrope[ranks]'" in line
    assert "--ranks" not in command("estimate", "--help", hidden=True).stdout


def test_a_name_that_became_a_plug_in_says_what_to_install() -> None:
    with pytest.raises(AttributeError, match=r"pip install 'tightrope\[ranks\]' and import tightrope_ranks"):
        _ = tightrope.parallel
    assert "parallel" not in dir(tightrope)
    for name in ("record_eager", "save"):
        with pytest.raises(AttributeError, match=r"pip install 'tightrope\[trace\]', and take it from"):
            getattr(record, name)


@pytest.mark.parametrize("name", ["checkmate", "polish"])
def test_a_planner_of_a_missing_plug_in_says_what_to_install(name: str) -> None:
    done = process(f"{HIDE}\n{PLAN}\nplan({name!r})")
    assert done.returncode == 1
    (*_, last) = done.stderr.splitlines()
    said = f"planner {name} is part of tightrope-planners: pip install 'tightrope[planners]'."
    assert last == f"tightrope.core.errors.TightropeError: {said}"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"INSTRUCTION": "CONSTANT", "NAME": "x"}', "a log of the DTR simulator"),
        ('{"nodes": [], "links": []}', "a graph in node-link JSON"),
    ],
)
def test_a_file_that_a_missing_plug_in_reads_says_what_to_install(
    text: str, what: str, tmp_path: Path
) -> None:
    file = tmp_path / "graph.json"
    file.write_text(text)
    done = command("plan", str(file), "--budget", "80%", hidden=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"reading {what} is part of tightrope-planners: pip install 'tightrope[planners]'.")


def test_a_trace_file_without_its_plug_in_says_what_to_install(tmp_path: Path) -> None:
    file = tmp_path / "run.trace"
    file.write_bytes(b"TRTRACE1")
    done = command("report", str(file), "-o", str(tmp_path / "run.html"), hidden=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("reading a trace file is part of tightrope-trace: pip install 'tightrope[trace]'.")


def test_a_policy_of_a_missing_plug_in_says_what_to_install() -> None:
    done = process(
        f"{HIDE}\nimport tightrope\ntightrope.evict('1MiB')\ntightrope.evict('1MiB', policy='planned')"
    )
    assert done.returncode == 1
    said = "policy=\"planned\" is part of tightrope-planners: pip install 'tightrope[planners]'."
    assert done.stderr.splitlines()[-1] == f"tightrope.core.errors.TightropeError: {said}"


def test_the_price_of_fewer_bytes_without_its_plug_in_says_what_to_install(tmp_path: Path) -> None:
    graph = Graph((Op(0, "a", "aten.relu", creates=(0,)),), (Storage(0, 100),))
    (tmp_path / "a.graph.json").write_bytes(dump_graph(graph))
    solve(graph, budget=128).save(tmp_path / "a.plan.json")
    assert command("explain", str(tmp_path / "a.plan.json"), hidden=True).returncode == 0
    done = command("explain", str(tmp_path / "a.plan.json"), "--save", "64B", hidden=True)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("--save is part of tightrope-trace: pip install 'tightrope[trace]'.")


def test_other_orders_of_a_missing_plug_in_say_what_to_install() -> None:
    free = "solve(Graph((Op(0, 'a', 'a', creates=(0,)),), (Storage(0, 100),)), budget=128, order='free')"
    done = process(f"{HIDE}\n{PLAN}\n{free}")
    assert done.returncode == 1
    said = "order='free' is part of tightrope-planners: pip install 'tightrope[planners]'."
    assert done.stderr.splitlines()[-1] == f"tightrope.core.errors.TightropeError: {said}"


def test_planners_of_the_core_plan_without_plug_ins() -> None:
    done = process(f"{HIDE}\n{PLAN}\nfor name in ('auto', *PLANNERS): name == 'paging' or plan(name){LEFT}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["128"] * 4 + ["[]"]


@pytest.mark.parametrize("plugin", plugins(), ids=lambda plugin: plugin.name)
def test_the_core_knows_what_the_planners_and_formats_of_a_plug_in_are_called(plugin: Path) -> None:
    named = project(plugin)["entry-points"].get(registry.GROUP, {})
    assert set(named) == (set(registry.KNOWN) if plugin.name == "tightrope-planners" else set())
    named = project(plugin)["entry-points"].get(read.GROUP, {})
    assert set(named) == (set(read.KNOWN) if plugin.name == "tightrope-planners" else set())


def test_an_unknown_command_is_told_as_ever() -> None:
    done = command("no-such-thing", hidden=True)
    assert done.returncode == 2
    assert "No such command 'no-such-thing'" in done.stderr


def test_a_shell_completes_without_plug_ins() -> None:
    script = f"{HIDE}\nfrom tightrope.cli.app import app\napp(prog_name='tightrope')"
    given = {"_TIGHTROPE_COMPLETE": "complete_bash", "COMP_WORDS": "tightrope jobs ", "COMP_CWORD": "2"}
    done = process(script, **given)
    assert "Traceback" not in done.stderr
    given |= {"COMP_WORDS": "tightrope est", "COMP_CWORD": "1"}
    assert process(script, **given).stdout.split() == ["estimate"]


def installed(plugin: Path) -> bool:
    found = importlib.metadata.entry_points(group=GROUP)
    return any(entry.dist is not None and entry.dist.name == plugin.name for entry in found)


def test_all_plug_ins_of_the_checkout_are_installed() -> None:
    missing = [f"packages/{plugin.name}" for plugin in plugins() if not installed(plugin)]
    missing += [
        f"packages/{one.name}" for one in libraries() if not importlib.util.find_spec(package_of(one).name)
    ]
    assert not missing, f"pip install {' '.join(f'-e {name}' for name in missing)}"


@pytest.mark.parametrize("plugin", plugins(), ids=lambda plugin: plugin.name)
def test_the_core_knows_what_the_commands_of_a_plug_in_are_called(plugin: Path) -> None:
    named = project(plugin)["entry-points"][GROUP]
    assert set(named) == {name for name, part in KNOWN.items() if part.distribution == plugin.name}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", PRESENT)
def test_a_line_of_the_list_is_that_of_the_command(name: str) -> None:
    script = (
        "import typer, typer.main, tightrope.cli.app as cli\ngroup = typer.main.get_command(cli.app)\n"
        f"print(group.get_command(typer.Context(group), {name!r}).short_help)"
    )
    assert process(script).stdout.strip() == KNOWN[name].help


@pytest.mark.parametrize("plugin", plugins(), ids=lambda plugin: plugin.name)
def test_help_lists_the_commands_of_a_plug_in_within_a_second_and_imports_nothing(plugin: Path) -> None:
    script = "\nimport atexit, sys\natexit.register(lambda: print(sorted(sys.modules)))\n"
    script += "from tightrope.cli import main\nmain(['--help'])"
    begun = time.monotonic()
    process(script)
    first = time.monotonic() - begun
    begun = time.monotonic()
    done = process(script)
    assert min(first, time.monotonic() - begun) < 2  # 0.4 s where nothing else runs
    assert all(f"\n  {name} " in done.stdout for name in project(plugin)["entry-points"][GROUP])
    assert f"'{package_of(plugin).name}" not in done.stdout
    assert "'torch'" not in done.stdout


OTHER = {
    "other-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: other\nVersion: 1\nSummary: Counts sheep.\n",
    "other-1.dist-info/entry_points.txt": f"[{GROUP}]\nsheep = sheep:register\nplan = sheep:register\n"
    "wolves = sheep:no_such\nnothing = sheep:register\n"
    f"[{registry.GROUP}]\nlazy = sheep:lazy\nauto = sheep:no_such\ngreedy = sheep:no_such\n"
    "bad = sheep:no_such\n"
    f"[{read.GROUP}]\nwool = sheep:read\n",
    "sheep.py": "def count():\n    print('three')\n\n\n"
    "def register(app):\n    app.command('sheep')(count)\n    app.command('plan')(count)\n\n\n"
    "def lazy(graph, machine, limits, options):\n    from tightrope.plan import base_schedule\n\n"
    "    return base_schedule(graph)\n\n\n"
    "def read(data, *, name):\n    from tightrope.core import Graph, Op, Storage\n"
    "    from tightrope.formats import Source\n\n    if data != b'wool':\n        return None\n"
    "    graph = Graph((Op(0, 'a', 'aten.relu', creates=(0,)),), (Storage(0, 100),), name=name)\n"
    "    return Source(graph, (0,), 'wool')\n",
}
"""A distribution of somebody else, as it is installed."""


@pytest.fixture
def other(tmp_path: Path) -> str:
    for name, text in OTHER.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return str(tmp_path)


def call(where: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the command line with a folder of packages before all others."""
    start = f"import sys; sys.path.insert(0, {where!r})"
    return process(f"{start}\nfrom tightrope.cli import main\nmain({list(words)!r})")


def test_a_command_of_somebody_else_is_listed_and_called(other: str) -> None:
    listed = " ".join(call(other, "--help").stdout.split())  # the column is as wide as the longest name
    assert "sheep Of other: Counts sheep." in listed
    assert call(other, "sheep").stdout == "three\n"


def test_a_planner_and_a_format_of_somebody_else_are_used(other: str, tmp_path: Path) -> None:
    for text, code in (("wool", 0), ("silk", 2)):
        file = tmp_path / f"{text}.json"
        file.write_text(text)
        assert call(other, "plan", str(file), "--budget", "1KiB", "--planner", "lazy").returncode == code
    for planner in ("auto", "greedy"):
        assert call(
            other, "plan", str(tmp_path / "wool.json"), "--budget", "1KiB", "--planner", planner
        ).stdout
    done = call(other, "plan", str(tmp_path / "wool.json"), "--budget", "1KiB", "--planner", "bad")
    assert done.returncode == 2
    assert "the planner bad of other does not load" in done.stderr


def test_a_command_of_the_core_cannot_be_replaced(other: str) -> None:
    assert "Plan a training step" in call(other, "plan", "--help").stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wolves", "the command wolves of other does not load"),
        ("nothing", "other names a command nothing and adds none"),
    ],
)
def test_a_damaged_plug_in_is_named(other: str, name: str, says: str) -> None:
    done = call(other, name)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_two_plug_ins_with_one_command_are_named(other: str) -> None:
    again = Path(other, "more-1.dist-info")
    again.mkdir()
    (again / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1\n")
    (again / "entry_points.txt").write_text(f"[{GROUP}]\nsheep = sheep:register\n")
    done = call(other, "sheep")
    assert done.returncode == 2
    assert "more" in done.stderr
    assert "uninstall all of them but one" in done.stderr
