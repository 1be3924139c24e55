from pathlib import Path
from typing import Any

import pytest

from finesight.errors import FineSightError
from finesight.methods.base import METHODS
from finesight.rationale.config import VARIANTS, VariantName
from finesight.training.config import RuntimeConfig, build_config, validate_settings
from finesight.training.config_file import read_yaml, write_yaml
from finesight.training.dotted_keys import flat, nested


def error_of(**settings: Any) -> str:
    with pytest.raises(FineSightError) as error:
        build_config({"data": "x", **settings})
    return str(error.value)


# --- defaults -----------------------------------------------------------------------------------------------------


def test_defaults_are_the_papers() -> None:
    config = build_config({"data": "birds"})
    assert (config.data, config.method, config.epochs, config.batch_size) == ("birds", "lcr", 100, 128)
    assert (config.optim.lr, config.optim.momentum, config.optim.weight_decay) == (0.03, 0.9, 1e-4)
    assert (config.optim.warmup_epochs, config.optim.cosine) == (0, "epoch")
    assert (config.objective.dim, config.objective.temperature, config.objective.momentum) == (256, 0.2, 0.999)
    assert (config.backbone.name, config.backbone.weights, config.views.resolution) == ("resnet50", "imagenet", 224)
    assert config.rationale == VARIANTS["finesight"]
    assert config.rationale.tau == 0.4
    assert config.rationale.projections == 32


@pytest.mark.parametrize(
    ("method", "own"),
    [("lcr", {}), ("lcr-multitask", {"encoder_gradient": 1.0, "nu": 0.01}), ("lcr-mlp", {"form": "mlp"})],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_brings_its_defaults_then_the_recipe_then_single_switches(
    method: str, own: dict[str, Any], variant: VariantName
) -> None:
    expected = VARIANTS[variant].model_copy(update=own)
    config = build_config({"data": "x", "method": method, "rationale.variant": variant})
    assert config.rationale == expected
    assert config.objective.projector == VARIANTS[variant].projector
    changed = build_config({"data": "x", "method": method, "rationale.variant": variant, "rationale.tau": 0.7})
    assert changed.rationale == expected.model_copy(update={"tau": 0.7})


def test_projector_switch_of_the_rationale_reaches_the_objective() -> None:
    assert build_config({"data": "x", "rationale.projector": "3-layer-bn"}).objective.projector == "3-layer-bn"
    settings = {"data": "x", "rationale.variant": "paper", "rationale.projector": "2-layer", "objective.dim": 64}
    config = build_config(settings)
    assert (config.objective.projector, config.objective.dim) == ("2-layer", 64)
    direct = build_config({"data": "x", "rationale.variant": "paper", "objective.projector": "2-layer"})
    assert direct.objective.projector == "2-layer"


def test_method_without_rationale_has_none() -> None:
    config = build_config({"data": "x", "method": "moco-v2"})
    assert config.rationale is None
    assert config.pooling == "average"
    assert build_config({"data": "x", "method": "moco-v2", "rationale": None}) == config
    assert build_config({"data": "x", "method": "moco-v2", "rationale": {}}) == config


# --- errors -------------------------------------------------------------------------------------------------------


def test_every_bad_key_is_named_at_once() -> None:
    message = error_of(
        epohcs=3,
        batch_size="many",
        seed=-1,
        **{
            "views.resolutoin": 112,
            "rationale.tua": 0.4,
            "rationale.tau": -1,
            "objective.quue": 5,
            "backbone.freeze": -2,
            "optim.momentum": 1.5,
            "validation.max_images": "x",
        },
    )
    lines = message.splitlines()[1:]
    for key in ("epohcs", "views.resolutoin", "rationale.tua", "objective.quue"):
        assert [line for line in lines if line.startswith(f"  {key} (no such setting)")], key
    for key in ("batch_size", "seed", "rationale.tau", "backbone.freeze", "optim.momentum", "validation.max_images"):
        assert [line for line in lines if line.startswith(f"  {key}: ")], key
    assert len(lines) == 10
    assert "'many'" in message


def test_missing_data_is_named() -> None:
    with pytest.raises(FineSightError, match="data must be given"):
        build_config({})


def test_an_unknown_variant_lists_what_there_is() -> None:
    message = error_of(**{"rationale.variant": "papre"})
    assert all(name in message for name in ("papre", *VARIANTS))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"rationale": 5}, "rationale"),
        ({"objective": 5}, "objective"),
        ({"objective": "moco", "method": "moco-v2"}, "objective"),
        ({"views": 5}, "views"),
        ({"views": None}, "views"),
        ({"rationale.variant": []}, "variant"),
        ({"seed": 1, "seed.x": 2}, "seed"),
        ({"objective.queue": 0}, "objective.queue"),
        ({"backbone.output_stride": 12}, "backbone.output_stride"),
        ({"optim.clip_grad_norm": 0}, "optim.clip_grad_norm"),
        ({"batch_size": 1}, "batch_size"),
        ({"rationale.encoder_gradient": 1.5}, "rationale.encoder_gradient"),
    ],
)
def test_wrong_kinds_and_ranges_are_explained(settings: dict[str, Any], key: str) -> None:
    assert key in error_of(**settings)


def test_keys_that_are_not_text_are_named() -> None:
    with pytest.raises(FineSightError, match=r"7 \(no such setting\)"):
        build_config(nested({"data": "x", 7: 8}))  # type: ignore[dict-item]  # YAML allows it


def test_runtime_settings_are_checked_the_same_way() -> None:
    assert validate_settings(RuntimeConfig, devices=2).devices == 2
    with pytest.raises(FineSightError) as error:
        validate_settings(RuntimeConfig, devices=0, precison="16")
    assert "devices" in str(error.value)
    assert "precison (no such setting)" in str(error.value)


# --- keys ---------------------------------------------------------------------------------------------------------


def test_dotted_and_nested_keys_say_the_same() -> None:
    dotted = {"data": "x", "views.resolution": 112, "views.blur": 0.1, "rationale.tau": 1.0, "seed": 3}
    tables = {"data": "x", "views": {"resolution": 112, "blur": 0.1}, "rationale": {"tau": 1.0}, "seed": 3}
    assert nested(dotted) == tables
    assert nested(tables) == tables
    assert build_config(dotted) == build_config(tables)
    mixed = {"views": {"resolution": 64, "blur": 0.1}, "views.resolution": 112}
    assert nested(mixed) == {"views": {"resolution": 112, "blur": 0.1}}
    assert nested({"views": None, "views.resolution": 112}) == {"views": {"resolution": 112}}


def test_flat_is_the_way_back() -> None:
    config = build_config({"data": "x", "views.resolution": 112})
    pairs = flat(config)
    assert pairs["views.resolution"] == 112
    assert pairs["rationale.variant"] == "finesight"
    assert not any(isinstance(value, dict) for value in pairs.values())
    assert build_config(pairs) == config


@pytest.mark.parametrize("method", METHODS)
def test_a_written_configuration_reads_back_equal(tmp_path: Path, method: str) -> None:
    settings: dict[str, Any] = {"data": "déjà vu", "method": method, "views.scale": [0.3, 0.9]}
    if METHODS[method].rationale:
        settings |= {"rationale.variant": "paper", "rationale.nu": 0.5, "objective.dim": 77}
    config = build_config(settings)
    write_yaml(config, tmp_path / "config.yaml")
    again = build_config(read_yaml(tmp_path / "config.yaml"))
    assert again == config
    assert flat(again) == flat(config)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"- 1\n- 2\n", "table of settings"),
        (b"a: [", "cannot be read"),
        (b"\xff\xfe\x00x", "cannot be read"),
        (b"", "table"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(FineSightError, match=words):
        read_yaml(tmp_path / "c.yaml")
    with pytest.raises(FineSightError, match="nowhere"):
        read_yaml(tmp_path / "nowhere.yaml")
