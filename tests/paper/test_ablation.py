"""The ablations: what each varies, what it leaves, that it continues, and what it says when it cannot."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import torch
from PIL import Image
from torch.nn.functional import normalize

from finesight.data.layouts.lookalikes import LookalikesConfig
from finesight.data.sources import open_source
from finesight.errors import FineSightError
from finesight.evaluation.evaluate import evaluate
from finesight.features.encoder import Encoder
from finesight.paper.ablation import AblationExperiment, open_ablation, select_profile
from finesight.paper.ablation_results import result_rows, summary_table, write_results
from finesight.paper.ablations import (
    ABLATIONS,
    DIMS,
    K_SWEEP,
    K_SWEEP_APART,
    KEEP_ALL,
    OWN,
    POWERS,
    PROJECTIONS,
    paper_columns,
    paper_numbers,
)
from finesight.paper.bench import run_ablation
from finesight.paper.experiment import Run
from finesight.paper.store import Results
from finesight.rationale.config import VARIANTS
from finesight.training.config import RuntimeConfig
from finesight.training.dotted_keys import flat
from processes import TooLate, command, in_time, refused, rows

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 8, "views.resolution": 32}
RUNTIME = RuntimeConfig(progress=False, log_every=1, checkpoint_minutes=0)
ALL = {**ABLATIONS, "k-sweep apart": K_SWEEP_APART}


def opened(name: str, data: str | Path, out: Path, seeds: tuple[int, ...] = (0,), **more: Any) -> AblationExperiment:
    """Without reports, which take longer to draw than these trainings."""
    given = {**QUICK, **more}
    return open_ablation(name, str(data), out, seeds=seeds, profile="drawn", given=given, runtime=RUNTIME, report=False)


class Finished(NamedTuple):
    job: AblationExperiment
    results: Results
    summary: dict[str, Any]


def finished(job: AblationExperiment) -> Finished:
    results = job.run_missing()
    return Finished(job, results, write_results(job, results, "finesight bench"))


@pytest.fixture(scope="module")
def swept(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Of two seeds. Not to be written to."""
    return finished(opened("k-sweep", birds, tmp_path_factory.mktemp("out"), seeds=(0, 3)))


@pytest.fixture(scope="module")
def kept(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Which projections matter. Not to be written to."""
    return finished(opened("projections", birds, tmp_path_factory.mktemp("out"), epochs=3))


def copied(job: AblationExperiment, folder: Path) -> AblationExperiment:
    """The same experiment in another folder."""
    shutil.copytree(job.out, folder, dirs_exist_ok=True)
    return opened(job.command, job.data, folder, seeds=job.seeds)


def read_csv(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def png_size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        assert image.format == "PNG"
        return image.size


# --- what is varied ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "varied"),
    [
        ("k-sweep", set()),
        ("k-sweep apart", {"rationale.projections"}),
        ("branch", {"method", "rationale.form", "rationale.projections"}),
        ("nu", {"rationale.nu"}),
        ("dim", {"objective.dim"}),
        ("projections", {"rationale.keep"}),
        ("mask-power", set()),
    ],
)
def test_variants_differ_in_what_the_ablation_is_about_and_nothing_else(
    birds: Path, tmp_path: Path, name: str, varied: set[str]
) -> None:
    job = replace(opened(name.split()[0], birds, tmp_path, epochs=16), ablation=ALL[name])
    configs = [flat(job.config(training, 0)) for training in job.ablation.trainings]
    assert {key for key in configs[0] if len({str(config[key]) for config in configs}) > 1} == varied
    assert not list(tmp_path.iterdir())


def test_the_values_are_those_of_the_paper(birds: Path, tmp_path: Path) -> None:
    def values(name: str, key: str) -> list[Any]:
        job = opened(name, birds, tmp_path, **{"rationale.encoder_gradient": 1.0})
        return [flat(job.config(training, 0))[key] for training in job.ablation.trainings]

    assert values("k-sweep", "rationale.projections") == [2, 4, 8, 16, 32, 64, 128, 256]
    assert values("nu", "rationale.nu") == [1, 0.1, 0.01, 0.001]
    assert flat(opened("nu", birds, tmp_path).config("nu1", 0))["rationale.encoder_gradient"] == 1, "else ν is nothing"
    assert values("dim", "objective.dim") == [64, 128, 256, 512, 1024]
    assert values("branch", "rationale.form") == ["max", "mlp", "max"]
    assert values("branch", "rationale.projections") == [32, 32, 1]


def test_a_variant_of_the_rationale_is_trained_as_it_says_whatever_the_profile(birds: Path, tmp_path: Path) -> None:
    job = opened("reading", birds, tmp_path)
    found = {name: job.config(name, 0).rationale for name in job.ablation.trainings}
    assert found["paper"] == VARIANTS["paper"]
    assert found["released"] == VARIANTS["released"]
    ours = VARIANTS["finesight"].model_copy(update={"branch_lr": 0.01, "mask_power": 1.0})  # the profile's
    assert found["finesight"] == ours
    assert found["relu-loss"] == ours.model_copy(update={"rectify": "relu"})
    assert found["relu-negative"] == ours.model_copy(update={"rectify": "relu", "score": "negative_loss"})
    assert job.config("paper", 0).pooling == "rationale-sum"


@pytest.mark.parametrize("name", ALL)
def test_rows_are_told_apart_by_their_labels_and_use_every_variant(name: str) -> None:
    ablation = ALL[name]
    labels = [row.label for row in ablation.rows]
    assert len(set(labels)) == len(labels)
    assert {row.training for row in ablation.rows} == set(ablation.trainings)


def test_the_projections_are_chosen_at_the_epoch_of_the_paper_s_figure(birds: Path, tmp_path: Path) -> None:
    def kept(**more: Any) -> tuple[Any, ...]:
        config = flat(opened("projections", birds, tmp_path, **more).config("keep-rest", 0))
        return tuple(config[f"rationale.{key}"] for key in ("projections", "keep_count", "keep_from"))

    assert kept(epochs=16) == (32, 8, 10)
    assert kept(epochs=100) == (32, 8, 60)
    assert kept(epochs=16, **{"rationale.keep_from": 3}) == (32, 8, 3)


def test_what_the_paper_gives_stands_beside_its_row() -> None:
    def column(name: str, metric: str) -> dict[str, float]:
        found = paper_columns(ABLATIONS[name].rows)
        return {words: numbers[metric] for words, numbers in found.items() if numbers[metric] is not None}

    assert column("k-sweep", "paper_CUB_rank1") == {f"K = {OWN}": 49.69, "average pooling": 42.72}
    assert column("k-sweep", "paper_CIFAR100_rank1") == {"K = 8": 27.14, "K = 32": 20.02, "average pooling": 24.78}
    assert column("branch", "paper_Cars_rank1") == {"maximum over projections": 34.56, "MLP": 25.57}
    assert column("branch", "paper_CIFAR100_mAP") == {"maximum over projections": 4.35, "MLP": 4.34}
    assert list(column("nu", "paper_CUB_rank1").values()) == [47.52, 48.83, 49.69, 46.63]
    assert column("dim", "paper_CUB_rank1")["512 dimensions"] == 49.46
    assert len(column("dim", "paper_CUB_rank1")) == len(DIMS), "of the features as LCR pools them, not averaged"
    assert column("reading", "paper_CUB_mAP")["average pooling"] == 19.68
    assert not any(paper_numbers(row) for row in ABLATIONS["projections"].rows), "a figure without numbers"


# --- what it leaves ---------------------------------------------------------------------------------------------------


def test_one_training_has_every_k(swept: Finished) -> None:
    job, results, summary = swept
    assert sorted(path.name for path in (job.out / "runs").iterdir()) == ["all-k-seed0", "all-k-seed3"]
    assert {name: list(seeds) for name, seeds in results.items()} == {"all-k": [0, 3]}
    lines = summary["rows"]
    assert [line["K"] for line in lines if line["seed"] == 3] == [*PROJECTIONS, None, None]
    assert {line["pooling"] for line in lines} == {
        *(f"rationale:{k}-gem" for k in PROJECTIONS if k != OWN),
        *("rationale-gem", "average", "gem"),
    }
    assert len({line["mAP"] for line in lines if line["seed"] == 0}) == len(lines) / 2, "all of them are different"
    assert all(0 <= line["rank1"] <= line["rank5"] <= 100 and 0 < line["attention"] < 100 for line in lines)


@pytest.mark.parametrize(
    "more",
    [{"rationale.encoder_gradient": 0.05}, {"optim.clip_grad_norm": 1.0}, {"rationale.pooling": "average"}],
    ids=lambda more: next(iter(more)),
)
def test_a_branch_that_affects_the_encoder_gets_a_training_for_every_k(
    birds: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    assert opened("k-sweep", birds, tmp_path).ablation is K_SWEEP
    assert opened("k-sweep", birds, tmp_path, **more).ablation is K_SWEEP_APART


def test_csv_json_and_figure(swept: Finished) -> None:
    job, results, summary = swept
    written = json.loads((job.out / "results.json").read_text())
    assert written == summary
    assert written["rows"] == result_rows(job, results)
    text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in written["rows"]]
    assert read_csv(job.out / "results.csv") == text
    assert (written["ablation"], written["seeds"], written["command"]) == ("k-sweep", [0, 3], "finesight bench")
    assert all(written[key] for key in ("machine", "date", "profile", "about"))
    assert written["commit"] == ""  # there is no git, see conftest
    assert str(job.out) not in json.dumps(written), "a path of this machine"
    width, height = png_size(job.out / "figure.png")
    assert 1000 < width < 2000
    assert 400 < height < 1000


def test_the_table_has_mean_and_paper(swept: Finished) -> None:
    table = summary_table(swept.summary)
    assert [line[""] for line in table] == [row.label for row in K_SWEEP.rows]
    own = {line[""]: line for line in table}
    assert own["K = 32"]["paper's rank-1 (CUB-200-2011, 224 px)"] == "49.69"
    assert own["K = 2"]["paper's rank-1 (CUB-200-2011, 224 px)"] == ""
    numbers = [line["rank1"] for line in swept.summary["rows"] if line["row"] == "K = 2"]
    assert own["K = 2"]["rank-1"].startswith(f"{sum(numbers) / 2:.2f} ± ")
    assert all("224 px" in head or "CIFAR-100" in head for head in table[0] if head.startswith("paper"))


def test_again_nothing_is_done_and_the_files_stay(swept: Finished, tmp_path: Path) -> None:
    job = copied(swept.job, tmp_path)
    shutil.rmtree(tmp_path / "runs")  # nothing could be scored
    names = ("results.csv", "results.json", "figure.png")
    before = [(tmp_path / name).read_bytes() for name in names]
    assert job.missing(job.seeds) == {}
    finished(job)
    assert [(tmp_path / name).read_bytes() for name in names] == before


def test_a_result_that_is_lost_or_lacks_a_pooling_is_scored_again_without_training(
    swept: Finished, tmp_path: Path
) -> None:
    job = copied(swept.job, tmp_path)
    job.store.file("all-k", 3).unlink()
    file = job.store.file("all-k", 0)
    result = json.loads(file.read_text())
    del result["scores"]["gem"]
    file.write_text(json.dumps(result))
    assert job.missing(job.seeds) == {Run("all-k", seed): ["all-k"] for seed in (0, 3)}
    before = {run.name: (run / "metrics.csv").stat().st_mtime_ns for run in (tmp_path / "runs").iterdir()}
    results = job.run_missing()
    for seed in (0, 3):
        assert results["all-k"][seed]["scores"] == swept.results["all-k"][seed]["scores"]
    assert before == {run.name: (run / "metrics.csv").stat().st_mtime_ns for run in (tmp_path / "runs").iterdir()}


def test_stopped_in_the_middle_it_continues_there(birds: Path, tmp_path: Path) -> None:
    """The second training is stopped after some steps."""
    in_time(lambda place: stop_in_the_middle(birds, place), tmp_path)


def stop_in_the_middle(birds: Path, tmp_path: Path) -> None:
    job = opened("branch", birds, tmp_path, epochs=4)
    second = job.folder(Run("lcr-mlp", 0)).root
    code = tiny.Running(job.run_missing).send_when(signal.SIGINT, lambda: len(rows(second)) >= 5)
    assert code != 0
    if len(rows(second)) == 24:
        raise TooLate
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["lcr-seed0.json"]
    first = job.store.file("lcr", 0).stat().st_mtime_ns
    assert list(job.missing(job.seeds)) == [Run("lcr-mlp", 0), Run("lcr-single", 0)]
    job.run_missing()
    assert job.store.file("lcr", 0).stat().st_mtime_ns == first
    assert len(rows(second)) == 24


def test_every_power_of_the_mask_is_what_a_network_of_that_power_has(birds: Path, tmp_path: Path) -> None:
    job = finished(opened("mask-power", birds, tmp_path))
    encoder = Encoder.load(job.job.folder(Run("lcr", 0)).root)
    assert encoder.config.rationale is not None
    found = {line["power"]: line["mAP"] for line in job.summary["rows"] if line["power"] is not None}
    assert list(found) == list(POWERS)
    assert len(set(found.values())) > 1
    for power, mean_ap in found.items():
        rationale = encoder.config.rationale.model_copy(update={"mask_power": power})
        config = encoder.config.model_copy(update={"rationale": rationale})
        alone = evaluate(Encoder(config, encoder.backbone, encoder.branch), birds, linear=False, progress=False)
        assert alone.scores["retrieval"]["mAP"] == mean_ap


# --- the projections --------------------------------------------------------------------------------------------------


def test_curves_part_where_projections_are_selected(kept: Finished) -> None:
    job, results, summary = kept
    assert [line["row"] for line in summary["rows"]] == [row.label for row in ABLATIONS["projections"].rows]
    rationale = job.config(KEEP_ALL, 0).rationale
    assert rationale is not None
    assert rationale.keep_from == 2
    epochs = [seeds[0]["epochs"] for seeds in results.values()]
    curves = [own["val_rank1"] for own in epochs]
    assert all([epoch for epoch, _ in curve] == [1, 2, 3] for curve in curves)
    assert curves[0][:2] == curves[1][:2] == curves[2][:2], "until then they are the same training"
    assert len({own["kl"][-1][1] for own in epochs}) == 3


def test_variances_are_sorted_and_of_the_test_images(kept: Finished) -> None:
    """A variance is that of the responses over the cells."""
    job, results, _ = kept
    table, variances = read_csv(job.out / "variances.csv"), results[KEEP_ALL][0]["variances"]
    assert [float(line["variance"]) for line in table] == sorted(variances, reverse=True)
    assert sorted(int(line["projection"]) for line in table) == list(range(32))
    assert [int(line["place"]) for line in table] == list(range(1, 33))
    assert min(png_size(job.out / "projections.png")) > 1000
    assert png_size(job.out / "figure.png")[0] > 1000
    encoder = Encoder.load(job.folder(Run(KEEP_ALL, 0)).root)
    assert encoder.branch is not None
    source = open_source(job.data).split("test")
    views = encoder.prepare([source.file(i) for i in range(len(source))])
    with torch.no_grad():
        answers = encoder.branch.filters(normalize(encoder.backbone(views), dim=1)).double().flatten(2)
    expected = ((answers - answers.mean(2, keepdim=True)) ** 2).mean(2).mean(0)
    assert variances == pytest.approx(expected.tolist(), rel=1e-4)


# --- other data -------------------------------------------------------------------------------------------------------


def test_without_labels_the_metrics_of_the_training_are_shown(unlabeled: Path, tmp_path: Path) -> None:
    job = opened("projections", unlabeled, tmp_path, **{"epochs": 2, "rationale.keep_from": 1})
    summary = finished(job).summary
    assert not summary["labelled"]
    assert {"kl", "mask_entropy", "effective_rank"} <= summary["rows"][0].keys()
    assert not {"rank1", "mAP", "attention"} & summary["rows"][0].keys()
    assert all(0 < line["mask_entropy"] <= 1 for line in summary["rows"])
    assert "mask entropy" in summary_table(summary)[0]
    assert png_size(tmp_path / "figure.png")[0] > 1000
    assert len(read_csv(tmp_path / "variances.csv")) == 32
    assert opened("k-sweep", unlabeled, tmp_path / "k").ablation is K_SWEEP_APART
    reading = opened("reading", unlabeled, tmp_path / "reading")
    assert [row.training for row in reading.rows] == list(reading.ablation.trainings), "a bar a training"


def test_controls_of_a_folder_with_classes_but_no_objects(class_folders: Path, tmp_path: Path) -> None:
    job = opened("reading", class_folders, tmp_path)
    own = tuple(row for row in job.ablation.rows if row.training == "finesight")
    ablation = replace(job.ablation, trainings={"finesight": job.ablation.trainings["finesight"]}, rows=own)
    summary = finished(replace(job, ablation=ablation)).summary
    poolings = {line["row"]: line["pooling"] for line in summary["rows"]}
    assert "box oracle" not in poolings
    assert poolings["untrained branch"] == "rationale:untrained-gem"
    assert "attention" not in summary["rows"][0]
    assert all(line["rank1"] is not None for line in summary["rows"])


@pytest.mark.parametrize("name", ["branch", "nu", "dim", "reading"])
def test_the_others_run_whole(birds: Path, tmp_path: Path, name: str) -> None:
    job, _, summary = finished(opened(name, birds, tmp_path))
    assert len(summary["rows"]) == len(job.ablation.rows)
    assert all(line["rank1"] is not None for line in summary["rows"])
    assert png_size(tmp_path / "figure.png")[0] > 1000


def test_profiles(birds: Path, class_folders: Path, tmp_path: Path) -> None:
    """Drawn birds get a small network, other data ``cpu-50`` without what belongs to 50 classes."""
    job = opened("nu", birds, tmp_path)
    for name, expected in {
        None: ("test_resnet", 16, None),
        "cpu-50": ("resnet50", 4, 50),
        "paper": ("resnet50", 100, None),
    }.items():
        chosen = replace(job, profile=select_profile(name, drawn=True), given={})
        config = chosen.config("nu1", 0)
        assert (config.backbone.name, config.epochs, config.limit_classes) == expected
    job = open_ablation("dim", str(class_folders), tmp_path, given={"backbone.weights": "random"})
    settings = flat(job.config("dim64", 0))
    assert job.profile.name == "cpu-50 with all classes"
    assert settings["views.resolution"] == 128
    assert settings["limit_classes"] is None
    assert settings["objective.queue"] == "auto"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--profile", "gpu"),
            ("There is no profile 'gpu'", "drawn, cpu-50, cpu-200, cpu-200-320px, cpu-200-resnet18, paper"),
        ),
        (("--data", "no/such/folder"), ("does not exist", "give --data")),
        (("--seed", "-1"), ("--seed takes whole numbers from 0 on, not -1",)),
        (("--set", "epochs=1"), ("Projections would be chosen after 1 of 1 epoch,", "--set rationale.keep_from")),
        (("--set", "rationale.keep_from=16"), ("chosen after 16 of 16 epochs",)),
        (("--set", "rationale.projections=12"), ("Keeping 8 projections", "there are 12")),
        (("--set", "epochs"), ("--set takes key=value",)),
        (("--set", "seed=3"), ("--set cannot change seed: give --seed",)),
        (("--set", "epoch=3"), ("epoch (no such setting)",)),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) and value[0].startswith("--") else "",
)
def test_wrong_options(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    refused(command("bench", "projections", "--out", tmp_path / "out", *options), *words)
    assert list(tmp_path.iterdir()) == []


def test_folders_with_other_or_damaged_results_are_refused(swept: Finished, tmp_path: Path) -> None:
    job = swept.job
    words = r"all-k-seed0.json has other settings:\n  epochs: 1 then, 5 now\nDelete it, or give another --out"
    with pytest.raises(FineSightError, match=words):
        opened("k-sweep", job.data, job.out, epochs=5)
    with pytest.raises(FineSightError, match=r"holds the results of 'k-sweep': give another --out"):
        opened("dim", job.data, job.out)
    with pytest.raises(FineSightError, match="has 4 classes: it cannot be limited to 9"):
        opened("dim", job.data, tmp_path, limit_classes=9)
    (tmp_path / "file").touch()
    with pytest.raises(FineSightError, match="is a file: --out must be a folder"):
        opened("dim", job.data, tmp_path / "file")
    shutil.copytree(job.out / "runs", tmp_path / "runs")
    with pytest.raises(FineSightError, match=r"all-k-seed0 has other settings:\n  epochs: 1 then, 5 now\n"):
        opened("k-sweep", job.data, tmp_path, epochs=5)
    (tmp_path / "evaluations").mkdir()
    (tmp_path / "evaluations" / "all-k-seed0.json").write_text("{")
    with pytest.raises(FineSightError, match=r"all-k-seed0.json cannot be read"):
        opened("k-sweep", job.data, tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_built_in_birds_are_drawn_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small drawing: the real one takes most of a minute."""
    small = LookalikesConfig(species=4, train_per_species=12, test_per_species=4, size=40)
    options: dict[str, Any] = {"given": {**QUICK, "epochs": 2}, "runtime": RUNTIME, "report": False}
    again = partial(open_ablation, "projections", "lookalikes", tmp_path, lookalikes=small, **options)
    run_ablation(again(), "finesight bench projections")
    printed = capsys.readouterr().out
    assert "those of highest variance" in printed
    assert "its figure of Aircraft has no numbers" in printed
    assert {path.name for path in tmp_path.iterdir()} == {
        *("data", "runs", "evaluations", "results.csv", "results.json"),
        *("figure.png", "projections.png", "variances.csv"),
    }
    run_ablation(again(), "finesight bench projections", json_output=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads((tmp_path / "results.json").read_text())
    assert summary["profile"] == "drawn"


def test_the_command_line_keeps_what_was_typed(swept: Finished, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(swept.job.out, out)
    given = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    words = ("bench", "k-sweep", "--data", swept.job.data, "--out", out, "--seed", "0", "--seed", "3", *given)
    end = command(*words, "--json", "--quiet")
    assert end.code == 0, end.err
    assert json.loads(end.out)["command"] == (
        "finesight bench k-sweep --data birds --out out --seed 0 --seed 3 "
        "--set epochs=1 --set batch_size=8 --set views.resolution=32"
    )


@pytest.mark.usefixtures("half_precision")
def test_half_precision_is_that_of_the_encoders_and_is_kept_with_the_command(swept: Finished, tmp_path: Path) -> None:
    job = copied(swept.job, tmp_path / "out")
    halved = replace(job, runtime=job.runtime.model_copy(update={"precision": "bf16"}))
    assert [one.encoder(Run("all-k", 0)).uses_half_precision for one in (job, halved)] == [False, True]
    given = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    words = ("bench", "k-sweep", "--data", job.data, "--out", job.out, "--seed", "0", *given)
    end = command(*words, "--half", "--json", "--quiet")
    assert end.code == 0, end.err
    assert json.loads(end.out)["command"].endswith("--half")
