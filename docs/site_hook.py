"""What mkdocs cannot do by itself: the pages that are generated, and links that leave docs/.

In the repository, a page may link to any file: `../results/cub`, `../CONTRIBUTING.md`. On the site these links must
work too, also without a network. So Markdown files outside docs/ become pages, other files that a page links to are
copied, and a folder becomes a list of its files.
"""

from __future__ import annotations

import os
import posixpath
import re
from html import escape
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # of the repository, and where they are on the site
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/report-a-vulnerability.md",
    "benchmarks/README.md": "project/benchmarks.md",
}
COPIES = "repository"  # the folder of the site for everything else
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/|<)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCED = re.compile(r"(^```.*?^```\s*?$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages of the repository, and every file that a page links to."""
    for repository, site in PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / repository)))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    for file in files.documentation_pages():
        for part in links_of(file):
            _add(files, config, part)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/ into links to where the site has the same file."""
    home = repository_path(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), link[1]))
        place = site_path(target)
        return os.path.relpath(place, posixpath.dirname(page.file.src_uri) or ".") + (link[2] or "")

    parts = FENCED.split(markdown)
    return "".join(part if FENCED.match(part) else LINK.sub(moved, part) for part in parts)


def repository_path(src_uri: str) -> str:
    """Return where the source of a page is in the repository."""
    return next((path for path, site in PAGES.items() if site == src_uri), f"docs/{src_uri}")


def site_path(target: str) -> str:
    """Return where the site has a file or folder of the repository, as a path below docs/."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"{COPIES}/{target}/index.md" if (ROOT / target).is_dir() else f"{COPIES}/{target}"


def links_of(file: File) -> list[str]:
    """Return the files and folders outside docs/ that a page links to, as paths of the repository."""
    if file.src_uri.startswith(COPIES) or not file.src_uri.endswith(".md"):
        return []
    home = posixpath.dirname(repository_path(file.src_uri))
    text = "".join(part for part in FENCED.split(file.content_string) if not FENCED.match(part))
    found = {posixpath.normpath(posixpath.join(home, link[1])) for link in LINK.finditer(text)}
    return sorted(path for path in found if not path.startswith("docs/") and path not in PAGES)


def _add(files: Files, config: MkDocsConfig, path: str) -> None:
    """Copy a file of the repository, or list a folder and copy its files; what is not there stays a broken link."""
    there, place = ROOT / path, site_path(path)
    if path.startswith("..") or files.get_file_from_path(place) is not None:
        return
    if there.is_file():
        files.append(File.generated(config, place, abs_src_path=str(there)))
    elif there.is_dir():
        inside = sorted(str(file.relative_to(there)) for file in there.rglob("*") if file.is_file())
        for name in inside:
            _add(files, config, f"{path}/{name}")
        lines = [f"- [{name}]({name})" for name in inside]
        page = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n" + "\n".join(lines) + "\n"
        files.append(File.generated(config, place, content=page))


# --- the commands -----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the reference of all commands, from what `--help` prints."""
    import typer
    from typer.main import get_command

    from finesight.cli.main import app

    root = get_command(app)
    context = typer.Context(root, info_name="finesight", max_content_width=10_000)
    intro = (
        "# Commands\n\nThis page is generated from the help texts: `finesight COMMAND --help` prints the same. Every "
        "command ends with exit code 0 if it did its work, with 2 and one message if you have to change something, and "
        "with 130 after Ctrl-C.\n"
    )
    return "\n".join([intro, *_commands(root, context)])


def _commands(command: object, context: object) -> list[str]:
    parts = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        own = type(context)(child, info_name=name, parent=context, max_content_width=10_000)
        parts.append(_command(child, own))
        if hasattr(child, "list_commands"):
            parts += _commands(child, own)
    return parts


def _command(command: object, context: object) -> str:
    path = context.command_path
    depth = "#" * (len(path.split()))
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    rows = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    rows = [(names, words) for names, words in rows if names != "--help"]
    lines = [f"{depth} {path}", "", _text(command.help or ""), "", "```text", usage, "```", ""]
    if rows:
        lines += ["| option | |", "|:---|:---|"]
        lines += [f"| {_code(names)} | {_cell(words)} |" for names, words in rows]
    return "\n".join([*lines, ""])


def _text(words: str) -> str:
    return escape(words.replace("\b", ""), quote=False).replace("*", "\\*").replace("_", "\\_")


def _cell(words: str) -> str:
    return " ".join(_text(words).replace("|", "\\|").replace("[", "\\[").split())


def _code(names: str) -> str:
    return f"<code>{escape(' '.join(names.split()))}</code>".replace("|", "&#124;")
