"""The commands ``tightrope micro ingest``, ``dsp``, ``tune``, and ``profile`` of what they write."""

import json
from pathlib import Path

import pytest

from tests.cli.command import run
from tightrope_micro.emulate import missing_tools
from tightrope_micro.host import c_compiler
from tightrope_micro.sensor import GESTURES, gesture, write_acquisition


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for label in GESTURES:
        for k in range(2):
            data = write_acquisition(gesture(label, seconds=4.0, seed=k), "json", key="key")
            (folder / f"{label}.{k}.json").write_bytes(data)
    (folder / "hmac.key").write_text("key\n")
    (folder / "other.key").write_text("other\n")
    return folder


def test_recordings_become_a_library_that_takes_what_is_said(recordings: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "out"
    done = run("micro", "ingest", recordings, "--key-file", recordings / "hmac.key", "-o", data, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["labels"] == dict.fromkeys(GESTURES, 2)
    said = run("micro", "dsp", data, "-o", tmp_path / "features", "--json")
    assert (said.code, json.loads(said.out)["features"]) == (0, 33), said.err
    assert (tmp_path / "features" / "features.npz").is_file()
    found = run("micro", "tune", data, "--ram", "700B", "--ms", "1", "-o", out, "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["ram_forecast"] <= 700
    if c_compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) is installed")
    seen = run("micro", "profile", out, "--json")
    assert seen.code == 0, seen.err
    measured = json.loads(seen.out)
    assert measured["holds"]
    if not missing_tools():
        assert measured["ram"]["measured"] == measured["ram"]["promised"]
    assert run("micro", "tune", data, "--ram", "10B", "-o", tmp_path / "none").code == 3
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--key-file", "other.key"), "signed with another key"),
        ((), "--key-file FILE"),
        (("--key-file", "hmac.kez"), "is not a file"),
    ],
)
def test_refusals_write_nothing(
    options: tuple[str, ...], says: str, recordings: Path, tmp_path: Path
) -> None:
    given = [recordings / word if "." in word else word for word in options]
    done = run("micro", "ingest", recordings, *given, "-o", tmp_path / "data.npz")
    assert (done.code, says in done.err) == (2, True), done.err
    assert not list(tmp_path.iterdir())


def test_a_recording_that_is_cut_is_refused_whole(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "idle.0.json").write_bytes((recordings / "idle.0.json").read_bytes()[:-30])
    done = run("micro", "ingest", tmp_path, "--no-verify", "-o", tmp_path / "data.npz")
    assert (done.code, "cut short" in done.err) == (2, True), done.err
    assert not (tmp_path / "data.npz").exists()
    for verb in ("ingest", "dsp", "tune"):
        assert "Examples:" in run("micro", verb, "--help").out


def test_a_clock_that_is_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("candidate,value\na,1\nb,2\n")
    done = run("micro", "tune", "t.csv", "-o", "new", "--mhz", "-1")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
