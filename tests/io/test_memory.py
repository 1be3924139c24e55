from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource
import torch
from finesight.io.memory import keep_freed_memory

kept, fresh = keep_freed_memory(), []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(10_000_000)
    fresh.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps([kept, fresh]))
"""


def test_freed_memory_is_used_again() -> None:
    """Arrays of 40 MB, made and dropped: only the first few bring fresh pages, until small objects lie elsewhere.

    It is tried in a process of its own: what other tests have left in the heap decides where an array comes from.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    kept, fresh = json.loads(done.stdout)
    if not kept:
        pytest.skip("the C library has no such setting")
    assert fresh[0] > 9000
    assert statistics.median(fresh[15:]) < 2000, "a fifth of the 9,766 pages; the system may take some back"
