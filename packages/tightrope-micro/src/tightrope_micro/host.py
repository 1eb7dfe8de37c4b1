"""Compile the C of a step for this computer, run it, and read back what it left."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightrope.core import Bytes, NativeError
from tightrope_micro.compile import Manifest, check_samples, read_manifest, values_of
from tightrope_micro.emit import PageCounts

FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror")
_SECONDS = 600


@dataclass(frozen=True)
class HostRun:
    """What a run left and counted.

    Attributes:
        losses: one per step.
        values: name -> bytes after the last step.
        pages: since the start, as counted by the C.
        arena: bytes of the array, as linked.
        outputs: of inference, what every call returned.
    """

    losses: tuple[float, ...]
    values: Mapping[str, bytes]
    pages: PageCounts
    arena: Bytes
    outputs: tuple[bytes, ...] = ()


def c_compiler() -> str | None:
    """The C compiler of this computer: ``$CC``, else cc, gcc or clang; None where there is none."""
    asked = os.environ.get("CC")
    return next(
        (found for name in (asked, "cc", "gcc", "clang") if name and (found := shutil.which(name))), None
    )


def run_on_host(
    folder: str | os.PathLike[str], samples: Sequence[bytes], *, flags: Sequence[str] = ()
) -> HostRun:
    """Build the C of a folder for this computer and run one step per sample.

    Args:
        folder: that `CompiledStep.write` wrote; its files are not changed.
        samples: bytes of the inputs of every step, one behind the other as they lie in the slower tier.
        flags: more flags of the compiler, such as those of a sanitizer.

    Raises:
        NativeError: there is no C compiler, or building or running failed.
        TightropeError: a sample is not the bytes of one call.
    """
    compiler = c_compiler()
    if compiler is None:
        raise NativeError("no C compiler was found (cc, gcc or clang): install one, or name it in $CC.")
    manifest = read_manifest(folder)
    check_samples(manifest, samples)
    with tempfile.TemporaryDirectory(prefix="tightrope-micro-") as scratch:
        program = Path(scratch) / "step"
        sources = [str(Path(folder) / name) for name in (*sources_of(manifest), "host_main.c")]
        execute(
            [compiler, *FLAGS, *flags, "-o", str(program), *sources, "-lm"],
            "building the step for this computer",
        )
        storage, data = Path(scratch) / "storage.bin", Path(scratch) / "samples.bin"
        shutil.copyfile(Path(folder) / "storage.bin", storage)
        data.write_bytes(b"".join(samples))
        said = execute([str(program), str(storage), str(data), str(len(samples))], "running the step")
        return read_run(manifest, said, storage.read_bytes())


def sources_of(manifest: Manifest) -> tuple[str, ...]:
    """Files of the library."""
    return ("step.c", "kernels.c") if manifest.net is None else ("step.c", "kernels.c", "net.c")


def execute(command: Sequence[str], what: str, *, folder: Path | None = None) -> str:
    """Run a command, in a folder, and return what it printed on both streams.

    Raises:
        NativeError: it failed, or ran for too long; has its last words.
    """
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"{what} failed: {error}.") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip()[-600:] or "it said nothing"
        raise NativeError(f"{what} failed with exit code {done.returncode}: {words}")
    return done.stdout + done.stderr


def read_run(manifest: Manifest, said: str, storage: bytes) -> HostRun:
    """Read what a bench printed, and what it left in storage.

    Raises:
        NativeError: a line is missing.
    """
    rows = [line.split() for line in said.splitlines() if len(line.split()) == 2]
    losses = tuple(float(value) for name, value in rows if name == "loss")
    counts = {name: int(value) for name, value in rows if name in (*PageCounts.__struct_fields__, "arena")}
    if len(counts) < 5:
        raise NativeError(f"the bench stopped before its end; it said: {said[-400:]!r}")
    values = values_of(manifest, storage)
    arena = counts.pop("arena")
    outputs = tuple(bytes.fromhex(value) for name, value in rows if name == "out")
    return HostRun(losses, values, PageCounts(**counts), arena, outputs)
