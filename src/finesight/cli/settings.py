"""Settings as they are typed."""

from __future__ import annotations

from typing import Any

from finesight.errors import FineSightError
from finesight.io.console import console
from finesight.training.renamed import current_settings


def parsed(text: str) -> Any:
    """Return a setting as YAML reads it: 0.5 is a number, true is a switch, null is nothing."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise FineSightError(f"The value {text!r} cannot be read: {' '.join(str(error).split())}") from error


def assignments(settings: list[str]) -> dict[str, Any]:
    """Return {'views.blur': 0.5} of views.blur=0.5, under the names that settings have now."""
    pairs = {}
    for setting in settings:
        key, sign, value = setting.partition("=")
        if not sign or not key:
            raise FineSightError(f"--set takes key=value, for example views.blur=0.5, not {setting!r}.")
        pairs[key.strip()] = parsed(value)
    current, notes = current_settings(pairs)
    for note in notes:
        console.print(note, markup=False)
    return current
