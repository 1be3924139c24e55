"""Score the held-out images while a run trains; each process embeds its share of them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import lightning as L
import numpy as np
from numpy.typing import NDArray

from finesight.data.cache import DecodedCache
from finesight.evaluation.retrieval import retrieval
from finesight.features.extract import extract
from finesight.features.wide import Features, concatenate
from finesight.nn.distributed import gather_objects, world
from finesight.training.batches import Batch
from finesight.training.config import RuntimeConfig, TrainConfig
from finesight.training.metrics_log import metric_series
from finesight.training.module import TrainingModule
from finesight.training.progress import RunProgress
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import make_encoder
from finesight.training.train_images import encoder_cache

VALIDATION_METRICS = {"val_rank1": "held-out rank-1 (%)", "val_mAP": "held-out mAP (%)"}  # words for people


def can_validate(cache: DecodedCache, held_out: NDArray[np.int64]) -> bool:
    """Return whether there are labels to score by."""
    labels = cache.source.labels
    return labels is not None and len(held_out) > 1 and np.unique(labels[held_out], return_counts=True)[1].max() > 1


class Validation(L.Callback):
    """On every rank, at the end of every few epochs: adds the scores of the held-out images to the step's metrics.

    Rank 0 keeps the best encoder where the variant wants it.
    """

    def __init__(
        self,
        config: TrainConfig,
        runtime: RuntimeConfig,
        run: RunFolder,
        cache: DecodedCache,
        held_out: NDArray[np.int64],
        progress: RunProgress,
        share: slice,
    ) -> None:
        """``share`` says which of the held-out images this rank embeds."""
        self.config, self.run, self.progress, self.labels = config, run, progress, cache.source.labels
        self.images, self.seen = held_out[share], None
        if len(self.images):  # decoded now: files may be gone later
            self.seen = encoder_cache(config, runtime, cache.source, self.images, show=runtime.progress)
            self.images = self.images[np.isin(cache.source.paths[self.images], self.seen.source.paths)]
        self.best = max((value for _, value in metric_series(run.metrics_file).get("val_rank1", [])), default=-1.0)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        done = batch.step + 1
        epoch, rest = divmod(done, pl_module.steps_per_epoch)
        if done == pl_module.total_steps or (rest == 0 and epoch % self.config.validation.every_n_epochs == 0):
            self.progress.tell("checking", "scoring the held-out images", done)
            pl_module.metrics |= self.scores(pl_module)

    def scores(self, module: TrainingModule) -> dict[str, float]:
        """Return rank-1 and mAP in percent; all ranks must ask for them."""
        config, encoder = self.config, make_encoder(self.config, module)
        features: Features = np.empty((0, 0), np.float32)
        if self.seen is not None:
            found = extract(encoder, self.seen, np.arange(len(self.seen)), (config.pooling,), progress=False)
            features = found.features[config.pooling]
        module.train()
        parts = [part for part in gather_objects((self.images, features)) if len(part[0])]
        images = np.concatenate([part[0] for part in parts])
        order = np.argsort(images)  # as one process has them
        assert self.labels is not None
        ranked = retrieval(reduce(concatenate, (part[1] for part in parts))[order], self.labels[images[order]])
        if config.rationale is not None and config.rationale.checkpoint == "best" and ranked.score("rank1") > self.best:
            self.best = ranked.score("rank1")
            if world()[0] == 0:
                encoder.save(self.run.best_encoder)
            module.train()
        return {"val_rank1": ranked.score("rank1"), "val_mAP": ranked.score("mAP")}
