"""House rules for words: banned constructions, long sentences. `python -m tests.prose` checks the pages."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MOST_WORDS: Final = 20
"""Of one sentence. Names in code, numbers and links count as one word each."""
GENERATED: Final = {"api.md"}
"""Written from docstrings, by `python -m tests.api_reference`."""
BANNED: Final = {
    r"\bbeside\b": "write 'next to', 'in addition to', 'during' or 'compared with'",
    r"\b(?:the|its|their|of|a) least\b(?! \w+(?:ed|ing|ent|ive|tly)\b)": "write 'the smallest ...'",
    r"\basked\b": "write 'requested', or name what the user set",
    r"\btakes? it that\b|\btaken (?:to be|for given)\b|\bit is taken\b": "write 'assumes that'",
    r"\b(?:is|are|was|were) named\b(?! `)": "write what the number is: 'the suggested budget'",
    r"\b(?:of|from|for|to|in|by|beside|on|with) which\b": "make two sentences of it",
    r"\b(?:made|make|makes|making|computed?|computes|computing) again\b": "write 'recompute'",
    r"\bbut for\b|\bnothing but\b": "write 'except', or 'only'",
    r"\bwhoever\b|\bthat one\b(?! \w)|\bthe latter\b|\bthe former\b": "repeat the noun",
    r"\bin turns?\b": "write 'alternately'",
    r"\b(?:so|as|nor) (?:is|are|do|does|was|were|has|can|may) (?:the|an?|its?|what|that)\b": "subject first",
    r"\b(?:where|what) (?:there )?(?:is|are) (?:none|no)\b": "say what is missing: 'without a compiler'",
    r"\bmay be more than\b|\bmore than the\b(?=[.,;])": "compare with something that has a name",
    r"\bhas to do\b|\bhave to do\b|\bdoes for\b|\bwill do\b": "write 'must suffice' or 'suffices'",
    r"\bown(?:s|ed)? (?:of|by) (?:what|who)\b|\bwhose it is\b": "say who owns it",
    r"\bsomebody else's\b|\bof others\b": "write 'third-party', or name the program",
    r"\bunasked\b|\btold\b(?! (?:apart|from))": "write 'by default', 'reported' or 'forecast'",
    r"\bin words\b|\bby name\b(?! [a-z])": "say what the message contains",
}
"""Regular expression -> what to write in its place."""


class Finding(NamedTuple):
    """One sentence that breaks a rule."""

    where: str
    rule: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.where}: {self.rule}\n    {self.sentence}"


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """List the running text of a page with its line: paragraphs and items, without code, tables, headings."""
    page = re.sub(r"(?ms)^ *```.*?^ *```$|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page)
    start, lines = 1, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        marked = re.match(r"\||#|!\[|    \S", line) is not None
        apart = not line.strip() or marked
        if (apart or item) and lines:
            yield start, " ".join(lines)
            lines = []
        if not apart:
            start = start if lines else number
            lines.append(line[item.end() :] if item else line.strip())


def sentences(text: str) -> list[str]:
    """Split running text at full stops; a link is its words, and a piece of code is one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]+`", lambda found: re.sub(r"[\s.!?]+", "_", found[0]), text)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|et al)\.", r"\1", text)
    return [one.strip() for one in re.split(r"(?<=[.!?])[)*\"']*\s+(?=[^a-z])", text) if one.strip()]


def words(sentence: str) -> list[str]:
    """List what counts as a word: it has a letter or a digit."""
    return [word for word in sentence.split() if re.search(r"\w", word)]


def check(text: str, where: str = "text") -> list[Finding]:
    """Check running text sentence by sentence."""
    found = []
    for sentence in sentences(text):
        plain = re.sub(r"`[^`]*`", "`", sentence)
        for pattern, advice in BANNED.items():
            if hit := re.search(pattern, plain, re.IGNORECASE):
                found.append(Finding(where, f"'{hit[0].strip()}': {advice}", sentence))
        if (count := len(words(sentence))) > MOST_WORDS:
            found.append(Finding(where, f"{count} words, at most {MOST_WORDS}", sentence))
    return found


def check_page(page: str, name: str = "page") -> list[Finding]:
    """Check the running text of a page."""
    return [one for line, text in blocks(page) for one in check(text, f"{name}:{line}")]


def pages() -> list[Path]:
    """List the pages that people wrote, without records of decisions."""
    docs = sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED)
    return [ROOT / "README.md", *docs]


def findings() -> list[Finding]:
    """Check every page."""
    return [one for page in pages() for one in check_page(page.read_text(), str(page.relative_to(ROOT)))]


def sources() -> list[Path]:
    """List the modules of the package and of its extras."""
    return sorted([*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")])


def wordings(node: ast.AST) -> list[str]:
    """List the texts that an expression may be; what only a run tells is a piece of code."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts)
            return [re.sub(r"`[^`]*`|\0", lambda found: f"`{found[0].strip('`')}`".replace("\0", "x"), text)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [first + second for first in wordings(left) for second in wordings(right)]
        case ast.IfExp(body=body, orelse=orelse):
            return [*wordings(body), *wordings(orelse)]
    return ["`x`"]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """List the texts that a module raises, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            given = [*node.exc.args, *(keyword.value for keyword in node.exc.keywords)]
            yield from ((one.lineno, text) for one in given for text in wordings(one) if " " in text)


def main() -> int:
    """Print what breaks a rule; exit code 1 if something does."""
    found = findings()
    for one in found:
        print(one)
    print(f"{len(pages())} pages, {len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
