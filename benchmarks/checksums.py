"""How fast the vectors of an index are compared with their checksums: ``python benchmarks/checksums.py``."""

from __future__ import annotations

import json
import time

import numpy as np

from finesight.search.checksums import damaged_rows, row_sums

ROWS, WIDTH = 32_768, 2048  # 268 MB


def main() -> None:
    vectors = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    start = time.perf_counter()
    sums = np.array(row_sums([vectors]), np.int64)
    written = time.perf_counter() - start
    times = []
    for _ in range(3):
        start = time.perf_counter()
        assert not len(damaged_rows([vectors], np.ones(ROWS, bool), np.arange(ROWS), sums))
        times.append(time.perf_counter() - start)
    size = vectors.nbytes / 1e9
    print(json.dumps({"gb": round(size, 3), "sum_gb_per_s": round(size / written, 2),
                      "check_gb_per_s": [round(size / one, 2) for one in times]}))  # fmt: skip


if __name__ == "__main__":
    main()
