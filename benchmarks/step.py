"""What a training step costs beside lightly's: MoCo v2 and LCR, the whole network trained, and as preset gentle does.

    python benchmarks/step.py -o results/speed/step.json
    python benchmarks/step.py --quick
    git worktree add ../before COMMIT                              # then
    python benchmarks/step.py --before ../before --compiled -o results/speed/step.json

All steps get views that are made already (``benchmarks/views.py`` measures those). Every way runs in a process of its
own, as a user would run it, and they take turns, so that the median ratio within a round counts. lightly's step is the
one of its MoCo example: NTXentLoss with a memory bank, SGD, the momentum copies updated first. ``--before`` adds the
steps of an older commit of FineSight, ``--compiled`` those after torch.compile. With one thread seconds are those of
the processor, else of the clock. Needs ``pip install finesight[bench]``.

In a gentle run the backbone waits for a quarter of the steps, while the new head learns. Both kinds of steps are
measured, and ``gentle`` is their mean over a run.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `finesight` does

import torch
from timing import clock, ratio
from torch import Tensor

ROWS = (("resnet18", 112, 64), ("resnet50", 128, 32))
QUICK = (("resnet18", 64, 16),)
QUEUE = 4096
WAITING = 0.25  # of a gentle run's steps
STEPS = {"learning": 50, "waiting": 10}  # of a hundred: which step is taken
GENTLE: dict[str, Any] = {  # what of the preset concerns a step
    "backbone.freeze": 3,
    "backbone.frozen_norm": True,
    "objective.momentum": 0.99,
    "optim.lr": 0.03,
    "optim.backbone_lr_ratio": 0.3,
    "optim.freeze_epochs": WAITING,  # of one epoch
}
WAYS: dict[str, dict[str, Any]] = {
    "moco-v2": {"method": "moco-v2"},
    "lcr": {"method": "lcr"},
    "gentle": {"method": "lcr", **GENTLE},
}
PEER = "lightly moco"
Step = Callable[[str], object]  # of one of the kinds in STEPS


# --- in a process of its own: one way ---------------------------------------------------------------------------------


def finesight_step(way: str, backbone: str, batch_size: int, views: list[Tensor]) -> Step:
    """Return a whole step of training, but for making the views."""
    from finesight.nn.backbone import Backbone
    from finesight.training.batches import Batch
    from finesight.training.config import build_config
    from finesight.training.module import TrainingModule

    name, _, suffix = way.partition(" (")
    config = build_config(
        {
            "data": "-",
            "backbone.name": backbone,
            "backbone.weights": "random",
            "batch_size": batch_size,
            "objective.queue": QUEUE,
            "views.resolution": views[0].shape[-1],
            **WAYS[name],
        }
    )
    module = TrainingModule(config, images=QUEUE * 2, steps_per_epoch=100)
    for part in module.modules() if suffix == "compiled)" else ():
        if isinstance(part, Backbone):
            part.compile_features()
    module.hook.views = lambda *_: views  # type: ignore[method-assign]
    canvas, sizes = torch.zeros(batch_size, 3, 1, 1, dtype=torch.uint8), torch.ones(batch_size, 2)

    def step(kind: str) -> None:
        batch = Batch(STEPS[kind], canvas, sizes, slice(None), None)
        module.on_train_batch_start(batch, 0)
        loss = module.training_step(batch, 0)
        module.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        module.optimizer.step()
        module.finish_step(batch)

    return step


def lightly_step(backbone: str, views: list[Tensor]) -> Step:
    import torchvision
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum

    network = getattr(torchvision.models, backbone)(weights=None)
    width = network.fc.in_features
    body = torch.nn.Sequential(*list(network.children())[:-1])
    head = MoCoProjectionHead(width, width, 128)
    key_body, key_head = copy.deepcopy(body), copy.deepcopy(head)
    deactivate_requires_grad(key_body)
    deactivate_requires_grad(key_head)
    criterion = NTXentLoss(temperature=0.2, memory_bank_size=(QUEUE, 128))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.03, momentum=0.9, weight_decay=1e-4)

    def step(_: str) -> None:
        update_momentum(body, key_body, m=0.999)
        update_momentum(head, key_head, m=0.999)
        query = head(body(views[0]).flatten(start_dim=1))
        with torch.no_grad():
            key = key_head(key_body(views[1]).flatten(start_dim=1))
        loss = criterion(query, key)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def work(way: str, backbone: str, resolution: int, batch_size: int) -> None:
    """Make a step of the kind that each line names, and print how long it took."""
    torch.manual_seed(0)
    views = [torch.randn(batch_size, 3, resolution, resolution) for _ in range(2)]
    peer = way == PEER
    step = lightly_step(backbone, views) if peer else finesight_step(way, backbone, batch_size, views)
    now = clock()
    for line in sys.stdin:
        began = now()
        step(line.strip())
        print(f"seconds {now() - began}", flush=True)


# --- in the first process: turns --------------------------------------------------------------------------------------


class Worker:
    def __init__(self, way: str, row: tuple[str, int, int], threads: int, before: Path | None) -> None:
        name = way.removesuffix(" (before)")
        words = [sys.executable, __file__, "--threads", str(threads), "--worker", json.dumps([name, *row])]
        environment = dict(os.environ)
        if name != way:
            assert before is not None
            environment["PYTHONPATH"] = str(before.resolve() / "src")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def step(self, kind: str = "learning") -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(kind, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise SystemExit("a step failed: see above")


def one_round(way: str, worker: Worker) -> dict[str, float]:
    """Return the seconds of a step; of gentle ways the mean over a run, and both kinds of its steps."""
    name, space, suffix = way.partition(" (")
    if "optim.freeze_epochs" not in WAYS.get(name, {}):
        return {way: worker.step()}
    kinds = {kind: worker.step(kind) for kind in STEPS}
    mean = WAITING * kinds["waiting"] + (1 - WAITING) * kinds["learning"]
    return {way: mean, **{f"{name}, {kind}{space}{suffix}": value for kind, value in kinds.items()}}


def measure(ways: list[str], row: tuple[str, int, int], rounds: int, threads: int, before: Path | None) -> Any:
    seconds: dict[str, list[float]] = {}
    first = {}
    with ExitStack() as stack:
        workers = {way: stack.enter_context(Worker(way, row, threads, before)) for way in ways}
        for way, worker in workers.items():
            first[way] = round(worker.step(), 2)  # allocates, and compiles; not counted
            worker.step("waiting")
        for _ in range(rounds):
            for way, worker in workers.items():
                for name, value in one_round(way, worker).items():
                    seconds.setdefault(name, []).append(value)
    backbone, resolution, batch_size = row
    found = {
        "backbone": backbone,
        "resolution": resolution,
        "batch_size": batch_size,
        "median": {way: round(statistics.median(values), 3) for way, values in seconds.items()},
        "of_lightly": {way: ratio(seconds[way], seconds[PEER]) for way in seconds if way != PEER},
        "first_step": first,
        "seconds": {way: [round(value, 3) for value in values] for way, values in seconds.items()},
    }
    for kind in ("before", "compiled"):
        pairs = {way: f"{way} ({kind})" for way in seconds if f"{way} ({kind})" in seconds}
        if pairs:
            found[f"of_{kind}"] = {way: ratio(seconds[way], seconds[other]) for way, other in pairs.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small views, one round, no plain LCR")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--before", type=Path, help="a checkout of an older commit of FineSight")
    parser.add_argument("--compiled", action="store_true", help="steps after torch.compile too")
    parser.add_argument("--rows", help="names of backbones, with commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas; lightly's is always there")
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.worker:
        return work(*json.loads(options.worker))
    from finesight.paper.machine import record_measurement

    own = ["moco-v2", "gentle"] if options.quick else options.ways.split(",")
    ways = [PEER, *own]
    ways += [f"{way} (before)" for way in own if options.before]
    ways += [f"{way} (compiled)" for way in own if options.compiled]
    rows = []
    for row in QUICK if options.quick else ROWS:
        if options.rows and row[0] not in options.rows.split(","):
            continue
        rounds = 1 if options.quick else options.rounds
        rows.append(measure(ways, row, rounds, options.threads, options.before))
        print(rows[-1]["backbone"], rows[-1]["median"], rows[-1].get("of_before"), flush=True)
    print(record_measurement({"threads": options.threads, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
