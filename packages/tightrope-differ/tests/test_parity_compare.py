"""What is flagged, what is not, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from differ_cases import SOURCE, write_pictures
from PIL import Image
from torch import nn

from tightrope.cli.target import called
from tightrope.core import TightropeError
from tightrope_differ.images.files import images_in
from tightrope_differ.images.noises import IMAGE_NOISES
from tightrope_differ.images.places import CallPlaces
from tightrope_differ.parity import ImageNet, ParityOptions, compare, pin_net
from tightrope_differ.parity.compare import asked_for
from tightrope_differ.parity.pipeline import image_net
from tightrope_differ.values.parity import LoweringDifference, ParityReport


def built(folder: Path, source: str = SOURCE, name: str = "photos.py") -> ImageNet:
    (folder / name).write_text(source)
    target = f"{folder / name}:build"
    return image_net(target, called(target), folder)


def compared(
    folder: Path, asked: str, *, source: str = SOURCE, other: str = "", options: ParityOptions | None = None
) -> ParityReport:
    paths, labels = images_in(folder / "data")
    with CallPlaces() as places:
        reference = built(folder, source)
        others = {"other.py:build": built(folder, other, "other.py")} if other else {}
        asked = f"{asked},other.py:build" if other else asked
        options = options or ParityOptions(batch=4)
        return compare(
            reference, asked_for(asked), paths, labels, others=others, places=places, options=options
        )


def by_name(report: ParityReport) -> dict[str, LoweringDifference]:
    return {one.name: one for one in report.differences}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "data")
    return tmp_path


def test_knobs_are_flagged_at_their_line_and_equal_settings_are_not(folder: Path) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("simplejpeg")
    found = by_name(compared(folder, "decode,resize,colour,pool-ceil,bf16"))
    equal = {name for name, one in found.items() if one.status == "equal"}
    assert equal == {
        "decode-pillow",
        "decode-opencv",
        "decode-turbo",
        "decode-exif",
        "resize-pillow-bilinear",
    }
    assert all(one.flagged for name, one in found.items() if name not in equal)
    for name, one in found.items():
        if one.flagged:
            assert one.parting is not None, name
            line = {"decode": 8, "colour": 8, "resize": 9, "graph": 24, "precision": 22}[one.group]
            assert one.parting.line.endswith(f"photos.py:{line}"), (name, one.parting)


def test_a_noise_without_a_place_is_said(folder: Path) -> None:
    plain = SOURCE.replace("    image = image.resize((17, 13), Image.BILINEAR)\n", "")
    found = by_name(compared(folder, "resize-pillow-box,upsample,box-offset", source=plain))
    assert {one.status for one in found.values()} == {"no place"}
    assert "calls no resize" in found["resize-pillow-box"].note


def test_box_offset_and_upsampling_change_the_nets_that_have_them(folder: Path) -> None:
    after = """x = torch.nn.functional.interpolate(x, scale_factor=2)
        x = self.head((x * x).mean((2, 3)))
        return torch.stack((x[:, 2] - x[:, 0], x[:, 3] - x[:, 1]), 1)"""
    boxes = SOURCE.replace("return self.head(x.mean((2, 3)))", after)
    found = by_name(compared(folder, "upsample,box-offset", source=boxes))
    assert found["upsample"].flagged
    assert found["upsample"].line.endswith(":25")
    assert found["box-offset"].line.endswith(":27")
    assert found["box-offset"].largest > 0.5


def test_another_pipeline_parts_where_it_was_changed(folder: Path) -> None:
    for old, new, line in (
        ("x - 0.5", "x - 0.45", 11),
        ("BatchNorm2d(6)", "BatchNorm2d(6, eps=0.1)", 22),
        ("torch.relu(x)", "torch.nn.functional.relu6(x * 1.01)", 23),
    ):
        report = compared(folder, "", other=SOURCE.replace(old, new))
        (one,) = report.differences
        assert one.parting is not None
        assert one.parting.line.endswith(f"other.py:{line}"), (new, one.parting)
    (one,) = compared(folder, "", other=SOURCE + "\n\n").differences
    assert (one.status, one.parting) == ("equal", None)


def test_what_is_accepted_is_not_flagged(folder: Path) -> None:
    report = compared(
        folder, "bf16,colour", options=ParityOptions(batch=4, accepted=("precision",), walk=False)
    )
    assert not by_name(report)["bf16"].flagged
    assert by_name(report)["colour-bgr"].flagged


def test_flips_are_judged_by_labels_too(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", 20, labels=True)
    report = compared(tmp_path, "colour-bgr", source=SOURCE.replace("Linear(6, 4)", "Linear(6, 2)"))
    assert report.accuracy is not None
    (one,) = report.differences
    assert one.accuracy is not None
    assert one.p_accuracy is not None


def test_many_flips_are_significant_and_a_few_are_not() -> None:
    def front(path: str) -> np.ndarray:
        return np.array([1.0, float(path) / 100], np.float32)

    class Swaps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.ones(2) if x.dtype == torch.float32 else torch.tensor([1.0, 0.9]))

    paths = [Path("105" if at < 20 else "500") for at in range(40)]
    (many,) = compare(ImageNet("m", front, Swaps()), ["bf16"], paths).differences
    assert (many.flips, many.status) == (20, "flips")
    (few,) = compare(ImageNet("f", front, Swaps()), ["bf16"], paths[18:]).differences
    assert (few.flips, few.status) == (2, "differs")


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(4)


@pytest.mark.parametrize(
    ("front", "net", "said"),
    [
        (lambda path: np.random.default_rng().random(3, np.float32), nn.Identity(), "preprocess is random"),
        (lambda path: np.ones(4, np.float32), Noisy(), "the net is random"),
    ],
)
def test_nothing_is_judged_where_two_runs_differ(front: object, net: nn.Module, said: str) -> None:
    given = ImageNet("given", front, net)  # type: ignore[arg-type]
    with pytest.raises(TightropeError, match=f"{said}. Nothing was judged"):
        compare(given, ["bf16"], [Path("a"), Path("b")])


def test_a_net_that_fails_or_returns_no_numbers_is_refused_with_its_line(folder: Path) -> None:
    with pytest.raises(
        TightropeError, match=r"fails on a batch of shape \(4, 3, 13, 17\).* at .*photos.py:22"
    ):
        compared(folder, "bf16", source=SOURCE.replace("(x - 0.5)", "(x - 0.5).astype(np.float64)"))
    with pytest.raises(TightropeError, match=r"ZeroDivisionError.*photos.py:30"):
        compared(
            folder, "bf16", source=SOURCE.replace("Net(), preprocess", "Net(), preprocess, lambda y: 1 / 0")
        )
    with pytest.raises(TightropeError, match="returns NaN or infinity for"):
        compared(folder, "bf16", source=SOURCE.replace("x.mean((2, 3))", "x.mean((2, 3)) / 0"))


def test_a_net_that_is_not_one_graph_still_has_other_precisions(folder: Path) -> None:
    flow = SOURCE.replace("x = torch.relu(x)", "x = torch.relu(x) if x.sum() > 0 else x")
    found = by_name(compared(folder, "bf16,pool-ceil", source=flow))
    assert found["bf16"].flagged
    assert found["pool-ceil"].status == "stopped"
    assert "not one graph" in found["pool-ceil"].note


def test_images_that_cannot_be_read_are_named_and_left_out(folder: Path) -> None:
    broken = folder / "data" / "broken.jpg"
    broken.write_bytes((folder / "data" / "0.jpg").read_bytes()[:300])
    (folder / "data" / "words.png").write_text("no image")
    report = compared(folder, "decode-pillow")
    assert report.images == 6
    assert [Path(text.partition(": ")[0]).name for text in report.unread] == ["broken.jpg", "words.png"]
    assert "photos.py:8" in report.unread[0]
    for file in (folder / "data").glob("?.jpg"):
        file.write_bytes(b"")
    with pytest.raises(TightropeError, match="no image can be read"):
        compared(folder, "decode-pillow")


def test_a_decoder_that_fails_is_counted_and_flagged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tightrope_differ.images.places import ImageSwap

    def fails(data: bytes, grey: bool) -> np.ndarray:
        raise ValueError("cannot decode this")

    module = sys.modules["tightrope_differ.parity.compare"]  # the function has its name
    noises = dict(IMAGE_NOISES)
    noises["decode-pillow"] = replace(noises["decode-pillow"], swap=ImageSwap(decode=fails))
    monkeypatch.setattr(module, "IMAGE_NOISES", noises)
    (one,) = compared(folder, "decode-pillow").differences
    assert one.flagged
    assert "6 images are not decoded" in one.note
    assert "cannot decode this" in one.undecoded[0]


def test_images_of_several_shapes_are_refused(folder: Path) -> None:
    Image.new("RGB", (9, 9)).save(folder / "data" / "z.png")
    plain = SOURCE.replace("    image = image.resize((17, 13), Image.BILINEAR)\n", "")
    with pytest.raises(TightropeError, match="return one shape"):
        compared(folder, "bf16", source=plain)


def test_pinned_pixels_have_the_bits_of_the_users_function(folder: Path) -> None:
    after = "x = np.asarray(image)[2:12, 3:, ::-1]\n    x = np.sqrt(x.astype(np.float32) / 255) + 0.1"
    source = SOURCE.replace("x = np.asarray(image, dtype=np.float32) / 255", after)
    with CallPlaces() as places:
        net = built(folder, source)
        paths, _ = images_in(folder / "data")
        pinned = pin_net(net, paths, places)
        for path in paths:
            pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))[None]
            assert torch.equal(pinned.sample(pixels)[0], net.sample(str(path)))
    assert (pinned.corner, pinned.size, pinned.channels.tolist()) == ((2, 3), (10, 14), [2, 1, 0])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("image = image.resize", "image = image.crop((0, 0, 20, 20)).resize", "crops before it resizes"),
        ("(x - 0.5)", "(x - x.mean())", "more than a resize"),
        ("Image.BILINEAR)", "Image.BILINEAR).resize((15, 15))", "2 times"),
    ],
)
def test_preprocessing_that_cannot_be_pinned_is_refused(folder: Path, old: str, new: str, said: str) -> None:
    with CallPlaces() as places:
        net = built(folder, SOURCE.replace(old, new, 1))
        with pytest.raises(TightropeError, match=said):
            pin_net(net, images_in(folder / "data")[0], places)
