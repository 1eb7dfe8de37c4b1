import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tightrope.core import NativeError, cache
from tightrope.native import build
from tightrope.run.base import status

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
    (other := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other))
    monkeypatch.setattr(cache, "_SAID", set())
    cache._process_folder.cache_clear()
    return folder


def answer(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).answer())


def answer_of_a_new_process(path: Path) -> int:
    """Load a library where nothing of its path is loaded yet."""
    code = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    return int(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


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


def test_a_changed_include_of_an_include_gives_another_library_name(sources: Path) -> None:
    beside = sources.parent / "beside"
    beside.mkdir()
    (beside / "deep.hpp").write_text("inline int deep() { return 42; }\n")
    (sources / "answer.hpp").write_text(
        '#  include "../beside/deep.hpp"\ninline int value() { return deep(); }\n'
    )
    first = build.library("answer")
    assert answer_of_a_new_process(first) == 42
    (beside / "deep.hpp").write_text("inline int deep() { return 43; }\n")
    second = build.library("answer")
    assert second.name != first.name
    assert answer_of_a_new_process(second) == 43


def test_every_quoted_include_of_the_sources_is_a_file() -> None:
    for name, source in build._sources().items():
        for file in build.read_by(source):
            assert file.is_file(), f"{name} includes {file}"


def test_builds_at_the_same_time_leave_one_whole_library(sources: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(build.library, ["answer"] * 4))
    assert len(set(paths)) == 1
    assert [path.name for path in paths[0].parent.iterdir()] == [paths[0].name]
    assert answer(paths[0]) == 42


def forge(path: Path) -> None:
    """Put what answers 13 in the place of a library, as somebody else would."""
    wrong = path.parent.parent / "wrong.cpp"
    wrong.write_text('extern "C" int answer() { return 13; }\n')
    path.unlink()
    subprocess.run(["c++", "-shared", "-fPIC", str(wrong), "-o", str(path)], check=True)


def linked(path: Path) -> None:
    path.rename(moved := path.with_suffix(".other"))
    path.symlink_to(moved)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o720),
        lambda path: path.chmod(0o702),
        linked,
        pytest.param(lambda path: os.chown(path, 54321, -1), marks=needs_root),
    ],
    ids=["group-writable", "world-writable", "a symlink", "of another user"],
)
def test_a_file_that_others_may_have_written_is_built_anew(
    sources: Path, change: Callable[[Path], None]
) -> None:
    first = build.library("answer")
    forge(first)
    change(first)
    assert build.library("answer") == first
    assert answer_of_a_new_process(first) == 42
    assert (first.stat().st_uid, first.lstat().st_mode & 0o777) == (os.geteuid(), 0o755)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: folder.chmod(0o770),
        lambda folder: folder.chmod(0o1777),
        lambda folder: folder.parent.chmod(0o777),
        pytest.param(lambda folder: os.chown(folder, 54321, -1), marks=needs_root),
    ],
    ids=["group-writable", "world-writable", "below a world-writable one", "of another user"],
)
def test_a_cache_that_others_may_write_is_left_alone(
    sources: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(other := tmp_path_factory.mktemp("temporary")))
    first = build.library("answer")
    forge(first)
    change(folder := Path(os.environ["TIGHTROPE_CACHE"]))
    before = list(folder.iterdir())
    with pytest.warns(RuntimeWarning, match=r"(written by|belongs to).*instead\. Set TIGHTROPE_CACHE"):
        second = build.library("answer")
    assert build.library("answer") == second, "built once, and said once"
    assert second.parent == other / f"tightrope-{os.geteuid()}"
    assert answer_of_a_new_process(second) == 42
    assert list(folder.iterdir()) == before


def test_a_cache_behind_a_symlink_is_used_where_it_points_to_a_private_folder(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "link"))
    assert build.library("answer").parent == tmp_path / "real"


def test_without_any_safe_folder_nothing_is_loaded(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unsafe := tmp_path / "unsafe").mkdir()
    unsafe.chmod(0o777)
    monkeypatch.setenv("TIGHTROPE_CACHE", str(unsafe))
    monkeypatch.setattr("tempfile.tempdir", str(unsafe))
    with pytest.raises(
        NativeError, match=r"(?s)written by others.*written by everybody.*Set TIGHTROPE_CACHE"
    ):
        build.library("answer")


def test_the_folder_of_a_process_goes_with_it(sources: Path, tmp_path: Path) -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from pathlib import Path; from tightrope.native import build\n"
        f"build.SOURCES = Path({str(sources)!r})\n"
        "print(build.library('answer'))"
    )
    (tmp_path / "cache").touch()
    taken = tmp_path / "temporary" / f"tightrope-{os.geteuid()}"
    taken.touch()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).parent.parent == taken.parent
    assert list(taken.parent.iterdir()) == [taken]


def test_the_compilers_first_errors_are_quoted(sources: Path) -> None:
    (sources / "answer.cpp").write_text("int answer() { return undeclared_name; }\n")
    with pytest.raises(NativeError, match=r"(?s)answer\.cpp.*undeclared_name.*CXX"):
        build.library("answer")
    assert list(Path(os.environ["TIGHTROPE_CACHE"]).iterdir()) == []


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
    with pytest.warns(RuntimeWarning, match="Not a directory.*Set TIGHTROPE_CACHE"):
        assert answer(build.library("answer")) == 42


def test_a_library_that_was_built_is_found_without_a_compiler_and_with_another_one(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.library("answer")
    for other in ("/no/compiler", "clang++ -O1", "/bin/false"):
        monkeypatch.setenv("CXX", other)
        assert build.library("answer") == first


def test_a_library_is_not_built_twice_in_a_folder_that_replaces_the_cache(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_CACHE", str(sources / "answer.cpp"))
    with pytest.warns(RuntimeWarning, match="instead"):
        first = build.library("answer")
    monkeypatch.setenv("CXX", "/no/compiler")
    assert build.library("answer") == first


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


def test_headers_of_cuda_are_put_together_from_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "torch_folder", lambda: tmp_path / "torch")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    runtime, triton = tmp_path / "nvidia/cu13/include", tmp_path / "triton/backends/nvidia/include"
    runtime.mkdir(parents=True)
    (runtime / "cuda_runtime_api.h").touch()
    with pytest.raises(NativeError, match=r"crt/host_config\.h.*CUDA_HOME.*nvidia-cuda-crt"):
        build._cuda_headers()
    (triton / "crt").mkdir(parents=True)
    for name in ("cuda_runtime_api.h", "crt/host_config.h"):
        (triton / name).touch()
    assert build._cuda_headers() == (runtime, triton)
    whole = tmp_path / "cuda/include"
    (whole / "crt").mkdir(parents=True)
    for name in ("cuda_runtime_api.h", "crt/host_config.h"):
        (whole / name).touch()
    monkeypatch.setenv("CUDA_HOME", str(whole.parent))
    assert build._cuda_headers() == (whole,)


WAIT_FOR_EACH_OTHER = """#!/bin/sh
case "$*" in *.cpp*) ;; *) exit 1;; esac
touch "{folder}/$$"
for i in $(seq 100); do
  [ $(ls {folder} | wc -l) -ge 2 ] && exec c++ "$@"
  sleep 0.05
done
"""


def test_what_a_first_step_needs_is_built_at_once(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "other.cpp").write_text((sources / "answer.cpp").read_text())
    monkeypatch.setattr(build, "FIRST", ("answer", "other", "of a GPU"))
    (waiting := tmp_path / "waiting").mkdir()
    (compiler := tmp_path / "compiler").write_text(WAIT_FOR_EACH_OTHER.format(folder=waiting))
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert build.unbuilt() == ("answer", "other")
    build.build(build.unbuilt())
    assert build.unbuilt() == ()
    monkeypatch.setenv("TIGHTROPE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("CXX", "/no/compiler")
    assert build.unbuilt() == ()


@pytest.mark.parametrize("shown", [None, False])
def test_a_first_build_says_so_in_one_line(
    shown: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[object]()

    def slowly(names: object) -> None:
        asked.append(names)
        time.sleep(0.2)

    monkeypatch.setattr(status, "_BUILT", set())
    monkeypatch.setattr(status, "_PATIENCE", 0.0)
    monkeypatch.setattr(status, "unbuilt", lambda: ("packer",))
    monkeypatch.setattr(status, "build", slowly)
    for _ in range(2):
        status.build_native(status.StatusLine(shown=shown))
    assert asked == [("packer",)]
    said = "" if shown is False else "tightrope: building the native part (once, 10 to 30 s) ...\n"
    assert capsys.readouterr().err == said
