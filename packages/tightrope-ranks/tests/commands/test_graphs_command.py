"""The command ``graphs plan``: what it prints, writes and refuses."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.graphs.made import clustered
from tightrope.cli import main
from tightrope_ranks.judge.graphs import check_graph_plan
from tightrope_ranks.values.graphs import GraphPlan

GRAPH = clustered(2, num=400, clusters=4, columns=12, mixed=0.2)


def npz(path: Path, **changes: Any) -> None:
    arrays = {"edge_index": GRAPH.edges, "x": GRAPH.features, "y": GRAPH.labels, "train_mask": GRAPH.train}
    np.savez_compressed(path, **{name: one for name, one in {**arrays, **changes}.items() if one is not None})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "graph.npz")
    pairs = "".join(f"{a},{b}\n" for a, b in GRAPH.edges.T.tolist())
    (tmp_path / "edges.csv").write_text("from,to\n" + pairs)
    return tmp_path


def run(*given: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["graphs", "plan", *given])
    return int(leaving.value.code or 0)


def test_a_plan_is_printed_written_judged_and_drawn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--ranks", "4", "--model", "gat", "--bits", "4")
    assert run("graph.npz", *given, "--bytes", "1MiB", "-o", "plan.json", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["plan"] == json.loads((folder / "plan.json").read_text())
    made = msgspec.json.decode((folder / "plan.json").read_bytes(), type=GraphPlan)
    check_graph_plan(GRAPH.edges.tolist(), made)
    assert [row["bytes"] for row in said["ranks"]] == list(made.peaks)
    assert [row["halo"] for row in said["ranks"]] == [
        len({a for a, b in GRAPH.edges.T.tolist() if made.owner[a] != rank == made.owner[b]})
        for rank in range(4)
    ]
    assert 0 < said["least_sent"] < sum(made.sent)
    assert run("graph.npz", *given, "--page", "plan.html") == 0
    assert f"{sum(made.sent) / 1024:.2f} KiB an epoch" in capsys.readouterr().out
    page = (folder / "plan.html").read_text()
    assert all(f"<td>rank {rank}</td>" in page for rank in range(4))
    assert "gradients of layer 2" in page


def test_edges_alone_get_the_features_and_nodes_that_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("edges.csv", "--ranks", "2", "--features", "12", "--nodes", "500", "--json") == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["columns"], len(plan["owner"])) == ([12, 64, 64], 500)
    assert run("edges.csv", "--ranks", "2", "--features", "65536", "--nodes", "400") == 0


def test_the_smallest_limit_that_is_named_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    assert run("graph.npz", "--ranks", "3", "--bytes", "1KiB", "-o", "plan.json", "--page", "a.html") == 3
    said = capsys.readouterr().err
    assert "cannot be held to 1.00 KiB per rank. Rank" in said
    assert sorted(folder.iterdir()) == before
    smallest = said.split("smallest limit that works is ")[1].split()[0]
    assert run("graph.npz", "--ranks", "3", "--bytes", smallest) == 0
    assert run("graph.npz", "--ranks", "3", "--bytes", str(int(smallest) - 1)) == 3


NAN = GRAPH.features.copy()
NAN[5, 3] = np.nan
AWAY = GRAPH.edges.copy()
AWAY[1, 7] = 400


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"edge_index": AWAY}, "'wrong.npz': edge 7 goes from 0 to 400; nodes are 0 to 399"),
        ({"x": NAN}, "'wrong.npz': x has a value that is not finite in row 5"),
        ({"edge_index": None}, "'wrong.npz' has no edge_index"),
        ({"edge_index": np.array([{}], dtype=object)}, "cannot be read as .npz: 'Object arrays"),
        ({"edge_index": GRAPH.edges * 0.5}, "it must be (2, E) of integers"),
        ({"edge_index": np.array([[0], [10**15]]), "x": None}, "node 1000000000000000 is too far"),
        ({"edge_index": np.zeros((2, 2**20), np.int8)}, "cannot be read"),
        ({"x": np.array(2.0)}, "x has shape ()"),
        ({"y": GRAPH.labels - 9}, "labels count from 0"),
    ],
)
def test_wrong_arrays_end_with_a_message_and_nothing_written(
    folder: Path, changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    if said == "cannot be read":
        monkeypatch.setattr("tightrope_ranks.commands.graphs._UNPACKED", 2**20)
        said = "unpacks to 2"
    npz(folder / "wrong.npz", **changes)
    assert run("wrong.npz", "--ranks", "2", "-o", "plan.json") == 2
    assert said in capsys.readouterr().err
    assert not (folder / "plan.json").exists()


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("0,1\n1,7\n", ("--nodes", "3"), "line 2: the edge goes from 1 to 7; nodes are 0 to 2"),
        ("0,1\n1,-1\n", (), "line 2: the edge goes from 1 to -1"),
        ("0,1\n1,4194304\n", (), "nodes are 0 to 4194303"),
        ("0,1\n1;2\n", (), "line 2: b'1;2'. Give two nodes"),
        ("from,to\n", (), "has no edges"),
        ("0,1\n", ("--ranks", "3"), "2 nodes cannot be divided over 3 ranks"),
        ("0,1\n", ("--bits", "3"), "bits is 3"),
        ("0,1\n", ("--model", "gin"), "no model 'gin'"),
        ("0,1\n", ("--bytes", "much"), "much"),
        ("0,1\n", ("-o", "wrong.csv"), "would be overwritten"),
    ],
)
def test_wrong_lists_and_options_end_with_a_message(
    folder: Path, text: str, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "wrong.csv").write_text(text)
    assert run("wrong.csv", *(() if "--ranks" in given else ("--ranks", "2")), *given) == 2
    assert said in capsys.readouterr().err
    assert (folder / "wrong.csv").read_text() == text
