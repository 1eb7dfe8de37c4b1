"""Functions compiled into loops together: one library, kept for the next process, refused one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tightrope.capture import _inductor
from tightrope.capture._inductor import CompiledLoops, Loops, compile_loops

_LAYOUT = ((8, 64), (64, 1), torch.float32)


def _row_sums(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return ((given[0] * given[1]).sum(1),)


def _tanh(given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return (torch.tanh(given[0]) + 1, given[0] * 2)


EVERY = [Loops("row sums", _row_sums, [_LAYOUT, _LAYOUT]), Loops("tanh", _tanh, [_LAYOUT])]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where code is kept; libraries stay in torch's own folder."""
    monkeypatch.setattr(_inductor, "_file_of", lambda name: tmp_path / f"{name}.json")
    return tmp_path


def _library_of(name: str) -> Path:
    text = _inductor._kept(name)
    assert text is not None
    assert text.kernels[0].library is not None
    return _inductor._folder() / text.kernels[0].library[0]


def fails(*_: Any) -> Any:
    raise AssertionError("compiled again")


def given(loops: Loops) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape, _, _ in loops.layouts]


def check(found: list[CompiledLoops | str]) -> None:
    for loops, run in zip(EVERY, found, strict=True):
        assert not isinstance(run, str)
        taken = given(loops)
        made = run(taken)
        assert not taken
        assert all(map(torch.allclose, made, loops.function(given(loops))))


@pytest.mark.slow
def test_several_functions_share_a_library_that_the_next_process_finds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    check(compile_loops(EVERY, tick=seen.append))
    assert seen == [0, 1]
    texts = [_inductor._kept(one.name) for one in EVERY]
    libraries = {kernel.library[0] for text in texts if text for kernel in text.kernels if kernel.library}
    assert len(libraries) == 1
    monkeypatch.setattr(_inductor, "write", fails)
    check(compile_loops(EVERY))


@pytest.mark.parametrize("change", [lambda text: "{", lambda text: text.replace(".main.so", ".gone.so")])
def test_what_is_damaged_or_gone_is_compiled_again(
    folder: Path, change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(compile_loops(EVERY))
    for file in folder.iterdir():
        file.write_text(change(file.read_text()))
    with monkeypatch.context() as again:
        again.setattr(_inductor, "write", fails)
        with pytest.raises(AssertionError, match="compiled again"):
            compile_loops(EVERY)
    check(compile_loops(EVERY))


def test_a_library_that_does_not_load_is_built_again(folder: Path) -> None:
    one = [Loops("half written", lambda given: (given[0].exp() * 3,), [_LAYOUT])]
    assert callable(compile_loops(one)[0])
    text = _inductor._kept("half written")
    assert text is not None
    (kernel,) = text.kernels
    assert kernel.library is not None
    library = _library_of("half written")
    copied = library.with_name("half.so")
    copied.write_bytes(library.read_bytes()[:64])
    copied.chmod(0o700)
    _inductor._keep("half written", replace(text, kernels=(replace(kernel, library=(
        f"{Path(kernel.library[0]).parent}/half.so", "half", kernel.library[2])),)))  # fmt: skip
    assert callable(compile_loops(one)[0])
    assert not copied.exists()
    kept = _inductor._kept("half written")
    assert kept is not None
    assert kept.kernels == text.kernels


def test_libraries_are_found_again_though_a_group_may_write_those_of_torch(folder: Path) -> None:
    one = [Loops("shared", lambda given: (given[0].exp() * 5,), [_LAYOUT])]
    compile_loops(one)
    mine = _library_of("shared")
    (library,) = (path for path in mine.parent.parent.glob(f"*/{mine.name}") if path != mine)
    modes = {path: path.stat().st_mode for path in (library, library.parent)}
    for path, mode in modes.items():
        path.chmod(mode | 0o020)
    try:
        (folder / "shared.json").unlink()
        assert callable(compile_loops(one)[0])
        assert _library_of("shared").parent == mine.parent
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize("open_to_others", ["the file", "its folder"])
def test_what_others_can_write_is_not_run(
    folder: Path, open_to_others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(compile_loops(EVERY))
    for path in [folder] if open_to_others == "its folder" else folder.iterdir():
        path.chmod(0o777)
    monkeypatch.setattr(_inductor, "write", fails)
    with pytest.raises(AssertionError, match="compiled again"):
        compile_loops(EVERY)


def spoil(real: Callable[[Loops], Any]) -> Callable[[Loops], Any]:
    """Let torch write C++ that no compiler takes, for one function."""

    def write(one: Loops) -> Any:
        text, constants = real(one)
        if one.name == "spoilt":
            bad = (replace(kernel, source=f"{kernel.source}\n#error spoilt") for kernel in text.kernels)
            return replace(text, kernels=tuple(bad)), constants
        return text, constants

    return write


def test_one_function_that_is_refused_leaves_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inductor, "write", spoil(_inductor.write))
    fresh = [EVERY[0]._replace(name="fresh"), EVERY[1]._replace(name="spoilt")]
    kept, refused = compile_loops(fresh)
    assert not isinstance(kept, str)
    assert isinstance(refused, str)
    assert refused.startswith("torch's compiler refuses it (")


def test_of_vector_instructions_only_those_in_use_are_tried_and_nothing_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import cpu_vec_isa

    kinds: Any = cpu_vec_isa.valid_vec_isa_list
    if len(kinds()) < 2:
        pytest.skip("this processor has one kind of vector instructions, or none")
    tried: list[str] = []

    def check_build(self: Any, code: str) -> bool:
        tried.append(f"{self} {code == cpu_vec_isa.VecISA._avx_code}")
        return True

    def forget() -> None:
        cpu_vec_isa.VecISA.__dict__["_VecISA__bool__impl"].cache_clear()
        for known in (kinds, *(type(kind).__bool__ for kind in cpu_vec_isa.supported_vec_isa_list)):
            getattr(known, "cache_clear", lambda: None)()

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    best, lesser = (f"{kind} True" for kind in kinds()[:2])
    forget()
    with _inductor._one_probe():
        assert cpu_vec_isa.pick_vec_isa() is kinds()[0]
    assert best in tried
    assert lesser not in tried
    assert not kinds.cache_info().currsize
    kinds()
    assert lesser in tried
    forget()
