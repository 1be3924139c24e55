"""Run a function as one of two joined processes: ``host_task.py MODULE:NAME FOLDER RANK ADDRESS``."""

import importlib
import sys

import torch
from torch import distributed as dist

if __name__ == "__main__":
    task, folder, rank, address = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29411", rank=int(rank), world_size=2)
    module, name = task.split(":")
    torch.save(getattr(importlib.import_module(module), name)(int(rank)), f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
