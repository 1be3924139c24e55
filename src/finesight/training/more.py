"""Let a finished run go on, because its folder has new images."""

from __future__ import annotations

import json
import shutil

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic
from finesight.training.checkpoints import checkpoints
from finesight.training.config_file import write_yaml
from finesight.training.run_folder import RunFolder


def extend_run(run: RunFolder) -> None:
    """Make a finished run longer by its first length, which its plan remembers.

    Training it again continues from its last checkpoint, on the images that are there then. Until that has ended, its
    encoder and its verdict stay as they are. Killed in between, the run is still finished or continues. Raises
    FineSightError if there is no checkpoint.
    """
    with run.locked():
        if not checkpoints(run.checkpoints):
            raise FineSightError(
                f"{run.root} has no checkpoint to go on from. `finesight train --restart` begins anew."
            )
        config = run.config()
        plan = json.loads(run.plan.read_text(encoding="utf-8")) if run.plan.exists() else {}
        now = config.epochs if config.max_steps is None else config.max_steps
        first = plan.setdefault("first_length", now)
        write_atomic(run.plan, json.dumps(plan, indent=1) + "\n")
        run.goes_on.touch()
        longer = {"epochs" if config.max_steps is None else "max_steps": now + first}
        write_yaml(config.model_copy(update=longer), run.config_file)
        run.report.unlink(missing_ok=True)
        shutil.rmtree(run.best_encoder, ignore_errors=True)
