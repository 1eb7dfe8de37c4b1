"""Torch's compiler for loops; a third such module, as `_torch` and `_eager` are."""

import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import torch
import torch.fx

from tightrope.capture._probes import LOOPS, gone, said_of
from tightrope.capture._torch import real_tensors
from tightrope.capture.loop_text import LoopKernel, LoopText, library_text
from tightrope.core.cache import Folder

_SETTINGS: dict[str, Any] = {"size_asserts": False, "keep_output_stride": True, "fx_graph_cache": False}
_BELIEVED: Final = "cpp.vec_isa_ok"
_LEAST_PER_LIBRARY: Final = 8
_LAYOUT: Final = 1
"""Version of what is kept."""

CompiledLoops: TypeAlias = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


def compiler_missing() -> str:
    """Say why nothing can be compiled here, or nothing."""
    if broken := said_of(gone(LOOPS)):
        return broken
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception as error:  # torch raises its own classes, by version
        return f"torch finds no C++ compiler ({str(error).splitlines()[0][:200]})"
    return ""


class Loops(NamedTuple):
    """A function to compile, for inputs of exactly these layouts.

    Attributes:
        name: of all that its code depends on, the processor included.
        function: takes one list, gives a tuple; without random numbers and without changes in place.
        layouts: shape, strides and dtype of each input.
    """

    name: str
    function: Callable[..., Any]
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]


def compile_loops(
    every: Sequence[Loops], *, tick: Callable[[int], None] = lambda done: None
) -> list[CompiledLoops | str]:
    """Compile functions of tensors into loops.

    Torch writes the code of each; the C++ of all is built at once, because reading the headers takes a
    compiler longer than a kernel. What was built is kept in torch's folder and found again by name.

    Args:
        every: to compile.
        tick: called with the number that is written, before each.

    Returns:
        Per function, what takes a list, which it empties, and gives the outputs; or why torch refuses it.
    """
    kept = [_again(one.name) for one in every]
    written: list[tuple[LoopText, dict[str, Any]] | CompiledLoops | str] = []
    with nullcontext() if all(kept) else _one_probe():
        for done, (one, old) in enumerate(zip(every, kept, strict=True)):
            tick(done)
            written.append(old or write(one))
        built = _build({kernel for item in written if isinstance(item, tuple) for kernel in item[0].kernels})
    found: list[CompiledLoops | str] = []
    for one, item in zip(every, written, strict=True):
        if not isinstance(item, tuple):
            found.append(item)
            continue
        text, constants = item
        new = tuple(built.get(kernel, kernel) for kernel in text.kernels)
        refused = [kernel for kernel in new if isinstance(kernel, str)]
        if refused:
            found.append(refused[0])
            continue
        ready = LoopText(text.python, tuple(kernel for kernel in new if not isinstance(kernel, str)))
        if ready != text and not constants:
            _keep(one.name, ready)
        found.append(_load(ready, constants))
    return found


def write(one: Loops) -> tuple[LoopText, dict[str, Any]] | str:
    """Let torch write the code of a function, with the constants that it reads; or say why it does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, in the modules that it imports
        from torch._guards import TracingContext, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
        from torch._inductor.virtualized import V
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*values: torch.Tensor) -> Any:
        return one.function(list(values))

    kernels: list[LoopKernel] = []

    def note(arguments: Sequence[str], source: str) -> None:
        kernels.append(LoopKernel(tuple(arguments), source))

    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", DeprecationWarning)
            stack.enter_context(real_tensors())
            stack.enter_context(torch.no_grad())
            mode = FakeTensorMode()
            with mode:
                fake = [
                    torch.empty_strided(size, strides, dtype=dtype) for size, strides, dtype in one.layouts
                ]
                traced = make_fx(flat, decomposition_table=select_decomp_table(), tracing_mode="fake")(*fake)
            stack.enter_context(tracing(TracingContext(mode)))
            stack.enter_context(V.set_fake_mode(mode))
            stack.enter_context(config.patch(_SETTINGS))
            stack.enter_context(_kernels_by(note))
            compiled: Any = compile_fx_inner(traced, fake)
    except Exception as error:  # whatever a compiler trips over: the caller runs op by op instead
        return _refusal(error)
    return LoopText(compiled.source_code, tuple(kernels)), dict(compiled.constants or {})


def _refusal(error: Exception) -> str:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return f"torch's compiler refuses it ({type(error).__name__}: {reason[0][:200]})."


@contextmanager
def _one_probe() -> Iterator[None]:
    """Let torch try the vector instructions that it takes, and not each kind that the processor has.

    It builds and loads a library per kind, some two seconds each, and then takes the first that works.
    Here the first is tried; where that works, the others are believed, to the end of the ``with`` block.
    """
    from torch._inductor import config, cpu_vec_isa

    kinds: Any = cpu_vec_isa.valid_vec_isa_list
    asked = (config.cpp.vec_isa_ok, config.cpp.simdlen, os.environ.get("ATEN_CPU_CAPABILITY"))
    if any(value is not None for value in asked) or kinds.cache_info().currsize:
        yield
        return

    def forget() -> None:
        for known in (kinds, *(type(kind).__bool__ for kind in cpu_vec_isa.supported_vec_isa_list)):
            getattr(known, "cache_clear", lambda: None)()

    try:
        with config.patch({_BELIEVED: True}):
            best = kinds()[:1]
        forget()
        with config.patch({_BELIEVED: True if all(best) else None}):
            kinds()
            yield
    finally:
        forget()


@contextmanager
def _kernels_by(make: Callable[[Sequence[str], str], Any]) -> Iterator[None]:
    """Let ``make`` give the kernels of code that torch writes or loads in this thread."""
    from torch._inductor.async_compile import AsyncCompile

    own, real = threading.get_ident(), AsyncCompile.cpp_pybinding

    def cpp_pybinding(self: Any, argtypes: list[str], source_code: str) -> Any:
        if threading.get_ident() != own:
            return real(self, argtypes, source_code)
        return make(argtypes, source_code)

    AsyncCompile.cpp_pybinding = cpp_pybinding  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = real  # type: ignore[method-assign]


def _build(every: Collection[LoopKernel]) -> dict[LoopKernel, LoopKernel | str]:
    """Build kernels in a few libraries, by as many threads; instead of one that is refused, the reason."""
    if not every:
        return {}
    kernels = sorted(every, key=lambda kernel: kernel.source)
    from torch._inductor.async_compile import get_compile_threads

    num = min(get_compile_threads(), -(-len(kernels) // _LEAST_PER_LIBRARY))
    with ThreadPoolExecutor(num, "tightrope loops") as pool:
        parts = list(pool.map(_built, [kernels[first::num] for first in range(num)]))
    return {kernel: made for part in parts for kernel, made in part.items()}


def _built(kernels: Sequence[LoopKernel]) -> dict[LoopKernel, LoopKernel | str]:
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    names = [f"kernel_{number}" for number in range(len(kernels))]
    try:
        module: Any = CppPythonBindingsCodeCache.load(library_text(kernels, names))
    except Exception as error:  # torch raises its own classes, by version
        if len(kernels) == 1:
            return {kernels[0]: _refusal(error)}
        return {kernel: made for kernel in kernels for made in _built([kernel]).values()}
    where = os.path.relpath(_own_copy(Path(module.__file__)), _folder())
    return {
        kernel: msgspec.structs.replace(kernel, library=(where, module.key, name))
        for kernel, name in zip(kernels, names, strict=True)
    }


def _own_copy(library: Path) -> Path:
    """Copy a library to where nobody else can write: torch's folders may be a group's, or open to one.

    Where that cannot be done the library stays where it is, and the next process builds it again.
    """
    own = Folder(_own_folder())
    with suppress(OSError):
        own.write(library.name, library.read_bytes())
    return own.path / library.name if own.find(library.name) else library


def _load(text: LoopText, constants: dict[str, Any]) -> CompiledLoops | str:
    """Run the module that torch has written, with kernels that are built."""
    known = {(kernel.arguments, kernel.source): kernel for kernel in text.kernels}
    scope: dict[str, Any] = {"__name__": "tightrope_loops", **constants}
    try:
        with _kernels_by(lambda arguments, source: _function(known[tuple(arguments), source])):
            exec(compile(text.python, "<tightrope loops>", "exec"), scope)
    except Exception as error:  # whatever torch's text trips over
        return _refusal(error)
    found: CompiledLoops = scope["call"]
    return found


def _function(kernel: LoopKernel) -> Any:
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    assert kernel.library is not None
    where, key, name = kernel.library
    return getattr(CppPythonBindingsCodeCache._load_library(str(_folder() / where), key), name)


def _folder() -> Path:
    """Where torch keeps the code that it compiles."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def _own_folder() -> Path:
    """Where this user's code is kept: below torch's folder, as torch's settings are part of the names."""
    return _folder() / f"tightrope-{os.geteuid()}"


def _file_of(name: str) -> Path:
    """Name the file that keeps the code of a function."""
    from torch._inductor import config

    portable = config.save_config_portable().items()
    settings = sorted((key, repr(value)) for key, value in portable if key != _BELIEVED)
    text = repr((_LAYOUT, name, torch.__version__, settings))
    return _own_folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _kept(name: str) -> LoopText | None:
    """Read code that was kept, unless somebody else can have written it or its libraries."""
    path = _file_of(name)
    try:
        found = msgspec.json.decode(Folder(path.parent).read(path.name), type=LoopText)
    except (OSError, msgspec.MsgspecError):
        return None  # it is compiled again
    there = (kernel.library is not None and _is_safe(kernel.library[0]) for kernel in found.kernels)
    return found if all(there) else None


def _is_safe(library: str) -> bool:
    """Tell whether nobody else can have written a library, named from torch's folder."""
    path = _folder() / library
    return Folder(path.parent).find(path.name, run=True) is not None


def _again(name: str) -> CompiledLoops | None:
    """Load code that was kept; remove a library that does not load, so that it is built again."""
    text = _kept(name)
    if text is None:
        return None
    found = _load(text, {})
    if not isinstance(found, str):
        return found
    for kernel in text.kernels:
        if kernel.library is not None:
            path = _folder() / kernel.library[0]
            Folder(path.parent).remove(path.name)
    return None


def _keep(name: str, text: LoopText) -> None:
    """Keep code for the next process; a folder that cannot be written only costs that its time."""
    with suppress(OSError):
        Folder((path := _file_of(name)).parent).write(path.name, msgspec.json.encode(text))
