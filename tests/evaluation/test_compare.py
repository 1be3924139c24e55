"""Two encoders query by query, against plain loops over their features; and the command as a user meets it."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from finesight.api import frozen
from finesight.cli.compare import compare as command
from finesight.data.cache import open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.compare import Comparison, compare, nearest
from finesight.evaluation.evaluate import evaluate
from finesight.features.encoder import Encoder
from finesight.nn.backbone_config import BackboneConfig

pytestmark = pytest.mark.slow

Found = tuple[int, float, str]  # place of the first of its class, AP, nearest


def tiny(seed: int, resolution: int) -> Encoder:
    torch.manual_seed(seed)
    return frozen(BackboneConfig(name="test_resnet", weights="random", output_stride=8), resolution)


@pytest.fixture(scope="module")
def encoders() -> tuple[Encoder, Encoder]:
    """Of different resolutions."""
    return tiny(0, 32), tiny(1, 24)


@pytest.fixture(scope="module")
def runs(encoders: tuple[Encoder, Encoder], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folders = tuple(tmp_path_factory.mktemp("runs") / name for name in "ab")
    for encoder, folder in zip(encoders, folders, strict=True):
        encoder.save(folder / "encoder")
    return folders


@pytest.fixture(scope="module")
def found(encoders: tuple[Encoder, Encoder], birds: Path) -> Comparison:
    return compare(*encoders, birds, resamples=2000, progress=False)


def by_hand(encoder: Encoder, source: ImageSource, pooling: str | None = None) -> dict[str, Found]:
    """Every image searches all others; one that is alone in its class does not."""
    paths, labels = source.paths.tolist(), source.labels.tolist()
    features = encoder.embed([source.file(i) for i in range(len(source))], pooling).double().numpy()
    result = {}
    for query, path in enumerate(paths):
        cosines = []
        for other in range(len(paths)):
            if other != query and labels[other] >= 0:
                u, v = features[query], features[other]
                cosines.append((-float(u @ v / np.sqrt((u @ u) * (v @ v))), other))
        ranking = [other for _, other in sorted(cosines)]
        places = [place for place, other in enumerate(ranking, start=1) if labels[other] == labels[query]]
        if labels[query] >= 0 and places:
            ap = sum((n + 1) / place for n, place in enumerate(places)) / len(places)
            result[path] = places[0], ap, paths[ranking[0]]
    return result


def check(found: Comparison, a: dict[str, Found], b: dict[str, Found]) -> None:
    assert list(found.paths) == list(a) == list(b)
    for evaluation, expected in ((found.a, a), (found.b, b)):
        first, ap, neighbor = zip(*expected.values(), strict=True)
        assert evaluation.queries.per_query["rank1"].tolist() == [place <= 1 for place in first]
        assert evaluation.queries.per_query["rank5"].tolist() == [place <= 5 for place in first]
        assert evaluation.queries.per_query["mAP"] == pytest.approx(ap)
        assert evaluation.cache.source.paths[nearest(evaluation, found.images)].tolist() == list(neighbor)
    for name, worth in (
        ("rank1", lambda one: one[0] <= 1),
        ("rank5", lambda one: one[0] <= 5),
        ("mAP", lambda one: one[1]),
    ):
        metric = found.metrics[name]
        means = [100 * sum(worth(one) for one in system.values()) / len(system) for system in (a, b)]
        assert [metric.a, metric.b] == pytest.approx(means)
        assert metric.difference.mean == pytest.approx(means[1] - means[0])
        assert metric.difference.low <= means[1] - means[0] <= metric.difference.high
        assert 0 < metric.difference.p <= 1
    right = [path for path in a if a[path][0] > 1 and b[path][0] == 1]
    wrong = [path for path in a if a[path][0] == 1 and b[path][0] > 1]
    assert [found.paths[i] for i in found.became_right] == right
    assert [found.paths[i] for i in found.became_wrong] == wrong
    moved = {path for path in a if abs(a[path][1] - b[path][1]) > 1e-9}
    changes = [found.paths[i] for i in found.ap_changes]
    assert set(changes) == moved
    sizes = [abs(a[path][1] - b[path][1]) for path in changes]
    assert sizes == pytest.approx(sorted(sizes, reverse=True))
    ordered = [found.paths[i] for i in found.changed]
    assert set(ordered[: len(right + wrong)]) == set(right + wrong)
    assert sorted(ordered) == sorted(moved | set(right + wrong) | {p for p in a if (a[p][0] > 5) != (b[p][0] > 5)})


# --- against plain loops ----------------------------------------------------------------------------------------------


def test_two_encoders_of_different_resolutions(
    found: Comparison, encoders: tuple[Encoder, Encoder], birds: Path
) -> None:
    test = open_source(birds).split("test")
    check(found, *(by_hand(encoder, test) for encoder in encoders))
    assert found.split == "given"
    assert len(found.paths) == 24
    assert len(found.became_right), "else the test shows nothing"
    assert len(found.became_wrong), "else the test shows nothing"
    assert found.labels == tuple(path.split("/")[1] for path in found.paths)
    assert found.dropped == ()


def test_two_poolings_of_one_encoder_take_one_pass(encoders: tuple[Encoder, Encoder], birds: Path) -> None:
    seen: list[int] = []
    handle = encoders[0].backbone.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    found = compare(encoders[0], encoders[0], birds, resamples=200, progress=False, pooling_b="gem")
    handle.remove()
    assert sum(seen) == 24
    test = open_source(birds).split("test")
    check(found, by_hand(encoders[0], test), by_hand(encoders[0], test, "gem"))


def test_without_a_split_all_images_search_and_lone_or_unlabeled_ones_do_not(
    encoders: tuple[Encoder, Encoder], birds: Path, tmp_path: Path
) -> None:
    """A list with a class of one image, and images without a class between those that have one."""
    files = sorted(birds.glob("test/*/*.png"))
    labels = [file.parent.name for file in files]
    labels[::5] = [""] * len(labels[::5])
    labels[3] = "alone"
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n" + "".join(f"{f},{label}\n" for f, label in zip(files, labels, strict=True)))
    source = open_source(listed)
    found = compare(*encoders, listed, resamples=200, progress=False)
    check(found, *(by_hand(encoder, source) for encoder in encoders))
    assert found.split == "all"
    assert len(found.paths) == 18
    for encoder, name in zip(encoders, "ab", strict=True):
        scores = evaluate(encoder, listed, linear=False, progress=False).scores["retrieval"]
        mine = {key: getattr(metric, name) for key, metric in found.metrics.items()}
        assert mine == pytest.approx({key: scores[key] for key in mine}), "as finesight evaluate has it"


def test_the_first_classes_only(encoders: tuple[Encoder, Encoder], birds: Path) -> None:
    found = compare(*encoders, birds, resamples=100, progress=False, limit_classes=2)
    check(found, *(by_hand(encoder, open_source(birds).split("test").first_classes(2)) for encoder in encoders))
    assert len(set(found.labels)) == 2


# --- the same images for both -----------------------------------------------------------------------------------------


def test_an_image_that_one_cannot_read_is_left_out_for_both(
    encoders: tuple[Encoder, Encoder], birds: Path, found: Comparison, tmp_path: Path
) -> None:
    """It was damaged while the images were decoded for the smaller resolution, and is whole again now."""
    root, lost = Path(shutil.copytree(birds, tmp_path / "birds")), found.paths[7]
    whole, state = (root / lost).read_bytes(), (root / lost).stat()
    for content in (bytes(len(whole)), whole):
        (root / lost).write_bytes(content)
        os.utime(root / lost, ns=(state.st_atime_ns, state.st_mtime_ns))
        open_cache(open_source(root).split("test"), 28, cache_dir=tmp_path / "cache", progress=False)
    test = open_source(root).split("test")
    without = compare(*encoders, root, resamples=100, progress=False, cache_dir=tmp_path / "cache")
    check(without, *(by_hand(encoder, test.select(test.paths != lost)) for encoder in encoders))
    assert without.dropped == (lost,)
    assert without.summary()["dropped"] == [lost]


def test_an_image_that_vanishes_in_between_is_named(
    encoders: tuple[Encoder, Encoder], birds: Path, found: Comparison, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(birds, tmp_path / "birds"))
    lost = root / found.paths[7]
    handle = encoders[0].backbone.register_forward_pre_hook(lambda *_: lost.unlink(missing_ok=True))
    with pytest.raises(FineSightError, match=rf"same images for both, but {found.paths[7]} could be read"):
        compare(*encoders, root, resamples=100, progress=False, cache_dir=tmp_path / "cache")
    handle.remove()


# --- the command ------------------------------------------------------------------------------------------------------


def ran(*words: str | Path) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, [*map(str, words), "--quiet"])


def told(*words: str | Path) -> str:
    result = ran(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json(runs: tuple[Path, Path], birds: Path, found: Comparison) -> None:
    text = told(*runs, "--data", birds, "--json", "--resamples", "2000")
    assert text.count("\n") == 1
    summary = json.loads(text)
    assert summary["a"] == {"run": str(runs[0]), "method": "frozen", "pooling": "average", "resolution": 32}
    assert summary["b"]["resolution"] == 24
    assert {key: value for key, value in summary.items() if key not in "ab"} == {
        key: value for key, value in found.summary().items() if key not in "ab"
    }
    for name, metric in found.metrics.items():
        assert summary["metrics"][name] == {"a": metric.a, "b": metric.b, "difference": vars(metric.difference)}
    assert summary["became_right"] == [found.paths[i] for i in found.became_right]
    assert summary["queries"] == 24
    other = json.loads(told(*runs, "--data", birds, "--json", "--resamples", "2000", "--seed", "1"))
    assert other["metrics"]["mAP"]["difference"]["low"] != summary["metrics"]["mAP"]["difference"]["low"]
    assert other["became_wrong"] == summary["became_wrong"]


def test_words_and_tables(runs: tuple[Path, Path], birds: Path, found: Comparison) -> None:
    text = told(*runs, "--data", birds, "--resamples", "2000")
    for words in ("24 queries: the test images of the given split", "rank-1", "rank-5", "mAP", "95 % interval"):
        assert words in text
    assert f"{found.metrics['mAP'].difference.mean:+.2f}" in text
    assert f"{len(found.became_right)} queries became right, {len(found.became_wrong)} became wrong" in text
    assert all(found.paths[i] in text for i in found.changed[:12])


def test_brackets_in_a_name_are_printed(runs: tuple[Path, Path], birds: Path, tmp_path: Path) -> None:
    for kind in sorted((birds / "test").iterdir()):
        shutil.copytree(kind, tmp_path / "data" / f"[bold]{kind.name}")
    assert "[bold]" in told(*runs, "--data", tmp_path / "data")


def test_the_same_run_twice(runs: tuple[Path, Path], birds: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    for other in (runs[0], copy):
        summary = json.loads(told(runs[0], other, "--data", birds, "--json"))
        for metric in summary["metrics"].values():
            assert metric["difference"] == {"mean": 0, "low": 0, "high": 0, "p": 1}
        assert [summary[key] for key in ("became_right", "became_wrong", "largest_ap_changes")] == [[], [], []]
    text = told(runs[0], runs[0], "--data", birds, "--out", tmp_path / "out")
    assert "No difference: both find the same for every query." in text
    assert len((tmp_path / "out" / "changed.csv").read_text().splitlines()) == 1
    assert Image.open(tmp_path / "out" / "changed.png").size[0] > 100


def test_files(runs: tuple[Path, Path], birds: Path, found: Comparison, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    words = (*runs, "--data", birds, "--out", out, "--pooling-b", "gem", "--resamples", "100", "--json")
    summary = json.loads(told(*words))
    assert json.loads((out / "comparison.json").read_text()) == summary
    assert summary["b"]["pooling"] == "gem"
    told(*runs, "--data", birds, "--out", out)  # once more, over the old ones
    with (out / "changed.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["path"] for row in rows] == [found.paths[i] for i in found.changed]
    turned = {"became right": found.became_right, "became wrong": found.became_wrong}
    for change, queries in turned.items():
        assert sorted(row["path"] for row in rows if row["change"] == change) == sorted(found.paths[i] for i in queries)
    for row, i in zip(rows, found.changed, strict=True):
        x, y = found.a.queries, found.b.queries
        assert row["label"] == found.labels[i]
        assert [row[key] for key in ("rank1_a", "rank1_b", "rank5_a", "rank5_b")] == [
            str(int(values[i]))
            for values in (x.per_query["rank1"], y.per_query["rank1"], x.per_query["rank5"], y.per_query["rank5"])
        ]
        assert (float(row["ap_a"]), float(row["ap_b"])) == (x.per_query["mAP"][i], y.per_query["mAP"][i])
    width, height = Image.open(out / "changed.png").size
    assert height > 3 * width, "three columns and twelve rows"


# --- wrong turns ------------------------------------------------------------------------------------------------------


def test_what_cannot_be_compared(runs: tuple[Path, Path], birds: Path, unlabeled: Path, tmp_path: Path) -> None:
    lone = tmp_path / "lone"
    for number, file in enumerate(sorted(birds.glob("test/*/*.png"))[::6]):
        (lone / str(number)).mkdir(parents=True)
        shutil.copy(file, lone / str(number) / "one.png")
    (tmp_path / "file").touch()
    for words, message in (
        ((runs[0], tmp_path, "--data", birds), "holds no encoder"),
        ((*runs, "--data", unlabeled), "has no labels"),
        ((*runs, "--data", lone), "at least two images"),
        ((*runs, "--data", tmp_path / "none"), "does not exist"),
        ((*runs, "--data", birds, "--pooling-b", "rationale"), "needs a trained rationale"),
        ((*runs, "--data", birds, "--limit-classes", "9"), "cannot be limited"),
        ((*runs, "--data", birds, "--out", tmp_path / "file"), "cannot be made a folder: File exists"),
        ((*runs, "--data", birds, "--out", tmp_path / "file" / "in"), "cannot be made a folder: Not a directory"),
    ):
        result = ran(*words)
        assert isinstance(result.exception, FineSightError), result.output
        assert message in str(result.exception)
    assert ran(*runs, "--data", birds, "--pooling-a", "meen").exit_code == 2
