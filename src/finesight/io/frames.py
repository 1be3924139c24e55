"""Tables for pandas and Arrow, which are imported when they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finesight.errors import FineSightError

PARQUET, ARROW = (".parquet",), (".arrow", ".feather")


def arrow_table(columns: dict[str, Any]) -> Any:
    """Return a ``pyarrow.Table`` of arrays, and of lists of texts (see ``utf8``)."""
    import pyarrow as pa

    return pa.table({name: pa.array(*_texts(values)) for name, values in columns.items()})


def _texts(values: Any) -> tuple[Any, ...]:
    import pyarrow as pa

    if not isinstance(values, list):
        return (values,)
    return [None if value is None else utf8(value) for value in values], pa.string()


def data_frame(columns: dict[str, Any]) -> Any:
    """Return a ``pandas.DataFrame`` of the same; raise ``FineSightError`` if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise FineSightError("A data frame needs pandas: pip install pandas (or use to_arrow()).") from error
    return pandas.DataFrame({name: pandas.Series(*_series(values)) for name, values in columns.items()})


def _series(values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list):
        return (values,)
    return [None if value is None else utf8(value) for value in values], None, "str"


def utf8(text: str) -> str:
    """Return the text with bytes that are not UTF-8, which names of files may have, written out as \\xe9."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_arrow_table(file: Path, columns: list[str] | None = None) -> Any:
    """Return a Parquet or Arrow file (either of its two forms) as a table. Raises ``OSError`` or ``ValueError``."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet as pq

    if file.suffix.lower() in PARQUET:
        return pq.read_table(file, columns=columns)
    try:
        return pyarrow.feather.read_table(file, columns=columns)
    except pa.ArrowInvalid:
        with pa.OSFile(str(file)) as stream, pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        return table if columns is None else table.select(columns)
