"""Read and write the YAML file of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from finesight.errors import FineSightError
from finesight.io.atomic import write_atomic

LARGEST_FILE, LARGEST_TABLE = 2**17, 10_000  # bytes and values of a configuration: real ones have some hundred


def read_yaml(file: Path) -> dict[str, Any]:
    """Return a configuration file as a nested table.

    Raises FineSightError if it cannot be read or is not a table, or is larger than any: one that names the same part
    again and again would take all memory.
    """
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1).decode("utf-8")
        if len(text) > LARGEST_FILE:
            raise FineSightError(f"{file} is no configuration: it has more than {LARGEST_FILE:,} bytes.")
        if count_nodes(yaml.compose(text, yaml.SafeLoader), LARGEST_TABLE) > LARGEST_TABLE:
            raise FineSightError(f"{file} is no configuration: it has more than {LARGEST_TABLE:,} settings.")
        values = yaml.safe_load(text)
    except RecursionError as error:
        raise FineSightError(f"{file} is no configuration: its tables are nested too deeply.") from error
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise FineSightError(f"{file} cannot be read as a configuration: {error}") from error
    if not isinstance(values, dict):
        raise FineSightError(f"{file} is not a configuration: it must be a table of settings.")
    return values


def count_nodes(root: yaml.Node | None, most: int) -> int:
    """Return how many values a YAML document stands for, aliases written out; counting stops after ``most``."""
    count, waiting = 0, [] if root is None else [root]
    while waiting and count <= most:
        node = waiting.pop()
        count += 1
        if isinstance(node, yaml.MappingNode):
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return count


def commented_yaml(config: BaseModel, comments: Mapping[str, str]) -> str:
    """Return the configuration as YAML with a comment behind each of the settings (dotted names) that has one."""
    lines: list[str] = []
    path: list[str] = []
    for line in yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=float("inf")).splitlines():
        text = line.lstrip()
        if not text.startswith("- "):
            del path[(len(line) - len(text)) // 2 :]
            path.append(text.partition(":")[0])
            comment = comments.get(".".join(path))
            line = line if comment is None else f"{line}  # {comment}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def write_yaml(config: BaseModel, file: Path) -> None:
    """Write the configuration to ``file``, whole or not at all."""
    write_atomic(file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
