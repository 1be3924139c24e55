"""What a camera writes into its files: when a picture was taken, by which camera, and where. Nothing is decoded."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from PIL import ExifTags, Image

from finesight.data.decode import FORMATS
from finesight.data.decode_limits import LimitedReads

READS = 2_000  # of a file until its head is known; files of cameras need some hundred
NAME_LENGTH = 60
_TIME = re.compile(r"^(\d{4})[:-](\d{2})[:-](\d{2})(?:[ T](\d{2}):(\d{2})(?::(\d{2}))?)?")


@dataclass(frozen=True)
class CameraData:
    """What is known of a picture; None where the file does not say it."""

    taken: str | None = None  # 2024-05-31T08:15:00, in the camera's own time
    camera: str | None = None
    latitude: float | None = None
    longitude: float | None = None


UNKNOWN = CameraData()


def read_camera_data(stream: IO[bytes]) -> CameraData:
    """Return what the file says; nothing if it is damaged or no picture."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(cast(IO[bytes], LimitedReads(stream, READS)), formats=FORMATS) as image:
                if image.format not in ("JPEG", "TIFF") and "exif" not in image.info:
                    return UNKNOWN  # Pillow would decode the whole picture to look for it
                exif = image.getexif()
                inner, place = exif.get_ifd(ExifTags.IFD.Exif), exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # Pillow's parsers raise nearly anything on bad bytes
        return UNKNOWN
    tags = ExifTags.Base
    taken = _time(inner.get(tags.DateTimeOriginal) or inner.get(tags.DateTimeDigitized) or exif.get(tags.DateTime))
    latitude, longitude = _degrees(place, 1, 90), _degrees(place, 3, 180)
    if latitude is None or longitude is None:
        latitude = longitude = None
    return CameraData(taken, _camera(exif.get(tags.Make), exif.get(tags.Model)), latitude, longitude)


def _text(value: Any) -> str:
    """Return a text in one line, without what cannot be printed."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value or "")
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:NAME_LENGTH]


def _time(value: Any) -> str | None:
    found = _TIME.match(_text(value))
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups())
    if not (year >= 1800 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 60):
        return None  # cameras without a clock write zeros
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"


def _camera(make: Any, model: Any) -> str | None:
    """Return maker and model, without the maker where the model begins with it."""
    first, second = _text(make), _text(model)
    whole = second if first and second.lower().startswith(first.lower()) else f"{first} {second}".strip()
    return whole or None


def _degrees(place: Mapping[int, Any], tag: int, most: float) -> float | None:
    """Return a latitude (tag 1) or longitude (tag 3) of GPS tags as a number."""
    try:
        degrees, minutes, seconds = (float(part) for part in place[tag + 1])
        value = degrees + minutes / 60 + seconds / 3600
        if _text(place.get(tag)).upper() in ("S", "W"):
            value = -value
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return round(value, 6) if math.isfinite(value) and abs(value) <= most else None
