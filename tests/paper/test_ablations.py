"""The ablations: what each varies, what it leaves, that it continues, and what it says when it cannot."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from finesight.cli.main import app
from finesight.data.layouts.lookalikes import LookalikesConfig
from finesight.data.sources import open_source
from finesight.errors import FineSightError, Interrupted
from finesight.features.encoder import Encoder
from finesight.paper import ablation_run, ablation_study, networks
from finesight.paper.ablation_run import Records, result_rows, run, write
from finesight.paper.ablation_study import Study, open_study
from finesight.paper.ablations import (
    ABLATIONS,
    DIMS,
    K_SWEEP,
    K_SWEEP_APART,
    KEEP_ALL,
    OWN,
    PROJECTIONS,
    paper_columns,
    paper_numbers,
)
from finesight.paper.bench_command import ablation_table
from finesight.rationale.config import VARIANTS
from finesight.training.config import RuntimeConfig, TrainConfig, flat
from finesight.training.module import TrainingModule
from finesight.training.train import train
from processes import command, refused, rows

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "views.resolution": 32}
RUNTIME = RuntimeConfig(progress=False, log_every=1)
ALL = {**ABLATIONS, "k-sweep apart": K_SWEEP_APART}


@pytest.fixture(scope="module", autouse=True)
def _without_reports() -> Iterator[None]:
    """Drawing one takes longer than these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "train_and_report", train)
        yield


def study(name: str, data: str | Path, out: Path, seeds: tuple[int, ...] = (0,), **more: Any) -> Study:
    options = {"profile": more.pop("profile", "drawn")}
    return open_study(name, str(data), out, seeds=seeds, given={**QUICK, **more}, runtime=RUNTIME, **options)


def finished(job: Study) -> tuple[Study, Records, dict[str, Any]]:
    records = run(job)
    return job, records, write(job, records, "finesight bench")


@pytest.fixture(scope="module")
def swept(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Records, dict[str, Any]]:
    """Of two seeds. Not to be written to."""
    return finished(study("k-sweep", birds, tmp_path_factory.mktemp("out"), seeds=(0, 3)))


@pytest.fixture(scope="module")
def chosen(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Records, dict[str, Any]]:
    """Not to be written to."""
    return finished(study("projections", birds, tmp_path_factory.mktemp("out"), **{"epochs": 3}))


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this was done already")

    monkeypatch.setattr(networks, "train_and_report", refuse)
    monkeypatch.setattr(ablation_run, "evaluate_poolings", refuse)


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
    ],
)
def test_trainings_differ_in_what_the_ablation_is_about_and_nothing_else(
    birds: Path, tmp_path: Path, name: str, varied: set[str]
) -> None:
    job = replace(study(name.split()[0], birds, tmp_path, epochs=16), ablation=ALL[name])
    configs = [flat(job.config(training, 0)) for training in job.ablation.trainings]
    assert {key for key in configs[0] if len({str(config[key]) for config in configs}) > 1} == varied
    assert not list(tmp_path.iterdir())


def test_the_values_are_those_of_the_paper(birds: Path, tmp_path: Path) -> None:
    def values(name: str, key: str) -> list[Any]:
        job = study(name, birds, tmp_path, **{"rationale.encoder_gradient": 1.0})
        return [flat(job.config(training, 0))[key] for training in job.ablation.trainings]

    assert values("k-sweep", "rationale.projections") == [2, 4, 8, 16, 32, 64, 128, 256]
    assert values("nu", "rationale.nu") == [1, 0.1, 0.01, 0.001]
    assert values("dim", "objective.dim") == [64, 128, 256, 512, 1024]
    assert values("branch", "rationale.form") == ["max", "mlp", "max"]
    assert values("branch", "rationale.projections") == [32, 32, 1]


def test_nu_is_varied_where_it_matters(birds: Path, tmp_path: Path) -> None:
    rationale = study("nu", birds, tmp_path).config("nu1", 0).rationale
    assert rationale is not None
    assert rationale.encoder_gradient == 1
    assert "ν would change nothing" in ABLATIONS["nu"].about


def test_a_reading_is_trained_as_it_says_whatever_the_profile(birds: Path, tmp_path: Path) -> None:
    job = study("reading", birds, tmp_path)
    found = {name: job.config(name, 0).rationale for name in job.ablation.trainings}
    assert found["paper"] == VARIANTS["paper"]
    assert found["released"] == VARIANTS["released"]
    ours = VARIANTS["finesight"].model_copy(update={"branch_lr": 0.01, "mask_power": 1.0})  # the profile's
    assert found["finesight"] == ours
    assert found["relu-loss"] == ours.model_copy(update={"rectify": "relu"})
    assert found["relu-negative"] == ours.model_copy(update={"rectify": "relu", "score": "negative_loss"})
    assert job.config("paper", 0).pooling == "rationale"


@pytest.mark.parametrize("name", ALL)
def test_rows_are_told_apart_by_their_words_and_use_every_training(name: str) -> None:
    ablation = ALL[name]
    words = [row.words for row in ablation.rows]
    assert len(set(words)) == len(words)
    assert {row.training for row in ablation.rows} == set(ablation.trainings)


def test_the_projections_are_chosen_at_the_epoch_of_the_paper_s_figure(birds: Path, tmp_path: Path) -> None:
    def kept(**more: Any) -> tuple[Any, ...]:
        config = flat(study("projections", birds, tmp_path, **more).config("keep-rest", 0))
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


def test_one_training_fits_every_k(swept: tuple[Study, Records, dict[str, Any]]) -> None:
    job, records, results = swept
    assert sorted(path.name for path in (job.out / "runs").iterdir()) == ["all-k-seed0", "all-k-seed3"]
    assert list(records) == [("all-k", 0), ("all-k", 3)]
    found = results["rows"]
    assert [row["K"] for row in found if row["seed"] == 3] == [*PROJECTIONS, None, None]
    assert {row["pooling"] for row in found} == {
        *(f"rationale:{k}-gem" for k in PROJECTIONS if k != OWN),
        "rationale-gem",
        "average",
        "gem",
    }
    assert len({row["mAP"] for row in found if row["seed"] == 0}) == len(found) / 2, "all of them are different"
    assert all(0 <= row["rank1"] <= row["rank5"] <= 100 and 0 < row["attention"] < 100 for row in found)


@pytest.mark.parametrize(
    "more",
    [{"rationale.encoder_gradient": 0.05}, {"optim.clip_grad_norm": 1.0}, {"rationale.pooling": "average"}],
    ids=lambda more: next(iter(more)),
)
def test_a_branch_that_has_a_say_gets_a_training_for_every_k(birds: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    assert study("k-sweep", birds, tmp_path).ablation is K_SWEEP
    assert study("k-sweep", birds, tmp_path, **more).ablation is K_SWEEP_APART


def test_csv_and_json_say_the_same(swept: tuple[Study, Records, dict[str, Any]]) -> None:
    job, records, results = swept
    written = json.loads((job.out / "results.json").read_text())
    assert written == results
    assert written["rows"] == result_rows(job, records)
    table = read_csv(job.out / "results.csv")
    text = [{key: "" if value is None else str(value) for key, value in row.items()} for row in written["rows"]]
    assert table == text
    assert written["ablation"] == "k-sweep"
    assert written["seeds"] == [0, 3]
    assert written["command"] == "finesight bench"
    assert all(written[key] for key in ("machine", "date", "profile", "about"))
    assert written["commit"] == ""  # nobody was asked, see conftest
    assert str(job.out) not in json.dumps(written), "a path of this machine"


def test_the_table_has_mean_and_paper(swept: tuple[Study, Records, dict[str, Any]]) -> None:
    _, _, results = swept
    table = ablation_table(results)
    assert [row[""] for row in table] == [row.words for row in K_SWEEP.rows]
    own = {row[""]: row for row in table}
    assert own["K = 32"]["paper's rank-1 (CUB-200-2011, 224 px)"] == "49.69"
    assert own["K = 2"]["paper's rank-1 (CUB-200-2011, 224 px)"] == ""
    found = [row["rank1"] for row in results["rows"] if row["row"] == "K = 2"]
    assert own["K = 2"]["rank-1"].startswith(f"{sum(found) / 2:.2f} ± ")
    assert all("224 px" in head or "CIFAR-100" in head for head in table[0] if head.startswith("paper"))


def test_the_figure_is_a_picture(swept: tuple[Study, Records, dict[str, Any]]) -> None:
    width, height = png_size(swept[0].out / "figure.png")
    assert 1000 < width < 2000
    assert 400 < height < 1000


def test_again_nothing_is_trained_or_scored(swept: tuple[Study, Records, dict[str, Any]], no_work: None) -> None:
    job, _, _ = swept
    names = ("results.csv", "results.json", "figure.png")
    before = [(job.out / name).read_bytes() for name in names]
    again = study("k-sweep", job.data, job.out, seeds=(0, 3))
    write(again, run(again), "finesight bench")
    assert [(job.out / name).read_bytes() for name in names] == before


def test_a_lost_record_is_scored_again_without_training(
    swept: tuple[Study, Records, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, records, _ = swept
    shutil.copytree(job.out, tmp_path, dirs_exist_ok=True)
    copy = study("k-sweep", job.data, tmp_path, seeds=(0, 3))
    copy.record("all-k", 3).unlink()
    monkeypatch.setattr(networks, "train_and_report", None)
    assert run(copy)["all-k", 3]["scores"] == records["all-k", 3]["scores"]


def test_a_record_that_lacks_a_pooling_is_made_again(
    swept: tuple[Study, Records, dict[str, Any]], tmp_path: Path
) -> None:
    job, records, _ = swept
    shutil.copytree(job.out, tmp_path, dirs_exist_ok=True)
    copy = study("k-sweep", job.data, tmp_path)
    record = json.loads(copy.record("all-k", 0).read_text())
    del record["scores"]["gem"]
    copy.record("all-k", 0).write_text(json.dumps(record))
    assert run(copy)["all-k", 0]["scores"] == records["all-k", 0]["scores"]


def test_stopped_in_the_middle_it_continues_there(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second training is cut off after its first checkpoint."""
    begun: list[str] = []

    def some(config: TrainConfig, out: Path, runtime: RuntimeConfig) -> Any:
        begun.append(out.name)
        if out.name == "lcr-mlp-seed0" and begun.count(out.name) == 1:
            monkeypatch.setattr(TrainingModule, "finish_step", stopping)
        return train(config, out, runtime)

    def stopping(self: TrainingModule, batch: Any) -> None:
        finish(self, batch)
        if int(self.steps) == 7:
            monkeypatch.setattr(TrainingModule, "finish_step", finish)
            signal.raise_signal(signal.SIGINT)

    finish = TrainingModule.finish_step
    monkeypatch.setattr(networks, "train_and_report", some)
    job = study("branch", birds, tmp_path)
    with pytest.raises(Interrupted):
        run(job)
    assert begun == ["lcr-seed0", "lcr-mlp-seed0"]
    assert [path.name for path in (tmp_path / "evaluations").iterdir()] == ["lcr-seed0.json"]
    assert len(rows(job.run("lcr-mlp", 0).root)) == 7
    run(study("branch", birds, tmp_path))
    assert begun[2:] == ["lcr-mlp-seed0", "lcr-single-seed0"]
    assert len(rows(job.run("lcr-mlp", 0).root)) == 12


# --- the projections --------------------------------------------------------------------------------------------------


def test_curves_part_where_projections_are_chosen(chosen: tuple[Study, Records, dict[str, Any]]) -> None:
    job, records, results = chosen
    assert [row["row"] for row in results["rows"]] == [row.words for row in ABLATIONS["projections"].rows]
    rationale = job.config(KEEP_ALL, 0).rationale
    assert rationale is not None
    assert rationale.keep_from == 2
    curves = [record["epochs"]["val_rank1"] for record in records.values()]
    assert all([epoch for epoch, _ in curve] == [1, 2, 3] for curve in curves)
    assert curves[0][:2] == curves[1][:2] == curves[2][:2], "until then they are the same training"
    misfits = [record["epochs"]["kl"][-1] for record in records.values()]
    assert len({value for _, value in misfits}) == 3


def test_variances_are_sorted_and_of_the_test_images(chosen: tuple[Study, Records, dict[str, Any]]) -> None:
    job, records, _ = chosen
    table = read_csv(job.out / "variances.csv")
    values = [float(row["variance"]) for row in table]
    assert values == sorted(values, reverse=True)
    assert sorted(int(row["projection"]) for row in table) == list(range(32))
    assert [int(row["place"]) for row in table] == list(range(1, 33))
    assert values[0] == max(records[KEEP_ALL, 0]["variances"])
    assert values[-1] > 0
    width, height = png_size(job.out / "projections.png")
    assert width > 1000
    assert height > 1000
    assert png_size(job.out / "figure.png")[0] > 1000


def test_a_variance_is_that_of_the_answers_over_the_cells(chosen: tuple[Study, Records, dict[str, Any]]) -> None:
    job, records, _ = chosen
    encoder = Encoder.load(job.run(KEEP_ALL, 0).root)
    assert encoder.branch is not None
    source = open_source(job.data).split("test")
    views = encoder.prepare([source.file(i) for i in range(len(source))])
    with torch.no_grad():
        answers = encoder.branch.filters(normalize(encoder.backbone(views), dim=1)).double().flatten(2)
    expected = ((answers - answers.mean(2, keepdim=True)) ** 2).mean(2).mean(0)
    assert records[KEEP_ALL, 0]["variances"] == pytest.approx(expected.tolist(), rel=1e-4)


# --- other data -------------------------------------------------------------------------------------------------------


def test_without_labels_the_training_s_own_numbers_are_shown(unlabeled: Path, tmp_path: Path) -> None:
    job, _, results = finished(study("projections", unlabeled, tmp_path))
    assert not results["labelled"]
    assert {"kl", "mask_entropy", "effective_rank"} <= results["rows"][0].keys()
    assert not {"rank1", "mAP", "attention"} & results["rows"][0].keys()
    assert all(0 < row["mask_entropy"] <= 1 for row in results["rows"])
    assert "mask entropy" in ablation_table(results)[0]
    assert png_size(tmp_path / "figure.png")[0] > 1000
    assert len(read_csv(tmp_path / "variances.csv")) == 32
    assert study("k-sweep", unlabeled, tmp_path / "k").ablation is K_SWEEP_APART
    reading = study("reading", unlabeled, tmp_path / "reading")
    assert [row.training for row in reading.rows] == list(reading.ablation.trainings), "a bar a training"
    assert job.ablation.figure == "epochs"


def test_controls_of_a_folder_with_classes_but_no_objects(class_folders: Path, tmp_path: Path) -> None:
    job = study("reading", class_folders, tmp_path, epochs=1)
    trainings = {"finesight": job.ablation.trainings["finesight"]}
    own = tuple(row for row in job.ablation.rows if row.training == "finesight")
    job, _, results = finished(replace(job, ablation=replace(job.ablation, trainings=trainings, rows=own)))
    found = {row["row"]: row["pooling"] for row in results["rows"]}
    assert "box oracle" not in found
    assert found["untrained branch"] == "rationale:untrained-gem"
    assert "attention" not in results["rows"][0]
    assert all(row["rank1"] is not None for row in results["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branch", "nu", "dim", "reading"])
def test_the_others_run_whole(birds: Path, tmp_path: Path, name: str) -> None:
    job, _, results = finished(study(name, birds, tmp_path, epochs=1))
    assert len(results["rows"]) == len(job.ablation.rows)
    assert all(row["rank1"] is not None for row in results["rows"])
    assert png_size(tmp_path / "figure.png")[0] > 1000


@pytest.mark.parametrize(
    ("profile", "backbone", "epochs", "classes"),
    [(None, "test_resnet", 16, None), ("cpu-50", "resnet50", 4, 50), ("paper", "resnet50", 100, None)],
)
def test_profiles(tmp_path: Path, profile: str | None, backbone: str, epochs: int, classes: int | None) -> None:
    chosen = ablation_study._profile(profile, drawn=True)
    job = Study(
        "nu", ABLATIONS["nu"], tmp_path, tmp_path, chosen, {"limit_classes": chosen.classes}, (0,), RUNTIME, True, True
    )
    config = job.config("nu1", 0)
    assert (config.backbone.name, config.epochs, config.limit_classes) == (backbone, epochs, classes)


def test_other_data_gets_cpu_50_without_what_belongs_to_50_classes(class_folders: Path, tmp_path: Path) -> None:
    job = open_study("dim", str(class_folders), tmp_path, given={"backbone.weights": "random"})
    config = flat(job.config("dim64", 0))
    assert config["views.resolution"] == 128
    assert config["limit_classes"] is None
    assert config["objective.queue"] == "auto"
    assert job.profile.name == "cpu-50 with all classes"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--profile", "gpu"), ("There is no profile 'gpu'", "drawn, cpu-50, cpu-200, paper")),
        (("--data", "no/such/folder"), ("does not exist", "give --data")),
        (("--seed", "-1"), ("--seed takes whole numbers from 0 on, not -1",)),
        (("--set", "epochs=1"), ("Projections would be chosen after 1 of 1 epochs", "--set rationale.keep_from")),
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


def test_other_settings_and_other_ablations_need_another_folder(
    swept: tuple[Study, Records, dict[str, Any]], tmp_path: Path
) -> None:
    job, _, _ = swept
    with pytest.raises(
        FineSightError, match=r"has other settings:\n  epochs: 2 then, 5 now\nDelete it, or give another"
    ):
        study("k-sweep", job.data, job.out, epochs=5)
    with pytest.raises(FineSightError, match=r"holds the results of 'k-sweep': give another --out"):
        study("dim", job.data, job.out)
    with pytest.raises(FineSightError, match="has 4 classes: it cannot be limited to 9"):
        study("dim", job.data, tmp_path, limit_classes=9)
    (tmp_path / "file").touch()
    with pytest.raises(FineSightError, match="is a file: --out must be a folder"):
        study("dim", job.data, tmp_path / "file")


def test_a_damaged_record_is_named(swept: tuple[Study, Records, dict[str, Any]], tmp_path: Path) -> None:
    job, _, _ = swept
    shutil.copytree(job.out, tmp_path, dirs_exist_ok=True)
    for text, words in (("{", "cannot be read"), ("[]", "is no JSON object")):
        (tmp_path / "evaluations" / "all-k-seed0.json").write_text(text)
        with pytest.raises(FineSightError, match=words):
            study("k-sweep", job.data, tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_built_in_birds_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a small drawing: the real one takes most of a minute."""
    small = partial(LookalikesConfig, species=4, train_per_species=12, test_per_species=4, size=40)
    monkeypatch.setattr(ablation_study, "LookalikesConfig", small)
    out = tmp_path / "out"
    quick = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    words = ["bench", "projections", "--data", "lookalikes", "--out", str(out), "--seed", "1", "--quiet", *quick]
    app(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert "those of highest variance" in printed
    assert "its figure of Aircraft has no numbers" in printed
    made = {path.name for path in out.iterdir()}
    assert made == {
        *("data", "runs", "evaluations", "results.csv", "results.json"),
        *("figure.png", "projections.png", "variances.csv"),
    }
    app([*words, "--json"], standalone_mode=False)
    results = json.loads(capsys.readouterr().out)
    assert results == json.loads((out / "results.json").read_text())
    assert results["profile"] == "drawn"
    assert results["command"].startswith(
        "finesight bench projections --data lookalikes --out out --seed 1 --set epochs=2"
    )
