"""TensorFlow Lite Micro's interpreter from its source, linked for an emulated Cortex-M4F with a .tflite file.

It is built as its own makefile builds a release: core -Os, kernels -O2, no messages, and only kernels of
the net's ops. *RAM* is static RAM and the most bytes of the stack; the arena is the smallest multiple of 64 B
with which the interpreter starts. *Flash* is all code and constants of the image, bench and .tflite file
among them. Instructions are those of a call, counted by the emulator.
"""

import hashlib
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tightrope_micro.emit import resource
from tightrope_micro.emulate import CORES, INSTRUCTIONS_PER_TICK

DOWNLOADS: Final = "tensorflow/lite/micro/tools/make/downloads"
_ROOM, _STACK, _STEP = 200_000, 8192, 64
_FLAGS: Final = (
    "-mthumb", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections",
    "-fdata-sections", "-fomit-frame-pointer", "-DTF_LITE_STATIC_MEMORY", "-DNDEBUG",
    "-DTF_LITE_STRIP_ERROR_STRINGS", "-DKERNELS_OPTIMIZED_FOR_SPEED", "-fsigned-char",
    *CORES["cortex-m4f"][1],
)  # fmt: skip
_CXX: Final = ("-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics")


@dataclass(frozen=True)
class Kernels:
    """Kernels that the interpreter is built with.

    Attributes:
        adds: op -> call that adds it to the resolver.
        files: op -> files of its kernel, without what they end in.
        level: of optimisation.
        flags: further ones.
        library: folder of C sources that kernels call.
    """

    adds: Mapping[str, str]
    files: Mapping[str, tuple[str, ...]]
    level: str = "-O2"
    flags: tuple[str, ...] = ()
    library: Path | None = None


@dataclass(frozen=True)
class Peer:
    """What the interpreter's image took and returned."""

    ram: int
    arena: int
    rom: int
    instructions: int
    outputs: tuple[bytes, ...]


def run_interpreter(
    here: Path, kernels: Kernels, kinds: Collection[str], given: Sequence[bytes], source: Path
) -> Peer:
    """Link with room, see what the arena takes, and link again with that alone.

    Args:
        here: folder with ``net.tflite``.
        kernels: to build with.
        kinds: ops of the net.
        given: inputs, one per call.
        source: a checkout with its downloads.
    """
    content = (here / "net.tflite").read_bytes()
    adds = " ".join(f"r.{kernels.adds[kind]};" for kind in kinds)
    header = f"#define NUM_KINDS {len(kinds)}\n#define ADD_KINDS(r) {adds}\n"
    header += "#include <cstdint>\nalignas(16) constexpr uint8_t model_bytes[] = {"
    (here / "model.h").write_text(header + ",".join(map(str, content)) + "};\n")
    (here / "samples.bin").write_bytes(b"".join(given))
    objects = _objects(source, kernels, kinds)
    with_room = _linked(here, (kernels, objects), source, _ROOM, len(given))
    low, high = with_room.arena // _STEP, _ROOM // _STEP
    best, more = with_room, 1
    while high - low > 1:  # starting takes more than is used in the end
        middle = min(low + more, (low + high) // 2)
        try:
            best, high = _linked(here, (kernels, objects), source, middle * _STEP, len(given)), middle
        except RuntimeError:
            low, more = middle, 2 * more
    return best


def _includes(source: Path, kernels: Kernels) -> list[str]:
    downloads = source / DOWNLOADS
    found = [source, downloads, downloads / "gemmlowp", downloads / "flatbuffers/include", downloads / "ruy"]
    if kernels.library is not None:
        found += [kernels.library.parent, kernels.library.parent / "Include"]
    return [f"-I{one}" for one in found]


def _objects(source: Path, kernels: Kernels, kinds: Collection[str]) -> list[str]:
    """Compile the interpreter and the kernels of some ops, each file once."""
    files = [
        path for folder in ("kernels", "core") for path in (source / "tensorflow/lite" / folder).rglob("*.cc")
    ]
    files += (source / "tensorflow/compiler").rglob("*.cc")
    micro = source / "tensorflow/lite/micro"
    for folder in (micro, micro / "arena_allocator", micro / "memory_planner", micro / "tflite_bridge"):
        files += folder.glob("*.cc")
    unwanted = ("_test", "test_help", "mock", "fake", "array.cc")
    jobs = [(path, "-Os") for path in sorted(files) if not any(word in path.name for word in unwanted)]
    named = sorted({"kernel_util", *(name for kind in kinds for name in kernels.files[kind])})
    jobs += [(micro / "kernels" / f"{name}.cc", kernels.level) for name in named]
    if kernels.library is not None:
        folders = sorted(kernels.library.glob("*Functions/*.c"))
        jobs += [(one, kernels.level) for one in folders if not one.stem.endswith(("_f16", "_f32", "_flt"))]
    found = []
    for path, level in jobs:
        tongue = _CXX if path.suffix == ".cc" else ()
        compiler = "arm-none-eabi-g++" if tongue else "arm-none-eabi-gcc"
        command = [compiler, *_FLAGS, *tongue, *kernels.flags, level, *_includes(source, kernels)]
        made = _object(source, path, command)
        found.append(str(made))
    return found


def _object(source: Path, path: Path, command: Sequence[str]) -> Path:
    """Compile a file once with the same command."""
    into = source / "gen" / f"tightrope_{hashlib.sha256(' '.join(command).encode()).hexdigest()[:12]}"
    into.mkdir(parents=True, exist_ok=True)
    made = into / (str(path).replace(str(source), "").replace("/", "_") + ".o")
    if not made.exists():
        _call([*command, "-c", str(path), "-o", f"{made}.part"], here=source)
        Path(f"{made}.part").rename(made)
    return made


def _call(command: Sequence[str], here: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=here)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout + done.stderr


def _linked(here: Path, built: tuple[Kernels, Sequence[str]], source: Path, arena: int, num: int) -> Peer:
    kernels, objects = built
    script = resource("board/link.ld").replace("TR_RAM", "4096K").replace("TR_STACK", str(_STACK))
    script = script.replace("TR_FLASH", "4096K")
    extra = "_init_first = .; KEEP(*(.init_array*)) _init_last = .;"
    (here / "link.ld").write_text(
        script.replace("*(.text* .rodata*)", f"*(.text* .rodata*) . = ALIGN(4); {extra}")
    )
    bench, image = str(Path(__file__).parent / "c/tflm_main.cc"), str(here / "peer.elf")
    flags = [*_FLAGS, *_CXX, *kernels.flags, "-Os", f"-DARENA={arena}", f"-DSTEPS={num}", f"-I{here}"]
    flags += [*_includes(source, kernels), "--specs=nano.specs"]
    ends = ["-nostartfiles", "-Wl,--gc-sections", f"-Wl,-T,{here / 'link.ld'}", "-lm"]
    _call(["arm-none-eabi-g++", *flags, "-o", image, bench, *objects, *ends], here)
    text, data, *_ = _call(["arm-none-eabi-size", image], here).splitlines()[-1].split()
    said = _call(
        ["qemu-system-arm", "-M", CORES["cortex-m4f"][0], "-kernel", image, "-display", "none",
         "-serial", "none", "-monitor", "none", "-semihosting-config", "enable=on,target=native",
         "-icount", "shift=0"], here,
    )  # fmt: skip
    rows = [line.split() for line in said.splitlines() if len(line.split()) == 2]
    counts = {name: int(value, 16) for name, value in rows if name != "out"}
    returned = bytes(int(value, 16) for name, value in rows if name == "out")
    size = len(returned) // num
    outputs = tuple(returned[at : at + size] for at in range(0, len(returned), size))
    ram = counts["static"] + counts["stack"]
    instructions = counts["ticks"] * INSTRUCTIONS_PER_TICK // num
    return Peer(ram, counts["arena"], int(text) + int(data), instructions, outputs)
