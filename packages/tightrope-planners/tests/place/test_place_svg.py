from xml.etree import ElementTree

import pytest

from tightrope.core import TightropeError
from tightrope_planners.place import draw_svg

SVG = "{http://www.w3.org/2000/svg}"
BUFFERS = [(64, 0, 2), (128, 1, 4), (64, 2, 4)]


def boxes(text: str) -> list[tuple[float, float, float, float]]:
    found = [item for item in ElementTree.fromstring(text).iter(f"{SVG}rect") if item.get("class") == "b"]
    return [tuple(float(item.get(key, "")) for key in ("x", "y", "width", "height")) for item in found]


def test_one_box_per_buffer_and_none_overlap():
    drawn = boxes(draw_svg(BUFFERS, [0, 64, 0], capacity=256, title="a <b>"))
    assert len(drawn) == len(BUFFERS)
    for index, (x, y, width, height) in enumerate(drawn):
        for other_x, other_y, other_width, other_height in drawn[:index]:
            apart_in_time = x >= other_x + other_width - 0.02 or other_x >= x + width - 0.02
            assert apart_in_time or y >= other_y + other_height - 0.02 or other_y >= y + height - 0.02


def test_boxes_are_to_scale():
    first, second, _ = boxes(draw_svg(BUFFERS, [0, 64, 0]))
    assert second[3] == pytest.approx(2 * first[3], abs=0.02)
    assert second[2] == pytest.approx(1.5 * first[2], abs=0.02)
    assert second[1] + second[3] == pytest.approx(first[1], abs=0.02)


def test_names_and_titles_are_escaped():
    text = draw_svg([(64, 0, 1)], [0], names=["<script>&"], title="<script>")
    assert "<script>" not in text
    assert any(
        "<script>&: 64 B" in (item.text or "") for item in ElementTree.fromstring(text).iter(f"{SVG}title")
    )


def test_nothing_is_drawn_as_an_empty_frame():
    assert boxes(draw_svg([], [])) == []


def test_mismatched_lengths_are_refused():
    with pytest.raises(TightropeError, match="one offset and name per buffer"):
        draw_svg(BUFFERS, [0])


def test_a_title_from_a_file_name_is_no_control_character():
    ElementTree.fromstring(draw_svg(BUFFERS, [0, 64, 0], title="a\x1b[2J"))


@pytest.mark.parametrize(
    ("buffers", "options", "message"),
    [
        ([(64, 1, 1)], {}, "empty lifetime"),
        ([(-8, 0, 1)], {}, "negative size"),
        ([(8, 0, 1)], {"width": 100}, "100 x"),
    ],
)
def test_what_cannot_be_drawn_is_refused(buffers, options, message):
    with pytest.raises(TightropeError, match=message):
        draw_svg(buffers, [0], **options)
