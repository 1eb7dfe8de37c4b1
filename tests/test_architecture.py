"""The house rules that a machine can check: arrows, sizes, private names, the environment."""

import ast
import functools
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import CORE, distributions, libraries, package_of, packages, plugins, project

SOURCE = CORE
FILES = sorted(SOURCE.rglob("*.py"))
OF_PLUGINS = [file for plugin in distributions() for file in sorted(package_of(plugin).rglob("*.py"))]
ORDER = (
    "core",
    "formats",
    "native",
    "judge",
    "lower",
    "price",
    "place",
    "plan",
    "capture",
    "fuse",
    "run",
    "record",
    "view",
    "integrations",
    "cli",
)
"""A room may import the rooms before it. Only the public surface, which has no room, imports freely."""
RUNTIME = ("base", "ledger", "execute", "verify", "evict", "session")
"""Rooms of ``run/``: each may import those before it."""
TORCH_FREE = ("core", "formats", "lower", "place", "plan")
FORBIDDEN = ("torchvision", "triton", "pytorch-triton")


def room_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def nodes_of(file: Path) -> Iterator[ast.AST]:
    """List the nodes of a file's syntax tree."""
    return ast.walk(ast.parse(file.read_text(encoding="utf-8")))


@functools.cache
def imports_of(file: Path) -> frozenset[str]:
    """List every module that a file imports, wherever in the file it does so."""
    found = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}:{node.lineno}: imports are absolute here"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def arrows() -> set[tuple[str, str]]:
    """List (room, imported room) over the whole package."""
    return {
        (room_of(file), name.split(".")[1])
        for file in FILES
        if room_of(file)
        for name in imports_of(file)
        if name.startswith("tightrope.") and name.split(".")[1] != room_of(file)
    }


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {room_of(file) for file in FILES} - {""}
    assert rooms <= set(ORDER)
    assert len(FILES) > 50


def test_arrows_point_down_only() -> None:
    wrong = {(a, b) for a, b in arrows() if b in ORDER and ORDER.index(b) >= ORDER.index(a)}
    assert not wrong


def test_arrows_inside_the_runtime_point_down_only() -> None:
    """A module directly in ``run/`` is a way in: it imports every room, and no room imports it."""
    inside = {file: file.relative_to(SOURCE / "run").parts for file in FILES if room_of(file) == "run"}
    rooms = {parts[0] for parts in inside.values() if len(parts) > 1}
    assert rooms == set(RUNTIME)
    wrong = []
    for file, parts in inside.items():
        floor = RUNTIME.index(parts[0]) if len(parts) > 1 else len(RUNTIME)
        for name in imports_of(file):
            if name.startswith("tightrope.run."):
                other = name.split(".")[2]
                if (other not in RUNTIME and floor < len(RUNTIME)) or other in RUNTIME[floor + 1 :]:
                    wrong.append(f"{'/'.join(parts)} imports {name}")
    assert not wrong


def test_rooms_import_rooms_and_never_the_public_surface() -> None:
    outside = {(a, b) for a, b in arrows() if b not in ORDER}
    assert not outside


def test_the_judge_imports_the_core_alone() -> None:
    assert {b for a, b in arrows() if a == "judge"} == {"core"}


def tops(file: Path) -> set[str]:
    """List the first parts of the names of all modules that a file imports."""
    return {name.split(".")[0] for name in imports_of(file)}


def test_the_core_imports_no_plug_in() -> None:
    assert not {file.name for file in FILES if any(top.startswith("tightrope_") for top in tops(file))}


@pytest.mark.parametrize("plugin", distributions(), ids=lambda plugin: plugin.name)
def test_a_plug_in_imports_the_core_itself_and_what_plug_ins_share(plugin: Path) -> None:
    package = package_of(plugin)
    assert package.name == plugin.name.replace("-", "_") == project(plugin)["name"].replace("-", "_")
    files = sorted(package.rglob("*.py"))
    needed = {name.partition("==")[0] for name in project(plugin)["dependencies"]}
    shared = {package_of(one).name for one in libraries() if one.name in needed}
    used = {top for file in files for top in tops(file) if top.startswith("tightrope_")} - {package.name}
    assert used == shared
    commands = f"{package.name}.commands"
    inside = [file for file in files if not file.is_relative_to(package / "commands")]
    for file in inside:
        names = imports_of(file)
        assert not [name for name in names if name.startswith((commands, "tightrope.cli", "typer"))], file


@pytest.mark.parametrize("plugin", plugins(), ids=lambda plugin: plugin.name)
def test_a_judge_of_a_plug_in_imports_types_and_judges_alone(plugin: Path) -> None:
    name = package_of(plugin).name
    for file in (package_of(plugin) / "judge").glob("*.py"):
        ours = {one for one in imports_of(file) if one.startswith("tightrope")}
        allowed = ("tightrope.core", "tightrope.judge", f"{name}.values", f"{name}.judge")
        assert all(one.startswith(allowed) for one in ours), file
        assert "torch" not in tops(file)


@pytest.mark.parametrize("room", TORCH_FREE)
def test_torch_stays_out_of_rooms_that_only_compute(room: str) -> None:
    files = [file for file in FILES if room_of(file) == room]
    assert files
    torches = {file.name for file in files if any(n.split(".")[0] == "torch" for n in imports_of(file))}
    assert not torches


def module_of(file: Path) -> str:
    (package,) = (one for one in packages() if file.is_relative_to(one))
    return ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count; a package does not stand for its modules."""
    modules = {module_of(file): file for file in [*FILES, *OF_PLUGINS]}
    arrows = {
        name: {found if found in modules else found.rpartition(".")[0] for found in imports_of(file) - {name}}
        for name, file in modules.items()
    }
    order: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        assert name not in open_, f"a circle of imports: {' -> '.join([*open_, name])}"
        if name not in order:
            open_.append(name)
            for other in sorted(arrows[name] & set(modules)):
                visit(other)
            order.append(open_.pop())

    for name in modules:
        visit(name)
    assert set(order) == set(modules)


def test_every_class_name_stands_for_one_class() -> None:
    where: dict[str, list[str]] = {}
    for file in [*FILES, *OF_PLUGINS]:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(module_of(file))
    assert {name: found for name, found in where.items() if len(found) > 1} == {}


PRIVATE = tuple(sorted(file.name for file in (SOURCE / "capture").glob("_[a-z]*.py")))
"""In ``capture/``. A room of a plug-in may have one ``_torch.py`` for the runtime that it plans for."""


def private_names(file: Path) -> list[str]:
    """List imports and attribute chains such as ``torch._dynamo.config`` that use torch's private names."""
    found = [name for name in imports_of(file) if name.startswith("torch.") and "._" in name]
    for node in nodes_of(file):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            chain = ast.unparse(node)
            if chain.startswith("torch.") and not chain.startswith("torch.ops."):
                found.append(f"{chain} (line {node.lineno})")
    return found


def test_private_names_of_torch_live_in_named_files() -> None:
    owners = [SOURCE / "capture" / name for name in PRIVATE]
    owners += [file for file in OF_PLUGINS if file.name == "_torch.py"]
    assert all(private_names(owner) for owner in owners if owner.name != "_probes.py")
    files = [file for file in [*FILES, *OF_PLUGINS] if file not in owners]
    spread = {module_of(file): private_names(file) for file in files}
    assert {name: found for name, found in spread.items() if found} == {}


@pytest.mark.parametrize("file", [*FILES, *OF_PLUGINS], ids=module_of)
def test_files_and_functions_are_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    for node in nodes_of(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 80, f"{node.name} at line {node.lineno}"


def test_the_environment_has_no_gpu_build_and_no_package_that_breaks_a_cpu_build() -> None:
    names = {dist.metadata["Name"].lower() for dist in importlib.metadata.distributions()}
    assert "torch" in names
    assert not {name for name in names if name.startswith("nvidia-") or name in FORBIDDEN}
