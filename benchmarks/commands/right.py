"""Good files, and calls of every command that are right but for what a case spoils."""

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SCRIPTS: Final = {
    "train.py": """
import torch

number = 3


def build():
    return torch.nn.Linear(8, 8), (torch.ones(2, 8),)
""",
    "layers.py": """
import torch


def build():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))), torch.ones(2, 8)
""",
    "photos.py": """
import torch


def build():
    return torch.nn.Flatten(), lambda path: torch.ones(3, 2, 2)
""",
    "works.py": """
from tightrope_differ.quality import Application


def build():
    return Application({"error": (0.0, 1.0)}, dict, lambda given: 0.5 - given["error"])
""",
    "syntax.py": "import torch\n\ndef build(:\n    return 1\n",
    "absent.py": "import no_such_package_at_all\n\ndef build():\n    return 1\n",
    "raises.py": "def build():\n    raise ValueError('no data here')\n",
    "exits.py": "def build():\n    raise SystemExit(7)\n",
    "number.py": "build = 3\n",
    "empty.py": "",
    "deep.py": "build = " + "(" * 100_000,
}
RIGHT: Final[Mapping[str, Mapping[str, str]]] = {
    "curve": {"graph": "@step.graph.json"},
    "demo": {},
    "doctor": {},
    "estimate": {"target": "@train.py:build"},
    "explain": {"plan": "@step.plan.json", "graph": "@step.graph.json"},
    "export": {"source": "@layers.py:build", "budget": "1MiB", "to": "blocks", "output": "@out.py"},
    "experts": {"tokens": "64", "dim": "8", "hidden": "8", "experts": "4"},
    "fleet": {"profile": "@fleet.toml"},
    "graphs plan": {"graph": "@edges.csv", "ranks": "2"},
    "hypergraph": {"file": "@pairs.csv"},
    "jobs": {"file": "@jobs.csv", "capacity": "64"},
    "judge": {"plan": "@step.plan.json", "graph": "@step.graph.json"},
    "lock": {"output": "@new.lock", "site": "@site"},
    "micro compile": {"target": "@train.py:build", "ram": "64KiB", "output": "@new"},
    "micro dsp": {"data": "@data.npz"},
    "micro ingest": {"paths": "@recordings", "output": "@new.npz", "key_file": "@key"},
    "micro profile": {"folder": "@dsp"},
    "micro tune": {"data": "@data.npz", "output": "@new"},
    "parity": {"target": "@photos.py:build", "data": "@photos", "against": "eager"},
    "place": {"file": "@buffers.csv", "capacity": "1MiB"},
    "place-tasks": {"graph": "@tasks.json", "cluster": "@devices.toml"},
    "plan": {"graph": "@step.graph.json", "budget": "8GiB"},
    "predict": {"forest": "@forest.json", "table": "@trees.csv"},
    "quality": {"target": "@works.py:build", "budget_runs": "3"},
    "ranks": {"target": "@layers.py:build", "ranks": "2", "machine": "@cluster.toml"},
    "record": {"target": "@train.py:build", "output": "@new.trace"},
    "report": {"run": "@step.plan.json", "graph": "@step.graph.json", "output": "@new.html"},
    "run": {"file": "@train.step"},
    "select": {"table": "@values.csv"},
    "streams": {"scenario": "VR_gaming", "machine": "Dual_8K-WS_OS"},
    "tables measure": {"output": "@new.json", "seconds": "1"},
    "tables plan": {"tables": "@embeddings.toml", "devices": "2"},
    "trace": {"file": "@run.trace"},
    "trees": {"files": "@trees.csv"},
    "verify": {"lock": "@env.lock.json", "site": "@site"},
}
"""By the names of the parameters; ``@NAME`` is a file of the folder."""

TABLES: Final = {
    "buffers.csv": "id,lower,upper,size\n0,0,4,64\n1,2,6,128\n",
    "edges.csv": "0,1\n1,2\n2,3\n3,0\n",
    "pairs.csv": "0,0\n1,0\n1,1\n2,1\n",
    "jobs.csv": "name,start,end,cores\n" + "".join(f"j{i},{i},{i + 9},4\n" for i in range(20)),
    "trees.csv": "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60)),
    "values.csv": "candidate,value\na,1\na,1.1\nb,2\nb,2.1\n",
    "fleet.toml": '[[kinds]]\nname="p"\nshare=1\nbytes=100000000\nms_per_sample=20\njoules_per_sample=0.05\n'
    "down=1e6\nup=5e5\navailable=0.5\n",
    "tasks.json": '{"schema": 1, "tasks": [{"name": "a", "work": 5}, {"name": "b", "work": 7}]}\n',
    "devices.toml": 'devices = [{ name = "one" }]\n',
    "embeddings.toml": 'tables = [{ name = "user", rows = 1000, dim = 16 }]\n',
    "cluster.toml": 'name = "small"\ndevices = 4\nflops = { matmul = 1e12 }\n'
    'tiers = [{ name = "hbm", bytes = 1073741824 }]\n'
    'links = [{ name = "ethernet", latency = 1e-5, bandwidth = 1e9 }]\n',
    "forest.json": '{"features": ["a", "b"], "base": 0.0, "loss": "logistic", "trees": []}\n',
    "key": "secret\n",
    "notes.txt": "no graph, no table\n",
}


_DIGEST: Final = "x_M76VAvMJ1CvBjHkjVhn_2j9WI2OKFBos8wgFkWv8A"
"""Of the one file of the environment."""


def make_files(folder: Path, *, small: bool) -> None:
    """Write the good files of all commands, those that take torch by a process of its own, unless small."""
    for name, text in {**TABLES, **SCRIPTS}.items():
        (folder / name).write_text(text)
    (folder / "photos").mkdir()
    (folder / "photos" / "one.jpg").write_bytes(b"\xff\xd8")
    package = folder / "site" / "small-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: small\nVersion: 1.0\n\n")
    (package / "RECORD").write_text(f"{package.name}/METADATA,sha256={_DIGEST},\n{package.name}/RECORD,,\n")
    if small:
        return
    made = subprocess.run(
        [sys.executable, "-m", "benchmarks.commands.right", folder], capture_output=True, text=True
    )
    if made.returncode:
        raise RuntimeError(made.stdout + made.stderr)


def _make(folder: Path) -> None:
    """Write what takes torch."""
    import torch

    import tightrope
    from tightrope.cli import main
    from tightrope.core.codec import dump_graph

    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    compiled = tightrope.compile(model, budget="64MiB", progress=False)
    compiled(x).sum().backward()
    tightrope.save(compiled, folder / "train.step", (x,))
    graph = tightrope.capture(torch.nn.Linear(8, 8), x)
    (folder / "step.graph.json").write_bytes(dump_graph(graph))
    tightrope.plan(graph, budget="100%").save(folder / "step.plan.json")
    calls: list[list[str]] = []
    if find_spec("tightrope_verify"):
        calls.append(["lock", "--site", "site", "-o", "env.lock.json", "--json"])
    if find_spec("tightrope_trace"):
        calls.append(["trace", "step.plan.json", "-o", "run.trace", "--json"])
    if find_spec("tightrope_micro"):
        _make_recordings(folder / "recordings")
        calls += [
            ["micro", "ingest", "recordings", "--key-file", "key", "-o", "data.npz", "--json"],
            ["micro", "dsp", "data.npz", "-o", "dsp", "--json"],
        ]
    for given in calls:
        try:
            main(given)
        except SystemExit as leaving:
            if leaving.code:
                raise


def _make_recordings(folder: Path) -> None:
    """Write recordings of sensors, for which a plug-in is needed."""
    from tightrope_micro.sensor import Sensor, acquisition, write_acquisition

    folder.mkdir()
    for number, (label, every) in enumerate((("one", 3), ("two", 7)) * 3):
        rows = [[float(row % every)] for row in range(1000)]
        made = acquisition(rows, [Sensor("acc", "m/s2")], interval_ms=10, device_type="test")
        file = folder / f"{label}.{number}.json"
        file.write_bytes(write_acquisition(made, "json", key="secret"))


if __name__ == "__main__":
    import os

    os.chdir(sys.argv[1])
    _make(Path(sys.argv[1]))
