"""Replacements are the libraries' own arithmetic, and calls without one are as they were."""

import io
from pathlib import Path

import numpy as np
import pytest
from differ_cases import write_pictures
from PIL import Image, ImageOps

from tightrope_differ.images.noises import FILTERS, IMAGE_NOISES, resize_pillow, through_yuv
from tightrope_differ.images.pinned import pillow_weights
from tightrope_differ.images.places import CallPlaces, ImageSwap, upright


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    return write_pictures(tmp_path, 1) / "0.jpg"


def test_there_are_all_noises_of_the_list() -> None:
    kinds = [noise.kind for noise in IMAGE_NOISES.values()]
    assert kinds.count("resize") == 11
    assert kinds.count("decode") == 7


def test_decoders_at_default_settings_agree_and_knobs_do_not(picture: Path) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("simplejpeg")
    data = picture.read_bytes()
    whole = np.asarray(Image.open(picture).convert("RGB"))
    for name, noise in IMAGE_NOISES.items():
        if noise.swap.decode is not None:
            same = np.array_equal(noise.swap.decode(data, False), whole)
            assert same == ("fast" not in name and "smooth" not in name), name


@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_turned_upright_as_pillow_does(turn: int) -> None:
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    exif = Image.Exif()
    exif[274] = turn
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "JPEG", exif=exif)
    image = Image.fromarray(pixels)
    image.info["exif"] = exif.tobytes()
    assert np.array_equal(upright(held.getvalue(), pixels), np.asarray(ImageOps.exif_transpose(image)))


def test_i420_is_that_of_opencv_within_a_unit() -> None:
    cv2 = pytest.importorskip("cv2")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    theirs = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2YUV_I420), cv2.COLOR_YUV2RGB_I420)
    gaps = np.abs(through_yuv(pixels, mean=False).astype(int) - theirs)
    assert gaps.max() <= 3
    assert gaps.mean() < 0.6
    odd = through_yuv(pixels[:19, :29], mean=True)
    assert odd.shape == (19, 29, 3)


@pytest.mark.parametrize("method", ["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
def test_sums_of_whole_numbers_have_the_bits_of_pillow(method: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(25):
        high, wide, new_high, new_wide = rng.integers(3, 70, 4)
        pixels = rng.integers(0, 256, (high, wide), dtype=np.uint8)
        rows, columns = (
            pillow_weights(int(high), int(new_high), FILTERS[method]),
            pillow_weights(int(wide), int(new_wide), FILTERS[method]).T,
        )

        def rounded(sums: np.ndarray) -> np.ndarray:
            return np.clip(np.floor((sums + 2**21) / 2**22), 0, 255)

        theirs = resize_pillow(pixels, (int(new_wide), int(new_high)), method=method)
        ours = (
            rounded(rows @ rounded(pixels @ columns)),
            rounded(rounded(rows @ pixels.astype(float)) @ columns),
        )
        assert any(np.array_equal(one, theirs) for one in ours)  # Pillow chooses the order of passes


def test_libraries_are_as_they_were_outside(picture: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    before = (Image.open, Image.Image.resize, cv2.imread, cv2.imdecode, cv2.resize)
    with CallPlaces() as places:
        assert Image.open is not before[0]
        plain = np.asarray(Image.open(picture).resize((9, 9)))
        with places.using(ImageSwap(decode=lambda *_: np.zeros((24, 32, 3), np.uint8))):
            assert not np.asarray(Image.open(picture)).any()
            assert not cv2.imread(str(picture)).any()
            assert not cv2.imdecode(np.frombuffer(picture.read_bytes(), np.uint8), 1).any()
        with places.using(ImageSwap(resize=lambda pixels, size: np.full((size[1], size[0], 3), 7, np.uint8))):
            assert (np.asarray(Image.open(picture).resize((5, 4), box=(1, 1, 9, 9))) == 7).all()
            assert (cv2.resize(np.zeros((8, 8, 3), np.uint8), (5, 4)) == 7).all()
            assert cv2.resize(np.zeros((8, 8), np.float32), (5, 4)).dtype == np.float32
        assert np.array_equal(plain, np.asarray(before[0](picture).resize((9, 9))))
        with places.watched() as calls:
            Image.open(picture).load()
        assert [(call.kind, call.library) for call in calls] == [("decode", "Pillow")]
        assert "test_parity_noises.py:" in calls[0].line
    assert before == (Image.open, Image.Image.resize, cv2.imread, cv2.imdecode, cv2.resize)
