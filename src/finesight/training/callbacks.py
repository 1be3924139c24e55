"""What happens around the steps: logging, progress, checkpoints, validation."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import lightning as L
import torch
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.text import Text
from torch import Tensor

from finesight.io.console import console, format_count
from finesight.io.progress import progress_bar
from finesight.training.batches import Batch
from finesight.training.checkpoints import KEEP, remove_rows, save_checkpoint, save_rows
from finesight.training.health import collapse_warning
from finesight.training.metrics_log import MetricsLog
from finesight.training.module import TrainingModule
from finesight.training.progress import Pace, RunProgress, rate_words, time_words
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
    """On rank 0: writes metrics and warns once about collapse."""

    def __init__(self, log: MetricsLog, log_every: int) -> None:
        self.record, self.log_every = log, log_every
        self.warned = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        step, per_epoch = batch.step, pl_module.steps_per_epoch
        values = dict(pl_module.metrics)
        done = step + 1
        if step % self.log_every == 0 or done % per_epoch == 0 or done == pl_module.total_steps:
            self.record.write(step, done / per_epoch, values)
        if not self.warned and done >= WARN_AFTER and (warning := collapse_warning(values)):
            self.warned = True
            console.print(f"[yellow]{warning}[/yellow]")


class Progress(L.Callback):
    """On rank 0: how far the run is, in its ``progress.json`` and, if ``show``, in a bar."""

    def __init__(self, progress: RunProgress, total: int, start: int, batch_size: int, *, show: bool) -> None:
        self.progress, self.total, self.start, self.batch_size = progress, total, start, batch_size
        self.bar = progress_bar(show, TextColumn("{task.description}"), BarColumn(), _Words(), transient=False)
        self.task = self.bar.add_task(self._first_step(), total=None, words="")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.pace = Pace(self.start)
        self.bar.start()
        self.progress.tell("training", self._first_step(), self.start, self.total)

    def _first_step(self) -> str:
        return f"step {self.start + 1:,}" if self.start else f"first step, {format_count(self.batch_size, 'image')}"

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, TrainingModule)
        done, loss = batch.step + 1, pl_module.metrics["loss"]
        seconds = self.pace.seconds(done)
        rate, left = self.batch_size / max(seconds, 1e-9), (self.total - done) * seconds
        what = f"step {done:,} of {self.total:,}"
        self.progress.tell("training", what, done, self.total, images_per_second=rate, seconds_left=left, loss=loss)
        share = f"{100 * done / self.total:.0f} %"
        words = f"{share} · {rate_words(rate)} · loss {loss:.3f} · {time_words(left)} left"
        self.bar.update(self.task, description=what, completed=done, total=self.total, words=words)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.bar.stop()


class _Words(ProgressColumn):
    """What is known of the run; until its first step ends, for how long that has been going on."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["words"] or f"{task.elapsed or 0:.0f} s so far")


class Checkpointer(L.Callback):
    """Rank 0 saves every few minutes and at the end, always between two optimizer steps.

    Ctrl-C (or SIGTERM) lets the step finish, saves and stops; a second one stops at once. It may reach one rank or all
    of them, so after every update they agree whether to stop: a rank left alone would wait for the others for ever.
    """

    def __init__(
        self, run: RunFolder, minutes: float, total: int, images: Tensor | None = None, rows: str | None = None
    ) -> None:
        """``images`` identify the rows of what the hook keeps for each image; the run continues with file ``rows``."""
        self.run, self.seconds, self.total, self.images = run, minutes * 60, total, images
        self._looks, self._rows = -1, [rows] if rows else []  # as of the rows written last, and by which names
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
        parts: dict[str, Any] = {
            "module": pl_module.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "precision": trainer.precision_plugin.state_dict(),
        }
        folder, step, hook = self.run.checkpoints, int(pl_module.steps), pl_module.hook
        if self.images is not None and (rows := hook.rows()):
            new = self._looks != hook.looks
            name = save_rows(folder, step, {**rows, "images": self.images}) if new else self._rows[-1]
            self._looks, self._rows = hook.looks, [*self._rows, name][-KEEP:]
            parts["rows"] = name
        save_checkpoint(folder, step, parts)
        remove_rows(folder, self._rows)
