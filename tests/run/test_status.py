"""What a reader of standard error sees while something takes long."""

import pytest

from tightrope.run.status import StatusLine


@pytest.mark.parametrize("lines", [False, True])
def test_where_there_is_no_terminal_a_task_is_one_line_or_silent(
    capsys: pytest.CaptureFixture[str], lines: bool
) -> None:
    progress = StatusLine(lines=lines)
    with progress.task("measuring ops", 12) as tick, progress.search(2**20):
        tick(1, 12, "aten.mm")
    said = capsys.readouterr()
    wanted = "tightrope: measuring ops (12) ...\ntightrope: planning for 1.00 MiB ...\n"
    assert (said.out, said.err) == ("", wanted if lines else "")


def test_on_a_terminal_a_task_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusLine(shown=True).task("measuring ops", 12):
        pass
    assert capsys.readouterr().out == ""
