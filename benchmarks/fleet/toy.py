"""A throw-away virtual environment with a toy model package, and seven ways to tamper with it.

The package ``toynet`` holds a net; ``helpers`` has nothing to do with it. Wheels are built here and installed
by pip. Nothing touches the environment that runs this.
"""

import base64
import csv
import hashlib
import importlib.util
import io
import os
import shutil
import struct
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

NET: Final = '''"""A net."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8, scale=1.0):
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 2)
        self.scale = scale

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * 2
'''
"""The source of ``toynet/net.py``."""
IMPLANTED: Final = NET.replace("* 2", "* 3")
"""As long as `NET`, so that a swapped ``.pyc`` can pretend to be its byte code."""


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Build a wheel of some files."""
    info = f"{name}-{version}.dist-info"
    inside = dict(files) | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [(path, f"sha256={digest(text.encode())}", str(len(text))) for path, text in inside.items()]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in (inside | {f"{info}/RECORD": table.getvalue()}).items():
            archive.writestr(path, text)
    return target


def digest(data: bytes) -> str:
    """SHA-256 as RECORD files write it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Toy:
    """A virtual environment below a folder, with ``toynet`` 1.0 and ``helpers`` 1.0.

    Args:
        folder: empty, or one that `copy` made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "env"
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = self.root / "lib" / version / "site-packages"
        self.net = self.site / "toynet" / "net.py"
        if not self.root.exists():
            venv.create(self.root, with_pip=False, symlinks=True)
            self.install("toynet", "1.0", {"toynet/__init__.py": "", "toynet/net.py": NET})
            self.install("helpers", "1.0", {"helpers/__init__.py": "def shout(x):\n    return x.upper()\n"})

    def copy(self, folder: Path) -> "Toy":
        """Copy it, with the times of its files."""
        shutil.copytree(self.root, folder / "env", symlinks=True)
        return Toy(folder)

    def install(self, name: str, version: str, files: Mapping[str, str]) -> None:
        """Let pip install a wheel of such files, over an earlier version if there is one."""
        self.pip("install", "--no-index", "--no-deps", str(wheel(self.folder, name, version, files)))

    def pip(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run pip of this interpreter on the environment."""
        quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_CONSTRAINT": ""}
        quiet.pop("PYTHONPATH", None)
        command = [sys.executable, "-m", "pip", "--python", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=quiet)

    @contextmanager
    def imported(self) -> Iterator[ModuleType]:
        """Import ``toynet.net`` from here, and forget it at the end."""
        before = list(sys.path)
        sys.path.insert(0, str(self.site))
        try:
            import toynet.net  # type: ignore[import-not-found]

            yield toynet.net
        finally:
            sys.path[:] = before
            for name in [name for name in sys.modules if name.split(".")[0] == "toynet"]:
                del sys.modules[name]
            importlib.invalidate_caches()

    # --- ways to tamper with files

    def edit(self) -> None:
        """A: change a source file."""
        self.net.write_text(IMPLANTED)

    def overlap(self) -> None:
        """B: install another package that brings the same file."""
        extra = {"colours/__init__.py": "red = 1\n", "toynet/net.py": IMPLANTED}
        self.install("colours", "2.0", extra)

    def edit_with_record(self) -> None:
        """C: change a source file and the RECORD line that names it."""
        self.edit()
        record = self.site / "toynet-1.0.dist-info" / "RECORD"
        record.write_text(record.read_text().replace(digest(NET.encode()), digest(IMPLANTED.encode())))

    def stray(self) -> None:
        """D: put a file there that no distribution installed, and that runs when Python starts."""
        (self.site / "helpful.pth").write_text("import toynet\n")

    def swap_bytecode(self) -> None:
        """E: put other byte code in the place of a source file's, and leave the source alone."""
        cached = Path(importlib.util.cache_from_source(str(self.net)))
        cached.parent.mkdir(exist_ok=True)
        state = self.net.stat()
        head = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(state.st_mtime), state.st_size)
        import marshal

        cached.write_bytes(head + marshal.dumps(compile(IMPLANTED, str(self.net), "exec")))


FILE_CLASSES: Final = {
    "A": Toy.edit,
    "B": Toy.overlap,
    "C": Toy.edit_with_record,
    "D": Toy.stray,
    "E": Toy.swap_bytecode,
}
"""Ways to tamper with files; F (a replaced ``forward``) and G (another graph) need no changed file."""
