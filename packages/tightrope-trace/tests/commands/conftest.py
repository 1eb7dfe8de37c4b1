"""A network to capture, and the graph and plan files of it, made once."""

from pathlib import Path

import pytest

from tests.cli.command import NET, run


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python file with functions that return (model, inputs)."""
    file = tmp_path_factory.mktemp("net") / "net.py"
    file.write_text(NET)
    return file


@pytest.fixture(scope="session")
def files(net: Path) -> tuple[Path, Path]:
    """A plan file and its graph file."""
    plan, graph = net.with_name("step.plan.json"), net.with_name("step.graph.json")
    done = run("plan", f"{net}:build", "--budget", "80%", "-o", plan, "--save-graph", graph)
    assert done.code == 0, done.err
    return plan, graph
