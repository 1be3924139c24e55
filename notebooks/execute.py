"""Run the notebooks on drawn birds and keep what they show: ``python notebooks/execute.py [NAME ...]``.

Each one runs in a folder of its own, whose path is taken out of what is kept. Warnings are not kept.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 600  # of a cell, on a busy machine


def execute(file: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of running it in ``folder``; an error in a cell is raised."""
    book = nbformat.read(file, as_version=4)
    NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # times
        if "outputs" in cell:
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    book.metadata = {"kernelspec": book.metadata.kernelspec, "language_info": {"name": "python"}}
    inside = json.dumps(str(folder) + os.sep)[1:-1]
    return nbformat.reads(nbformat.writes(book).replace(inside, ""), as_version=4)


def main(names: list[str]) -> None:
    """Execute the named notebooks, or all, and write them back."""
    for file in sorted(HERE.glob("*.ipynb")):
        if names and file.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["FINESIGHT_CACHE"] = os.path.join(folder, "cache")
            nbformat.write(execute(file, Path(folder).resolve()), file)
        print(f"{file.name}: {file.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(sys.argv[1:])
