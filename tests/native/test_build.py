import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tightrope.core import NativeError
from tightrope.native import build

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small source, and an empty cache."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.hpp").write_text("inline int value() { return 42; }\n")
    (folder / "answer.cpp").write_text('#include "answer.hpp"\nextern "C" int answer() { return value(); }\n')
    monkeypatch.setattr(build, "SOURCES", folder)
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "cache"))
    return folder


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def test_builds_once_and_then_answers_from_the_cache(sources: Path) -> None:
    first = build.library("answer")
    made = first.stat().st_mtime_ns
    assert answer(first) == 42
    assert build.library("answer") == first
    assert first.stat().st_mtime_ns == made


@pytest.mark.parametrize("name", ["answer.cpp", "answer.hpp"])
def test_a_changed_source_or_header_is_built_anew(sources: Path, name: str) -> None:
    first = build.library("answer")
    (sources / name).write_text((sources / name).read_text() + "// changed\n")
    second = build.library("answer")
    assert second != first
    assert answer(second) == 42


def test_builds_at_the_same_time_leave_one_whole_library(sources: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(build.library, ["answer"] * 4))
    assert len(set(paths)) == 1
    assert [path.name for path in build.cache_folder().iterdir()] == [paths[0].name]
    assert answer(paths[0]) == 42


def test_the_compilers_first_errors_are_quoted(sources: Path) -> None:
    (sources / "answer.cpp").write_text("int answer() { return undeclared_name; }\n")
    with pytest.raises(NativeError, match=r"(?s)answer\.cpp.*undeclared_name.*CXX"):
        build.library("answer")
    assert list(build.cache_folder().iterdir()) == []


def test_an_unknown_source_names_the_known_ones(sources: Path) -> None:
    with pytest.raises(NativeError, match="there are: answer"):
        build.library("../answer")


def test_a_chosen_compiler_that_does_not_exist_is_not_replaced(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert build.compiler() is None
    with pytest.raises(NativeError, match=r"no-such-compiler.*Install one"):
        build.library("answer")


def test_a_cache_that_cannot_be_written_says_what_to_set(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_CACHE", str(sources / "answer.cpp"))
    with pytest.raises(NativeError, match="Set TIGHTROPE_CACHE"):
        build.library("answer")


def test_the_cache_stands_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIGHTROPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert build.cache_folder() == Path("somewhere", "tightrope")


def test_the_command_says_so_when_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    result = subprocess.run(
        [sys.executable, "-m", "tightrope.native"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0
    assert "no C++ compiler" in result.stdout


def test_building_imports_no_build_system_of_torch() -> None:
    code = "import sys, tightrope.native; sys.exit('torch.utils.cpp_extension' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
