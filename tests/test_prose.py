"""The pages keep the rules for words, and the rules notice what they are for."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Context

from tests.prose import (
    BANNED,
    MOST_WORDS,
    ROOT,
    blocks,
    check,
    check_page,
    findings,
    messages,
    sentences,
    sources,
)

BAD = {
    "The first plan takes it that outputs are not read.": "assumes",
    "The number that is named is enough.": "suggested budget",
    "What an op takes beside the arena counts too.": "in addition to",
    "A smaller budget may be more than the least.": "the smallest",
    "The judge sees the plan from which the executable comes.": "two sentences",
    "The tensor is made again before its reader.": "recompute",
    "The plan is 2 % above the asked budget.": "requested",
    "Nothing is kept but for the loss.": "except",
    "Both plans run in turns for 26 steps.": "alternately",
    "As does the judge, so does the planner.": "subject first",
    "The profile is somebody else's.": "third-party",
}
GOOD = (
    "The first plan assumes that only the returned loss is backpropagated.",
    "The suggested budget always works; a smaller one may work too.",
    "At least one op runs twice, and `beside.py` is a file.",
)


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_sentence_is_found_with_advice(sentence: str) -> None:
    assert any(BAD[sentence] in one.rule for one in check(sentence))


@pytest.mark.parametrize("sentence", GOOD)
def test_a_good_sentence_passes(sentence: str) -> None:
    assert check(sentence) == []


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = " ".join(["Word"] * (MOST_WORDS + 1))
    in_two = f"{long[:49]}\n{long[50:]}"
    for page in (f"{long}.", f"- item\n- {long}.\n", f"Short.\n{in_two}.\n", f"1. {long}"):
        (found,) = check_page(page)
        assert f"{MOST_WORDS + 1} words" in found.rule
    assert check_page(f"{long[5:]}. {long[5:]}.") == []


def test_code_tables_headings_and_comments_are_no_sentences() -> None:
    long = "beside " * 30
    page = f"# {long}\n\n```\n{long}\n```\n\n    {long}\n\n| {long} |\n\n<!-- {long} -->\n"
    page += f"\n1. Item:\n\n   ```\n   {long}\n   ```\n"
    assert [text for _, text in blocks(page)] == ["Item:"]
    assert check_page(page) == []


def test_sentences_end_at_full_stops_and_code_is_one_word() -> None:
    text = (
        "Run `make test -n 2. Now` first. See [the page of limits](limits.md#a.b)! It is 0.5 % (e.g. here)."
    )
    assert [len(one.split()) for one in sentences(text)] == [3, 5, 6]


def test_every_rule_has_advice_and_is_a_regular_expression() -> None:
    assert all(re.compile(pattern) and advice for pattern, advice in BANNED.items())


def test_the_pages_keep_the_rules() -> None:
    assert [str(one) for one in findings()] == []


def helps(name: str, command: Any) -> Iterator[tuple[str, str]]:
    """List the paragraphs of a command's help, and the help of its parameters."""
    yield from ((name, " ".join(one.split())) for one in (command.help or "").split("\n\n"))
    yield from ((f"{name} {one.opts[0]}", getattr(one, "help", None) or "") for one in command.params)
    if hasattr(command, "commands"):
        context = Context(command)
        for below in command.list_commands(context):
            yield from helps(f"{name} {below}", command.get_command(context, below))


def test_help_of_commands_keeps_the_rules() -> None:
    from typer.main import get_command

    from tightrope.cli.app import app

    texts = [*helps("tightrope", get_command(app))]
    assert len(texts) > 80
    assert [str(one) for name, text in texts for one in check(text.partition("Examples:")[0], name)] == []


RAISES = """
def refuse(names, size, more):
    if size:
        raise ValueError(f"no room for {size!r:.20} in `{names[0]} now`: " + ("wait." if more else names))
    raise SomeError(41, "too" " many.", hint=f"drop {names[0]}.") from None
"""


def test_messages_are_collected_with_lines_and_fields_as_code(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(RAISES)
    start = "no room for `x` in `x now`: "
    assert sorted(messages(module)) == [
        (4, f"{start}`x`"), (4, f"{start}wait."), (5, "drop `x`."), (5, "too many.")
    ]  # fmt: skip


def test_messages_of_errors_are_plain() -> None:
    texts = [
        (f"{path.relative_to(ROOT)}:{line}", text) for path in sources() for line, text in messages(path)
    ]
    assert len(texts) > 900
    assert [str(one) for where, text in texts for one in check(text, where)] == []
