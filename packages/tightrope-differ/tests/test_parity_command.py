"""The command: what it prints, writes and refuses, and backends."""

import json
from pathlib import Path

import pytest
from differ_cases import SOURCE, write_pictures

from tightrope.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures(tmp_path / "data")
    (tmp_path / "photos.py").write_text(SOURCE)
    return tmp_path


def run(*given: str, target: str = "photos.py:build") -> int:
    with pytest.raises(SystemExit) as leaving:
        main(["parity", target, "--data", "data", *given])
    return int(leaving.value.code or 0)


def test_exit_codes_tables_and_pages_say_what_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--against", "eager,decode-pillow", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["images"], said["null_flips"]) == (6, 0)
    assert [one["status"] for one in said["differences"]] == ["equal", "equal"]
    assert run("--against", "resize-pillow-box,eager", "--page", "page.html") == 3
    out = capsys.readouterr().out
    assert "image.resize((17, 13), Image.BILINEAR) at photos.py:9" in out
    assert "1 flagged" in out
    assert "resize-pillow-box" in (folder / "page.html").read_text()
    assert run("--against", "resize-pillow-box", "--accept", "resize") == 0
    assert "differs, accepted" in capsys.readouterr().out


@pytest.mark.slow
def test_a_pinned_file_runs_without_preprocessing(folder: Path) -> None:
    pytest.importorskip("onnxscript")
    ort = pytest.importorskip("onnxruntime")
    import numpy as np
    from PIL import Image

    assert run("--against", "eager", "--pin", "pinned.onnx") == 0
    session = ort.InferenceSession("pinned.onnx")
    pixels = np.asarray(Image.open("data/0.jpg").convert("RGB"))[None]
    assert session.run(None, {session.get_inputs()[0].name: pixels})[0].shape == (1, 4)


@pytest.mark.slow
def test_backends_round_alike(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    assert run("--against", "backends", "--json") == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    found = {one["name"]: one["status"] for one in differences}
    assert {one["note"] for one in differences if one["name"] in ("compiled", "fused")} <= {
        "level L1",
        "level L2",
    }
    assert {found[name] for name in ("compiled", "fused", "onnx", "inductor")} <= {"equal", "rounding"}


@pytest.mark.slow
def test_c_of_the_plug_in_for_microcontrollers_is_a_lowering(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tightrope_micro")
    assert run("--against", "micro,int8", "--json") == 3
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["differences"]}
    assert found["micro"]["status"] in ("equal", "rounding")
    assert found["int8"]["status"] == "differs"
    assert found["int8"]["parting"]["line"] == "photos.py:22"


def test_a_net_in_onnx_has_noises_of_images_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    made = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3], keepdims=0),
            helper.make_node("Exp", ["m"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", 1, [2, 3, 13, 17])],
        [helper.make_tensor_value_info("y", 1, [2, 3])],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    (folder / "app.py").write_text(
        SOURCE.replace("return Net(), preprocess", 'return "net.onnx", preprocess')
    )
    assert run("--against", "colour-bgr,bf16,net.onnx", "--json", target="app.py:build") == 3
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["differences"]}
    assert found["colour-bgr"]["status"] == "differs"
    assert found["bf16"]["status"] == "no place"
    assert found["net.onnx"]["status"] == "equal"


def test_what_was_found_is_kept_where_another_build_raises(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text("import torch\n\ndef build():\n    raise KeyError('weights')\n")
    assert run("--against", "decode-pillow,bad.py:build", "--json") == 2
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["differences"]}
    assert found["decode-pillow"]["status"] == "equal"
    assert found["bad.py:build"]["status"] == "stopped"
    assert "KeyError: 'weights' at bad.py:4" in found["bad.py:build"]["note"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--against", "magic"), "'magic' is no lowering"),
        (("--against", "missing.py:build"), "no file 'missing.py'"),
        (("--data", "nowhere"), "'nowhere' is no folder"),
        (("--page", "no/such/page.html"), "no/such"),
    ],
)
def test_bad_input_ends_with_a_message(
    folder: Path, given: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*given) == 2
    got = capsys.readouterr()
    assert said in got.err + got.out


def test_a_build_that_raises_is_told_with_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text("import torch\n\ndef build():\n    raise ValueError('no weights here')\n")
    assert run(target="bad.py:build") == 2
    assert "ValueError: no weights here at bad.py:4" in capsys.readouterr().err
    (folder / "odd.py").write_text("import torch\n\ndef build():\n    return 3\n")
    assert run(target="odd.py:build") == 2
    assert "must return (model, preprocess)" in capsys.readouterr().err
