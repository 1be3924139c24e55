"""What happens around the steps: logging, progress, checkpoints, validation."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

from finesight.io.console import console
from finesight.io.progress import progress_bar
from finesight.training.batches import Batch
from finesight.training.checkpoints import save_checkpoint
from finesight.training.health import collapse_warning
from finesight.training.metrics_log import MetricsLog
from finesight.training.module import TrainingModule
from finesight.training.run_folder import RunFolder

WARN_AFTER = 20  # steps: a fresh projection head needs a few to spread out


class StepHooks(L.Callback):
    """On every rank, before the other callbacks: Lightning calls the module's own hook only after them."""

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        epoch, rest = divmod(batch.step, pl_module.steps_per_epoch)
        if rest == 0:
            pl_module.hook.on_epoch_start(pl_module, epoch)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        pl_module.finish_step(batch)


class Journal(L.Callback):
    """On rank 0: writes metrics, warns once about collapse, runs validation at the end of every few epochs."""

    def __init__(
        self,
        log: MetricsLog,
        *,
        log_every: int,
        validate: Callable[[], dict[str, float]] | None,
        validate_every: int,
    ) -> None:
        self.record, self.log_every = log, log_every
        self.validate, self.validate_every = validate, validate_every
        self.warned = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        step, per_epoch = batch.step, pl_module.steps_per_epoch
        values = dict(pl_module.metrics)
        done = step + 1
        epoch, rest = divmod(done, per_epoch)
        due = rest == 0 and (epoch % self.validate_every == 0 or epoch == pl_module.config.epochs)
        if self.validate is not None and due:
            values |= self.validate()
        if step % self.log_every == 0 or rest == 0:
            self.record.write(step, done / per_epoch, values)
        if not self.warned and done >= WARN_AFTER and (warning := collapse_warning(values)):
            self.warned = True
            console.print(f"[yellow]{warning}[/yellow]")


class ProgressBar(L.Callback):
    """On rank 0: images per second, time left, and the numbers worth watching."""

    def __init__(self, total: int, start: int, batch_size: int) -> None:
        self.bar = progress_bar(
            True,
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]:.0f} images/s · loss {task.fields[loss]:.3f} ·"),
            TimeRemainingColumn(),
            TextColumn("left"),
            transient=False,
        )
        self.task = self.bar.add_task("train", total=total, completed=start, epoch="", rate=0.0, loss=float("nan"))
        self.start, self.batch_size, self.began = start, batch_size, time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.began = time.monotonic()
        self.bar.start()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        done = batch.step + 1
        epoch = f"{batch.step // pl_module.steps_per_epoch + 1}/{pl_module.config.epochs}"
        rate = (done - self.start) * self.batch_size / max(1e-9, time.monotonic() - self.began)
        self.bar.update(self.task, completed=done, epoch=epoch, rate=rate, loss=pl_module.metrics["loss"])

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.bar.stop()


class Checkpointer(L.Callback):
    """Rank 0 saves every few minutes and at the end, always between two optimizer steps.

    Ctrl-C (or SIGTERM) lets the step finish, saves and stops; a second one stops at once. It may reach one rank or all
    of them, so after every update they agree whether to stop: a rank left alone would wait for the others for ever.
    """

    def __init__(self, run: RunFolder, minutes: float, total: int) -> None:
        self.run, self.seconds, self.total = run, minutes * 60, total
        self.last = time.monotonic()
        self.interrupted: int | None = None
        self._received = 0
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        self._received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        done = batch.step + 1
        between_updates = (batch_idx + 1) % trainer.accumulate_grad_batches != 0
        if between_updates and done != self.total:
            return
        number = torch.tensor(self._received, device=pl_module.device)
        self.interrupted = int(trainer.strategy.reduce(number, reduce_op="max")) or None
        due = self.interrupted or done == self.total or time.monotonic() - self.last >= self.seconds
        if due and trainer.is_global_zero:
            self._save(trainer, pl_module)
        if self.interrupted:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._restore()

    def _save(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Never replaces a good checkpoint by one with numbers that are not."""
        assert isinstance(pl_module, TrainingModule)
        self.last = time.monotonic()
        if not pl_module.is_finite():
            return
        parts = {
            "module": pl_module.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
        }
        save_checkpoint(self.run.checkpoints, int(pl_module.steps), parts)
