"""The guides do what they say: every command and every piece of Python in them runs, in order, on drawn birds.

A block that cannot run here says why in a comment before it. Networks are tiny, and servers are stopped by Ctrl-C as
soon as they answer.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from milvus_servers import free_ports
from processes import TINY, Command, command

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["start.md", "runs.md", *sorted(f"guides/{file.name}" for file in (DOCS / "guides").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (not run|prepare): (.+?) -->\n)?```(console|python)\n(.*?)```", re.DOTALL)
NETWORK = TINY[: TINY.index("--projections")]
MORE = {  # what a command gets here, so that it takes a second
    "train": (*NETWORK, "--log-every", "1", "--accelerator", "cpu", "--quiet", "--epochs", "1"),
    "up": (*NETWORK[:6], "--no-train", "--no-open", "--quiet"),
    "lookalikes": ("--train-per-species", "12", "--test-per-species", "6", "--size", "40"),
}
LEFT_OUT = ("--minutes",)  # with the epochs given above there is nothing to plan


@pytest.fixture(scope="module")
def desk(birds: Path, unlabeled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: photos without labels, labeled ones, and a query."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(unlabeled, folder / "photos")
    shutil.copytree(birds, folder / "labeled")
    with Image.open(sorted(birds.glob("test/*/*.png"))[0]) as image:
        image.convert("RGB").save(folder / "query.jpg")
    return folder


def blocks(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield the mark, its words, the language and the text of each block."""
    for found in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        mark, words, language, text = found.groups()
        yield mark or "", words or "", language, text


def commands(text: str) -> list[list[str]]:
    """Return the words of each line that begins with a dollar sign."""
    lines = text.replace("\\\n", " ").splitlines()
    assert all(line.startswith("$ ") for line in lines), text
    return [shlex.split(line[2:], comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_a_guide_runs_as_written(page: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(desk)
    ran = 0
    for mark, words, language, text in blocks(page):
        if mark == "not run":
            continue
        if mark == "prepare":
            PREPARATIONS[words](desk)
        if language == "python":
            exec(compile(text, page, "exec"), {"__name__": "__guide__"})
        else:
            for line in commands(text):
                _run(line, desk)
        ran += 1
    assert ran or page == "guides/run-on-a-cluster.md"


def _run(words: list[str], desk: Path) -> None:
    program, name, *rest = words
    assert program == "finesight", words
    for option in LEFT_OUT:
        if option in rest and name in MORE:
            place = rest.index(option)
            del rest[place : place + 2]
    more = MORE.get(name, ())
    if name == "clean" and "--run" not in rest and "--apply" not in rest:
        more = (*NETWORK[:6], "--quiet")  # else the network would be the large one
    args = [name, *rest, *more]
    if name in ("up", "serve"):
        _serve(args, desk)
    elif "--watch" in rest:
        index = desk / rest[0] / "index"
        shutil.rmtree(index, ignore_errors=True)  # of another page: its being there would say nothing
        running = Command(*args, cwd=desk)
        running.until(lambda: (index / "index.json").exists() or any(index.glob("*.json")))
        running.send(signal.SIGINT)
        assert running.wait().code == 130
    else:
        done = command(*args, cwd=desk)
        assert done.code == 0, (words, done)


def _serve(args: list[str], desk: Path) -> None:
    port = free_ports(1)[0]
    running = Command(*args, "--port", str(port), cwd=desk)

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    running.until(answers)
    running.send(signal.SIGINT)
    done = running.wait()
    assert done.code in (0, 130), done
    assert "Traceback" not in done.err


def _name_the_clusters(desk: Path) -> None:
    """Write a name into the first line of each cluster, as the guide asks the reader to do."""
    file = desk / "sheets" / "clusters.csv"
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    seen: set[str] = set()
    for row in rows:
        if row["cluster"] and row["cluster"] not in seen:
            row["label"] = f"kind {int(row['cluster']) % 3}"
            seen.add(row["cluster"])
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _decide_the_findings(desk: Path) -> None:
    """Decide about the first finding, or about an image of one's own choice where nothing was found."""
    file = desk / "findings-trained" / "clean.csv"
    with file.open(newline="", encoding="utf-8") as stream:
        names, *rows = csv.reader(stream)
    if not rows:
        rows = [["train/species-000/0000.png" if name == "path" else "" for name in names]]
    rows[0][names.index("decision")] = "drop"
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([names, *rows])


PREPARATIONS = {"name-the-clusters": _name_the_clusters, "decide-the-findings": _decide_the_findings}


def test_every_command_of_the_documentation_exists() -> None:
    """Also those that are not run: their names and options are in the help."""
    from typer.main import get_command

    from finesight.cli.main import app

    root = get_command(app)
    wrong, seen = [], 0
    for file in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        for line in re.findall(
            r"^(?:\$ |    )(finesight .+?)(?: {2,}#.*)?$", file.read_text(encoding="utf-8"), re.MULTILINE
        ):
            words = shlex.split(line.rstrip("\\"), comments=True)[1:]
            known = root
            while words and hasattr(known, "commands") and words[0] in known.commands:
                known = known.commands[words.pop(0)]
            if hasattr(known, "commands"):
                if not (words and words[0].startswith("-")) and "|" not in line:
                    wrong.append((file.name, line))
                continue
            seen += 1
            options = {name for parameter in known.params for name in [*parameter.opts, *parameter.secondary_opts]}
            options.add("--help")
            wrong += [(file.name, line, word) for word in words if word.startswith("--") and word not in options]
    assert seen > 100
    assert not wrong
