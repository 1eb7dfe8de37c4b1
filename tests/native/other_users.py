"""Run code as other users: a process of root with torch in it forks one that gives its rights away.

Users without an entry in the system's list may not even be able to reach the interpreter, which often is
in root's home. So interpreter, packages and sources are mounted where everybody can read them, in a
namespace of this process alone.
"""

import ctypes
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import tightrope

TRAIN: Final = """
import torch, tightrope

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 8))
model = tightrope.compile(model, budget="16MiB", progress=False)
model(torch.randn(32, 64)).sum().backward()
found["enforced"] = tightrope.report(model).enforced
"""
_WARM: Final = f"import sys\n{TRAIN}\nfound['modules'] = list(sys.modules)"
_OWN_MOUNTS: Final = 0x20000
SOURCES: Final = Path(tightrope.__file__).parents[1]
IN_PYTHON: Final = SOURCES.parent / "packages/tightrope-planners/src"
"""What plans without a compiler."""
"""Where the tested library is: the checkout, or the packages of an environment in which it is installed."""


def packages() -> list[Path]:
    """List the folders of installed packages: an environment may read those of another one, by a ``.pth``."""
    found = (Path(name) for name in sys.path if Path(name).name == "site-packages")
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def refusal() -> str:
    """Say why nothing can be run as other users here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root of Linux can become other users"
    if shutil.which("unshare") is None:
        return "needs unshare"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "root may not mount here" if done.returncode else ""


class OtherUsers:
    """A process that runs scripts as other users.

    Attributes:
        folder: that everybody can reach, for the files of all tests; ``/tmp`` is a folder in it.
    """

    def __init__(self, libraries: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tightrope-users-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        shutil.copytree(libraries, self.folder / "built").chmod(0o755)
        sites = {f"site{place}": path for place, path in enumerate(packages())}
        plugins = {"planners": IN_PYTHON} if IN_PYTHON.is_dir() else {}
        sources = {
            "python": sys.base_prefix, "src": SOURCES, **plugins, **sites,
            "tests": Path(__file__).parent, "tmp": self.folder / "tmp",
        }  # fmt: skip
        for name in sources:
            (self.folder / name).mkdir()
        (self.folder / "tmp").chmod(0o1777)
        mounts = [
            ["mount", "--bind", str(source), str(self.folder / name)] for name, source in sources.items()
        ]
        mounts[-1][-1] = "/tmp"
        program = self.folder / "python/bin" / Path(os.path.realpath(sys.executable)).name
        run = ["exec", str(program), "-m", "other_users", str(self.folder / "built")]
        self._process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", " && ".join(map(shlex.join, [*mounts, run]))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/",
            env={
                "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": ":".join(str(self.folder / name) for name in list(sources)[1:-1]),
            },
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the process of other users ended before it was ready"

    def run(self, script: str, *, user: int, mount: str = "", **environment: str) -> dict[str, Any]:
        """Run a script; return what it put into ``found``, what it warned of, and its traceback or nothing.

        Args:
            script: Python code.
            user: number of the user, and of the group.
            mount: a shell command of root before it.
            environment: all that is set, but for a path to programs.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {
            "script": script, "user": user, "mount": mount,
            "environment": {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **environment},
        }  # fmt: skip
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process and remove its files."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self.folder)


def _serve() -> None:
    """Run what is asked for on standard input, each in a process of its own."""
    environment = {**os.environ, "TIGHTROPE_CACHE": sys.argv[1]}
    warm = {"script": _WARM, "user": 0, "mount": "", "environment": environment}
    for name in json.loads(_forked(warm))["found"]["modules"]:
        with suppress(Exception):
            importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(_forked(asked), flush=True)


def _forked(asked: dict[str, Any]) -> str:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with os.fdopen(write, "w") as answer:
            json.dump(_answer(asked), answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as made:
        text = made.read()
    os.waitpid(child, 0)
    return text or json.dumps({"error": "it died"})


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    import traceback
    import warnings

    if asked["mount"]:
        assert ctypes.CDLL(None).unshare(_OWN_MOUNTS) == 0
        subprocess.run(asked["mount"], shell=True, check=True)
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    os.setgroups([])
    os.setresgid(*[asked["user"]] * 3)
    os.setresuid(*[asked["user"]] * 3)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    found: dict[str, Any] = {}
    error = ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            exec(asked["script"], {"found": found})
        except BaseException:
            error = traceback.format_exc()
    ours = [str(one.message) for one in said if str(one.message).startswith("tightrope")]
    return {"found": found, "warnings": ours, "error": error}


if __name__ == "__main__":
    _serve()
