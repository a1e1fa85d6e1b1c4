"""The documents: their links, and the files and names that they speak of."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tools import diagrams

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "penstock"

PAGES: Final = sorted(
    str(page.relative_to(ROOT))
    for folder in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "benchmarks")
    for page in (folder.glob("*.md") if folder == ROOT else folder.rglob("*.md"))
    if "soak" not in page.parts and page.name != "0000-template.md"
)
PRESENT: Final = [page for page in PAGES if page != "CHANGELOG.md"]
"""Pages that speak of the code as it is; the changelog names what is gone."""


LOGS: Final = {
    name
    for file in SOURCE.rglob("*.py")
    for name in re.findall(r'\bLog\("(penstock[\w.]*)"\)', file.read_text("utf-8"))
}


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"(?ms)^```.*?^```", "", read(page))


def anchors(page: Path) -> set[str]:
    """The fragments that lead to a heading of the page, as GitHub and MyST name them."""
    found: dict[str, int] = {}
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text("utf-8"))
    for title in re.findall(r"(?m)^#+ (.*)$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower().strip()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        if found[slug]:
            found[f"{slug}-{found[slug]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PRESENT)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    pattern = r"`((?:src|tests|tools|benchmarks|examples|scripts|docs)/[\w./-]+)`"
    named = set(re.findall(pattern, prose(page)))
    homes = (ROOT, (ROOT / page).parent)
    missing = [path for path in named if not any((home / path).exists() for home in homes)]
    assert [path for path in sorted(missing) if not path.startswith("docs/soak")] == []


MADE_BY_THE_READER: Final = {"penstock_relu.py", "test_softsign.py"}


@pytest.mark.parametrize("page", PRESENT)
def test_every_python_file_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`([\w/.-]+\.py)`", prose(page))) - MADE_BY_THE_READER
    assert [name for name in sorted(named) if name not in python_files()] == []


@cache
def python_files() -> frozenset[str]:
    """Every ending of the path of every Python file of the repository."""
    folders = ("src", "tests", "tools", "benchmarks", "examples", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return frozenset(
        "/".join(path.parts[start:]) for path in files for start in range(len(path.parts))
    )


def test_every_folder_on_the_way_through_the_code_exists() -> None:
    named = re.findall(r"`([\w/]+)/`", read("docs/find-your-way.md"))
    assert named
    assert [path for path in named if not (SOURCE / path).is_dir()] == []


def resolves(name: str) -> bool:
    """Whether the dotted *name* is a module, or an attribute or field of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if part in getattr(value, "__annotations__", {}):
                return True
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@pytest.mark.parametrize("page", PRESENT)
def test_every_name_of_penstock_that_a_page_quotes_exists(page: str) -> None:
    named = set(re.findall(r"`(penstock(?:\.\w+)+)(?:\([^`]*\))?`", prose(page)))
    assert [name for name in sorted(named - LOGS) if not resolves(name)] == []


def glossary_names() -> list[str]:
    """Every name of the first column of the glossary's tables of names."""
    cells = re.findall(r"(?m)^\| ([^|]+) \|", read("docs/glossary.md").partition("## Names")[2])
    pattern = r"`([a-z_]+(?:\.\w+)+|[a-z]+|[A-Z]\w+)`"
    names = {name for cell in cells for name in re.findall(pattern, cell)}
    return sorted(names - {"None", "penstock.drivers", "reference"})


@pytest.mark.parametrize("name", glossary_names())
def test_every_name_of_the_glossary_exists(name: str) -> None:
    assert resolves(f"penstock.{name}")


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem
)
def test_every_decision_record_has_its_parts(page: Path) -> None:
    text = page.read_text("utf-8")
    number = page.name.partition("-")[0]
    assert text.startswith(f"# {number if number != '0000' else 'NNNN'}: ")
    for part in ("Status: ", "Date: ", "## Question", "## Decision"):
        assert f"\n{part}" in text, part


def test_diagrams_are_those_of_their_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams.main(["--check"]) == 0, capsys.readouterr().out
    for name in diagrams.DIAGRAMS:
        assert any(f"images/{name}.svg" in read(page) for page in PAGES), name


def test_readme_is_short() -> None:
    assert len(read("README.md").split()) <= 900
