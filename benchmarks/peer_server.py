"""A plain FastAPI + FAISS server, as one writes it in an afternoon, to set beside ``finesight serve``.

    python benchmarks/peer_server.py INDEX

It has the same network, the same vectors and the same photos, and answers searches by an upload and by an item. Network
and reading of photos are FineSight's, so that only the serving differs.
"""

from __future__ import annotations

import io
import socket
import sys
from typing import Annotated, Any

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI, Form, UploadFile
from PIL import Image

from finesight.features.preprocess import picture_view
from finesight.search.engines import open_index
from finesight.search.open_embedder import open_embedder

index = open_index(sys.argv[1])
embedder = open_embedder("torch", index)
space = index.meta.spaces[0]
ids, vectors = (np.concatenate(part) for part in zip(*index.blocks(space), strict=True))
rows = {int(item): row for row, item in enumerate(ids)}
known = {item.id: item for item in index.items(ids.tolist()) if item is not None}
flat: Any = faiss.IndexFlatIP(vectors.shape[1])
flat.add(np.ascontiguousarray(vectors))
app = FastAPI()


def nearest(vector: np.ndarray, k: int, left_out: int | None = None) -> dict[str, Any]:
    scores, found = flat.search(vector[None], k + 1)
    hits = [
        {"id": str(ids[row]), "path": known[int(ids[row])].path, "score": float(score)}
        for score, row in zip(scores[0], found[0], strict=True)
        if row >= 0 and int(ids[row]) != left_out
    ]
    return {"query": {"id": str(left_out or "")}, "hits": hits[:k]}


@app.post("/api/search")
def search_upload(file: UploadFile, k: Annotated[int, Form()] = 24) -> dict[str, Any]:
    image = Image.open(io.BytesIO(file.file.read())).convert("RGB")
    return nearest(embedder.encode([picture_view(image, embedder.framing)])[0].features[space], k)


@app.get("/api/search")
def search(query: int, k: int = 24) -> dict[str, Any]:
    return nearest(vectors[rows[query]], k, query)


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])
