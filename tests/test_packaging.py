"""The package as it is installed: what a wheel and a source archive hold, and what they need."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.packages import CORE, ROOT, distributions, package_of, plugins, project
from tightrope.core.version import VERSION

PACKAGE = CORE
BUILD = "import hatchling.build as b, os, sys; os.chdir(sys.argv[1]); print(b.build_{}(sys.argv[2]))"
TRAIN = """
import tightrope, torch

model = tightrope.compile(torch.nn.Linear(64, 64), budget="8MiB")
model(torch.ones(4, 64)).sum().backward()
print(tightrope.report(model).enforced)
"""


def shipped(package: Path = CORE) -> set[str]:
    """List the files of a package, relative to its parent."""
    files = (file for file in package.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(package.parent)) for file in files}


def printed(*command: str | Path, **environment: str) -> str:
    """Run a command outside of the checkout; return what it prints."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_beside_torch_takes_at_most_150_ms() -> None:
    script = (
        "import time, torch\nstart = time.process_time()\nimport tightrope\n"
        "print(time.process_time() - start)"
    )
    seconds = [float(printed(sys.executable, "-c", script, PYTHONPATH=str(PACKAGE.parent))) for _ in range(2)]
    assert min(seconds) <= 0.15


def test_the_shell_completes_commands() -> None:
    environment = {"_TIGHTROPE_COMPLETE": "complete_bash", "COMP_WORDS": "tightrope est", "COMP_CWORD": "1"}
    command = (sys.executable, "-m", "tightrope.cli")
    assert printed(*command, PYTHONPATH=str(PACKAGE.parent), **environment).split() == ["estimate"]


def test_what_is_no_python_is_there_to_be_shipped() -> None:
    kinds = {Path(name).suffix for name in shipped()}
    assert {".py", ".cpp", ".hpp", ".toml", ".typed"} <= kinds


@pytest.mark.parametrize("plugin", distributions(), ids=lambda plugin: plugin.name)
def test_a_distribution_has_the_version_of_the_core(plugin: Path) -> None:
    own, core = project(plugin), project(ROOT)
    assert own["version"] == VERSION
    ours = [name for name in own["dependencies"] if name.startswith("tightrope")]
    assert ours in ([f"tightrope=={VERSION}"], [f"tightrope=={VERSION}", f"tightrope-shared=={VERSION}"])
    assert {key: own[key] for key in ("license", "requires-python", "authors")} == {
        key: core[key] for key in ("license", "requires-python", "authors")
    }
    assert (plugin / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "dev" in own["optional-dependencies"], "the Makefile installs it"


@pytest.mark.parametrize("plugin", plugins(), ids=lambda plugin: plugin.name)
def test_a_plug_in_is_an_extra_of_the_core(plugin: Path) -> None:
    extras = project(ROOT)["optional-dependencies"]
    extra = plugin.name.removeprefix("tightrope-")
    assert [name.partition("[")[0] for name in extras[extra]] == [plugin.name]
    assert f"tightrope[{extra}]" in extras["all"]


@pytest.mark.parametrize("plugin", distributions(), ids=lambda plugin: plugin.name)
def test_a_wheel_of_a_plug_in_holds_its_package_and_nothing_else(plugin: Path, tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="builds as `pip install` does, without the network")
    made = printed(sys.executable, "-c", BUILD.format("wheel"), plugin, tmp_path).split()[-1]
    names = set(zipfile.ZipFile(tmp_path / made).namelist())
    assert {name for name in names if ".dist-info/" not in name} == shipped(package_of(plugin))
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("entry_points.txt") for name in names) == (plugin in plugins())


@pytest.mark.slow
def test_a_wheel_made_from_the_source_archive_works_with_and_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hatchling", reason="builds as `pip install` does, without the network")
    made = printed(sys.executable, "-c", BUILD.format("sdist"), ROOT, tmp_path).split()[-1]
    with tarfile.open(tmp_path / made) as archive:
        names = set(archive.getnames())
        archive.extractall(tmp_path, filter="data")
    top = tmp_path / made.removesuffix(".tar.gz")
    assert {f"{top.name}/src/{name}" for name in shipped()} <= names
    assert all(
        f"{top.name}/{name}" in names for name in ("LICENSE", "tests/test_docs.py", "docs/planning.md")
    )
    wheel = tmp_path / printed(sys.executable, "-c", BUILD.format("wheel"), top, tmp_path).split()[-1]
    assert shipped() <= set(zipfile.ZipFile(wheel).namelist())

    home = tmp_path / "clean"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    monkeypatch.setenv("PYTHONPATH", "")
    site = Path(printed(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # The libraries that it needs are those installed here, plug-ins in editable mode included.
    (site / "libraries.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    printed(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    assert str(home) in printed(python, "-c", "import tightrope; print(tightrope.__file__)")
    for compiler, enforced in (("", "True"), ("/no/compiler", "False")):
        cache = str(tmp_path / f"cache{len(compiler)}")
        assert printed(python, "-c", TRAIN, TIGHTROPE_CACHE=cache, CXX=compiler).split()[-1] == enforced
    assert "estimate" in printed(home / "bin" / "tightrope", "--help")
