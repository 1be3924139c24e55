"""The settings of a run as typed models, filled from a method's defaults: a wrong key is an error that names it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from finesight.data.geometry import MAX_SIDE, Framing
from finesight.data.named_path import absolute_named_path
from finesight.data.views import ViewConfig
from finesight.errors import FineSightError
from finesight.io.console import console
from finesight.methods.base import OBJECTIVES, Method, ObjectiveConfig, find_method
from finesight.nn.backbone_config import BackboneConfig, is_hub_name
from finesight.nn.pixels import own_pixels
from finesight.nn.pooling_config import PoolingName, TrainPooling
from finesight.nn.poolings import EARLIER_WEIGHT, find_pooling
from finesight.rationale.config import VARIANTS, RationaleConfig
from finesight.training.dotted_keys import dotted, nested
from finesight.training.hooks import HOOKS
from finesight.training.renamed import current_settings

M = TypeVar("M", bound=BaseModel)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimConfig(_Model):
    """SGD as in the paper; the branch's own Adam step is ``rationale.branch_lr``."""

    optimizer: Literal["sgd", "lars", "adamw"] = "sgd"
    lr: float = Field(0.03, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    decay_biases: bool = True  # under sgd biases and norms decay too; under lars they never do
    bias_lr_ratio: float = Field(1.0, ge=0)  # biases and norms under lars learn at lr times this
    backbone_lr_ratio: float = Field(1.0, ge=0, le=1)  # the backbone learns at lr times this
    layer_decay: float = Field(1.0, gt=0, le=1)  # each part of the backbone learns at this times the next one's rate
    freeze_epochs: float = Field(0.0, ge=0)  # the backbone is frozen so long, while the new head learns
    warmup_epochs: float = Field(0.0, ge=0)
    cosine: Literal["epoch", "step"] = "epoch"  # how often the rate changes; MoCo v2: once an epoch
    min_lr_ratio: float = Field(0.0, ge=0, le=1)  # the cosine ends at lr times this
    accumulate_grad_batches: int = Field(1, ge=1)
    clip_grad_norm: float | None = Field(None, gt=0)  # of the whole gradient
    clip_grad_norm_per_tensor: float | None = Field(None, gt=0)  # of each tensor's gradient


class ValidationConfig(_Model):
    """A random slice of train that training never sees, scored by leave-one-out retrieval where there are labels."""

    fraction: float = Field(0.1, ge=0, lt=1)
    max_images: int = Field(1000, ge=2)
    every_n_epochs: int = Field(5, ge=1)


class SaliencyConfig(_Model):
    """Where the objects are, for pasting them on other backgrounds and for drawing crops."""

    source: Literal["none", "detector", "files", "boxes", "rationale"] = "none"  # boxes: those annotated, an oracle
    folder: str | None = None  # of mask pictures, for ``files``; None: those that the data comes with
    every_n_epochs: int | None = Field(None, ge=1)  # new maps of the rationale; None: every fifth of the run


class FocusConfig(_Model):
    """Where crops are drawn (ContrastiveCrop). The defaults are the authors', once a source is given."""

    source: Literal["none", "energy", "rationale", "saliency", "center"] = "none"  # of the boxes
    every_n_epochs: int | None = Field(None, ge=1)  # new boxes; None: every fifth of the run
    threshold: float = Field(0.1, ge=0, lt=1)  # of a map from 0 to 1: what is above lies in the box
    beta: float = Field(0.6, gt=0)  # below 1, centers keep to the box's edges


class TrainConfig(_Model):
    """Everything that decides what a run computes. What does not (folders, devices) is in RuntimeConfig."""

    data: str
    method: str = "lcr"
    limit_images: int | None = Field(None, ge=2)
    limit_classes: int | None = Field(None, ge=2)  # the first classes of a labeled source
    epochs: int = Field(100, ge=1)
    max_steps: int | None = Field(None, ge=1)  # the length of the run and of its schedules; None: ``epochs`` decide
    batch_size: int = Field(128, ge=2)  # over all devices
    seed: int = Field(0, ge=0)
    backbone: BackboneConfig = BackboneConfig()
    objective: ObjectiveConfig = ObjectiveConfig()  # of the method: see ``train_config``
    rationale: RationaleConfig | None = None
    train_pooling: TrainPooling = "average"  # what the head sees of φ
    views: ViewConfig = ViewConfig()
    focus: FocusConfig = FocusConfig()
    saliency: SaliencyConfig = SaliencyConfig()
    test_pooling: PoolingName | None = None  # None: the method's own, or that of the rationale's variant
    earlier_weight: float = Field(EARLIER_WEIGHT, ge=0)  # of the earlier map, where test_pooling has two maps
    test_resolution: int | None = Field(None, ge=16, le=MAX_SIDE)  # the encoder is used at; None: as trained
    initial_weight_ratio: float = Field(0.0, ge=0, le=1)  # share of the initial weights in the encoder that is saved
    optim: OptimConfig = OptimConfig()
    validation: ValidationConfig = ValidationConfig()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        rationale = self.rationale
        if rationale is None and self.train_pooling != "average":
            raise ValueError(f"train_pooling '{self.train_pooling}' cannot do without a rationale")
        if rationale is None and self.test_pooling is not None and find_pooling(self.test_pooling).needs_branch:
            raise ValueError(f"test_pooling '{self.test_pooling}' cannot do without a rationale")
        for hook in HOOKS.values():
            hook.check(self)
        if rationale is not None and rationale.keep != "all" and rationale.keep_from >= self.epochs:
            raise ValueError(f"projections would be chosen at epoch {rationale.keep_from} of {self.epochs}: never")
        return self

    @property
    def pooling(self) -> str:
        """Return the name of the pooling that makes a feature at test time."""
        if self.test_pooling is not None:
            return self.test_pooling
        if self.rationale is None:
            return "average"
        return self.rationale.pooling_form(find_method(self.method).pooling or self.rationale.pooling)

    def count_steps(self, steps_per_epoch: int) -> int:
        """Return how many steps the run has."""
        return self.epochs * steps_per_epoch if self.max_steps is None else self.max_steps

    @property
    def encoder_resolution(self) -> int:
        return self.test_resolution or self.views.resolution

    @property
    def encoder_framing(self) -> Framing:
        """How a picture becomes the view that the encoder is used on."""
        views = self.views
        return Framing(self.encoder_resolution, views.crop_pct, views.interpolation, views.crop_mode)

    def with_absolute_paths(self) -> TrainConfig:
        """Return a copy with absolute paths: the same files from whichever folder a run is continued."""

        def absolute(path: str | None) -> str | None:
            if path in (None, "imagenet", "random") or is_hub_name(str(path)):
                return path
            return str(Path(str(path)).expanduser().absolute())

        backbone = self.backbone.model_copy(update={"weights": absolute(self.backbone.weights)})
        saliency = self.saliency.model_copy(update={"folder": absolute(self.saliency.folder)})
        data = absolute_named_path(self.data)
        return self.model_copy(update={"data": data, "backbone": backbone, "saliency": saliency})


class RuntimeConfig(_Model):
    """How and where a run computes; may change between two starts of the same run."""

    cache_dir: Path | None = None
    workers: int | None = Field(None, ge=1)
    devices: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)
    cache_shards: int = Field(1, ge=1)  # parts of the images; a process decodes and reads only the parts it needs
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "32", "16", "bf16"] = "auto"
    compile: bool = False
    checkpoint_activations: bool = False  # keep less for the backward pass, which computes it again
    checkpoint_minutes: float = Field(2.0, ge=0)
    log_every: int = Field(10, ge=1)  # steps
    loggers: tuple[Literal["tensorboard", "csv", "wandb", "mlflow"], ...] = ("tensorboard",)  # metrics.csv always
    progress: bool = True


def build_config(overrides: dict[str, Any], *, warn: bool = True) -> TrainConfig:
    """Return the method's defaults with ``overrides`` (nested, or dotted keys) on top.

    Old names of settings are taken for the new ones, with a line for each unless ``warn`` is off. A ``FineSightError``
    names every setting that is unknown or wrong.
    """
    settings, notes = current_settings(dotted(nested(overrides)))
    for note in notes if warn else ():
        console.print(note, markup=False)
    values = nested(settings)
    chosen = find_method(str(values.get("method", "lcr")))
    rationale = _rationale(values, chosen)
    defaults = {} if chosen.objective is None else _defaults(chosen.objective, values, rationale)
    own = {key: value for key, value in chosen.settings.items() if not key.startswith("rationale.")}
    for table, known in nested({**defaults, **own}).items():
        if not isinstance(known, dict):
            values.setdefault(table, known)
        elif isinstance(given := values.get(table, {}), dict):  # anything else is refused by name in a moment
            values[table] = {**known, **given}
    _add_pixels(values)
    return validate_settings(train_config(chosen.objective), **{**values, "rationale": rationale})


def _add_pixels(values: dict[str, Any]) -> None:
    """Scale pixels, resize and crop as the network's own weights expect, unless something else is given."""
    try:
        own = own_pixels(BackboneConfig.model_validate(values.get("backbone", {})))
    except ValidationError:  # refused by name in a moment
        return
    if isinstance(given := values.get("views", {}), dict):
        values["views"] = {**own._asdict(), **given}


@cache
def train_config(objective: str | None) -> type[TrainConfig]:
    """Return ``TrainConfig`` with the settings of that objective."""
    if objective is None:
        return TrainConfig
    kind = OBJECTIVES[objective].Config
    made: type[TrainConfig] = create_model("TrainConfig", __base__=TrainConfig, objective=(kind, kind()))
    return made


def _rationale(values: dict[str, Any], chosen: Method) -> dict[str, Any] | None:
    """Return the rationale's settings on top of its variant's; None if the method, or the user, wants no rationale."""
    wanted = values.get("rationale")
    if wanted is False or (wanted is None and "rationale" in values):
        return None
    settings = {} if wanted is True else wanted or {}
    if not isinstance(settings, dict):
        raise FineSightError(f"'rationale' must be a table of settings, not {settings!r}.")
    if not (chosen.rationale or wanted is True or "variant" in settings):
        if settings:
            raise FineSightError(
                f"Method {values['method']!r} has no rationale, yet these were set: {', '.join(settings)}. "
                "Add --rationale, or --variant."
            )
        return None
    if chosen.objective is None:
        raise FineSightError(f"Method {values['method']!r} trains nothing: it has no loss to explain by a rationale.")
    variant = settings.get("variant", "finesight")
    if variant not in tuple(VARIANTS):
        raise FineSightError(f"There is no variant {variant!r}. There are: {', '.join(VARIANTS)}.")
    own = nested(dict(chosen.settings)).get("rationale", {})
    return {**VARIANTS[variant].model_dump(), **own, **settings}


def _defaults(objective: str, values: dict[str, Any], rationale: dict[str, Any] | None) -> dict[str, Any]:
    """Return what the method's authors set, for this batch size and this many epochs."""
    kind, fields = OBJECTIVES[objective], TrainConfig.model_fields
    batch, epochs = (values.get(name, fields[name].default) for name in ("batch_size", "epochs"))
    if not all(isinstance(value, int) and value > 0 for value in (batch, epochs)):
        return {}
    defaults = kind.defaults(batch, epochs)
    if rationale is not None and "projector" in kind.Config.model_fields:
        defaults["objective.projector"] = rationale["projector"]
    return defaults


def validate_settings(model: type[M], **values: Any) -> M:
    """Return the model of these values. Raises FineSightError that names every bad key at once."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = ["The configuration has errors:"]
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"]) or "config"
            if problem["type"] == "missing":
                lines.append(f"  {key} must be given")
                continue
            known = " (no such setting)" if problem["type"] == "extra_forbidden" else f": {problem['msg']}"
            table = isinstance(problem["input"], dict)  # a whole table says nothing
            lines.append(f"  {key}{known}" + ("" if table else f", got {problem['input']!r}"))
        raise FineSightError("\n".join(lines)) from error
