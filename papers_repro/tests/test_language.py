"""Words that no committed text may hold: readers of the field do not know them."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = (
    *("drawn world", "embedded world", "blind row", "cannot be told", "ledger", "verdict"),
    *("a row a", "one a query", "knows nothing", "what is general", "unlifted", "farewell"),
    *("_blame", "culprit", "take_up", "read_off"),
    *("ring contrast", "wholes and parts", "looks at no picture", "a number that is one"),
    *("what knows nothing", "to be had", "is no no", "still learning", "right keys", "whoever"),
    *(
        "is told",
        "are told",
        "one run a",
        "ideal observer",
        "nobody asked",
        "takes up",
        "is at home",
        "a line a model",
    ),
)
TEXTS = {".py", ".md", ".csv", ".ipynb", ".yml", ".yaml", ".toml", ".ini", ".cff", ".j2", ".js"}
TEXTS |= {".css", ".html", ".txt", ".json", ".cfg", ".sh", ""}


def banned_words(text):
    "The words that a text holds, whatever the case and wherever a line ends."
    text = text.lower()
    found = []
    for word in WORDS:
        parts = word.split()
        if all(part in text for part in parts):  # much faster than the expression
            phrase = r"\s+".join(re.escape(part) for part in parts)
            whole = rf"\b{phrase}\b" if len(parts) > 1 else phrase
            found += [text[max(0, m.start() - 40) : m.end() + 20] for m in re.finditer(whole, text)]
    return found


def read_text(path):
    "What a reader sees of a file: of a notebook its cells and their printed outputs."
    text = path.read_text(encoding="utf8")
    if path.suffix != ".ipynb":
        return text
    lines = []
    for cell in json.loads(text)["cells"]:
        lines.append("".join(cell["source"]))
        for output in cell.get("outputs", ()):
            lines.append("".join(output.get("text", ())))
            shown = output.get("data", {}).items()
            lines += ["".join(part) for kind, part in shown if kind.startswith("text/")]
    return "\n".join(lines)


@pytest.mark.parametrize("text", ["A row a\nmodel", "the Ledger of", "def _blame(x)", "take_up"])
def test_banned_words_are_found(text):
    assert len(banned_words(text)) == 1


def test_no_committed_text_holds_a_banned_word():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    hits = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if path.suffix not in TEXTS or not path.is_file() or path == Path(__file__).resolve():
            continue
        hits += [f"{name}: {' '.join(found.split())}" for found in banned_words(read_text(path))]
    assert not hits, "use the words of the field:\n" + "\n".join(hits)
