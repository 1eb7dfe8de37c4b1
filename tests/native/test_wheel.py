"""A wheel that brings its native part: what is in it, which library is chosen, what it enforces."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

import native_wheel as wheel
from benchmarks.first import installed as installed_wheel
from benchmarks.first import without_compiler
from tightrope.core import NativeError
from tightrope.native import build, prebuilt
from tightrope.native.prebuilt import BuiltLibrary

SMALL = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a package in which a wheel put libraries for two minors of torch."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook/allocator.cpp").write_text('#include "state.hpp"\n')
    (tmp_path / "hook/state.hpp").write_text("int state;\n")
    (tmp_path / "packer.cpp").write_text(SMALL)
    monkeypatch.setattr(prebuilt, "SOURCES", tmp_path)
    monkeypatch.setattr(prebuilt, "LIBRARIES", tmp_path / "libraries")
    listed = [BuiltLibrary("packer", prebuilt.hash_of(tmp_path / "packer.cpp"))]
    hook = prebuilt.hash_of(tmp_path / "hook/allocator.cpp")
    listed += [BuiltLibrary("allocator", hook, minor) for minor in ("2.12", "2.13")]
    (tmp_path / "libraries").mkdir()
    for library in listed:
        (tmp_path / "libraries" / library.file).write_bytes(b"")
    (tmp_path / "libraries/manifest.json").write_bytes(msgspec.json.encode(listed))
    return tmp_path


def installed(package: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = package / "torch"
    torch.mkdir(exist_ok=True)
    (torch / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
    monkeypatch.setattr(prebuilt, "torch_folder", lambda: torch)


@pytest.mark.parametrize(
    ("version", "file"),
    [
        ("2.13.0+cpu", "allocator-torch2.13.so"),
        ("2.12.1", "allocator-torch2.12.so"),
        ("2.14.1+cu130", None),
        ("2.13.0a0+git1", None),
        ("2.13.0.dev20260101", None),
    ],
)
def test_the_hook_is_chosen_by_the_minor_of_torch(
    version: str, file: str | None, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(package, version, monkeypatch)
    found = prebuilt.prebuilt("allocator")
    assert (found and found.name) == file
    assert prebuilt.prebuilt("packer") == package / "libraries/packer.so"


def test_a_library_of_other_sources_is_never_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(package, "2.13.0", monkeypatch)
    (package / "hook/state.hpp").write_text("long state;\n")
    assert prebuilt.prebuilt("allocator") is None
    (package / "libraries/packer.so").unlink()
    assert prebuilt.prebuilt("packer") is None


def test_a_damaged_manifest_is_said(package: Path) -> None:
    (package / "libraries/manifest.json").write_text("[{")
    with pytest.raises(NativeError, match="install tightrope again"):
        prebuilt.prebuilt("packer")


def test_a_checkout_has_none() -> None:
    assert prebuilt.prebuilt("allocator") is None


@pytest.mark.parametrize(
    ("kind", "version", "glibc"),
    [
        ("GLIBC", (2, 34), 34),
        ("GLIBC", (2, 2, 5), 2),
        ("GLIBCXX", (3, 4), 17),
        ("GLIBCXX", (3, 4, 21), 28),
        ("GLIBCXX", (3, 4, 30), 39),
        ("CXXABI", (1, 3, 13), 34),
    ],
)
def test_a_symbols_version_says_which_glibc(kind: str, version: tuple[int, ...], glibc: int) -> None:
    assert wheel._glibc(kind, version) == glibc


def test_a_symbol_that_is_too_new_for_any_tag_is_refused() -> None:
    with pytest.raises(NativeError, match="newer"):
        wheel._glibc("GLIBCXX", (3, 4, 99))


needs_compiler = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")


@needs_compiler
def test_a_wheel_has_its_libraries_a_manifest_and_a_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    (sources / "solvers").mkdir(parents=True)
    (sources / "solvers/answer.cpp").write_text(SMALL)
    monkeypatch.setattr(wheel, "SOURCES", sources)
    made = wheel.make([], tmp_path / "built", tmp_path / "dist")
    assert made.parent == tmp_path / "dist"
    assert "-py3-none-manylinux_2_" in made.name
    with zipfile.ZipFile(made) as file:
        names = [name for name in file.namelist() if "/libraries/" in name]
        listed = msgspec.json.decode(
            file.read("tightrope/native/libraries/manifest.json"), type=list[BuiltLibrary]
        )
    assert sorted(names) == [f"tightrope/native/libraries/{name}" for name in ("answer.so", "manifest.json")]
    assert listed == [BuiltLibrary("answer", prebuilt.hash_of(sources / "solvers/answer.cpp"))]


ENFORCED = """
import torch, tightrope
from tightrope.native import compiler
assert "site-packages" in tightrope.__file__, tightrope.__file__
layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(8)]
model = torch.nn.Sequential(*layers)
model = tightrope.compile(model, budget="80%")
model(torch.randn(1024, 256)).sum().backward()
try:
    torch.empty(1 << 30)
    refused = False
except torch.OutOfMemoryError:
    refused = True
found = tightrope.report(model)
print(found.level, found.enforced, refused, compiler())
"""
INTERPRETERS = os.environ.get("TIGHTROPE_TORCHES", "").split() or [sys.executable]
"""Of environments, one a minor version of torch: one wheel brings its native part to all."""


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torches = [wheel.torch_of(interpreter) for interpreter in INTERPRETERS]
    return wheel.make(torches, Path("build/libraries").absolute(), tmp_path_factory.mktemp("dist"))


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_wheel_enforces_a_budget_where_no_compiler_is(
    interpreter: str, platform_wheel: Path, tmp_path: Path
) -> None:
    assert platform_wheel.stat().st_size < 8e6
    python = installed_wheel(platform_wheel, tmp_path / "new", interpreter)
    (tmp_path / "train.py").write_text(ENFORCED)
    done = subprocess.run(
        [python, tmp_path / "train.py"],
        capture_output=True,
        text=True,
        env=without_compiler(tmp_path / "cache"),
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["L1", "True", "True", "None"], done.stderr
