"""A registry finds built-in pieces by package, others by entry point, and says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from finesight.errors import FineSightError
from finesight.registry import Registry

MODULE = """
from {package} import PIECES

PIECES.register("{name}", "{value}")
"""
INIT = """
from finesight.registry import Registry

PIECES = Registry("piece", packages=["{package}"], group="{package}.pieces")
"""


def package(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(INIT.format(package=name))
    for number in (1, 2):
        (folder / name / f"m{number}.py").write_text(MODULE.format(package=name, name=f"p{number}", value=number))


def distribution(folder: Path, group: str, module: str) -> None:
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{module} = {module}\n")


def test_modules_of_the_package_register_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "pieces_a")
    monkeypatch.syspath_prepend(tmp_path)
    from pieces_a import PIECES  # type: ignore[import-not-found]

    assert dict(PIECES) == {"p1": "1", "p2": "2"}
    assert PIECES.find("p1") == "1"
    assert "p3" not in PIECES


def test_other_distributions_come_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "pieces_b")
    (tmp_path / "outside_b.py").write_text(MODULE.format(package="pieces_b", name="far", value="away"))
    distribution(tmp_path, "pieces_b.pieces", "outside_b")
    monkeypatch.syspath_prepend(tmp_path)
    from pieces_b import PIECES  # type: ignore[import-not-found]

    assert list(PIECES) == ["p1", "p2", "far"]


def test_a_plug_in_that_fails_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package(tmp_path, "pieces_c")
    (tmp_path / "outside_c.py").write_text("raise RuntimeError('broken inside')")
    distribution(tmp_path, "pieces_c.pieces", "outside_c")
    monkeypatch.syspath_prepend(tmp_path)
    from pieces_c import PIECES  # type: ignore[import-not-found]

    assert list(PIECES) == ["p1", "p2"]
    assert "piece plug-in 'outside_c' is left out: RuntimeError('broken inside')" in capsys.readouterr().err


def test_an_unknown_name_and_a_name_twice() -> None:
    pieces: Registry[str] = Registry("piece")
    pieces.register("hammer", "one")
    pieces.register("hammer", "one")
    with pytest.raises(FineSightError, match=r"no piece 'hamer'.*hammer"):
        pieces.find("hamer")
    with pytest.raises(FineSightError, match="Two pieces are called 'hammer'"):
        pieces.register("hammer", "other")
    with pytest.raises(KeyError):
        pieces["hamer"]


def test_decorator_returns_what_it_decorates() -> None:
    kinds: Registry[type] = Registry("kind")

    @kinds.decorator("a")
    class A: ...

    assert kinds["a"] is A
