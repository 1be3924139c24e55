"""Date, camera and place as cameras write them; files without them, and damaged ones."""

from __future__ import annotations

import io

import pytest
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import IFDRational

from finesight.data.camera_data import CameraData, read_camera_data


def photo(
    kind: str = "JPEG",
    taken: str | None = None,
    make: str | None = None,
    model: str | None = None,
    place: tuple[float, float] | None = None,
) -> bytes:
    """A small picture with what a camera would write."""
    exif = Image.Exif()
    if make is not None:
        exif[ExifTags.Base.Make] = make
    if model is not None:
        exif[ExifTags.Base.Model] = model
    if taken is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = taken
    if place is not None:
        gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
        for tag, value, names in ((1, place[0], "NS"), (3, place[1], "EW")):
            whole = abs(value)
            minutes = (whole - int(whole)) * 60
            seconds = IFDRational(round((minutes - int(minutes)) * 60 * 100), 100)
            gps[tag] = names[value < 0]
            gps[tag + 1] = (IFDRational(int(whole)), IFDRational(int(minutes)), seconds)
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (90, 120, 60)).save(buffer, kind, exif=exif)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_all_of_it(kind: str) -> None:
    data = photo(kind, "2024:05:31 08:15:07", "NIKON CORPORATION", "NIKON D850", (-33.8568, 151.2153))
    found = read_camera_data(io.BytesIO(data))
    assert (found.taken, found.camera) == ("2024-05-31T08:15:07", "NIKON CORPORATION NIKON D850")
    assert found.latitude == pytest.approx(-33.8568, abs=1e-4)
    assert found.longitude == pytest.approx(151.2153, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, CameraData()),
        ({"taken": "0000:00:00 00:00:00"}, CameraData()),
        ({"taken": "2024:13:01 08:00:00"}, CameraData()),
        ({"taken": "yesterday"}, CameraData()),
        ({"make": "Canon", "model": "Canon EOS R5\x00\x07"}, CameraData(camera="Canon EOS R5")),
        ({"model": "x" * 500}, CameraData(camera="x" * 60)),
    ],
)
def test_what_makes_no_sense_is_left_out(options: dict[str, str], wanted: CameraData) -> None:
    assert read_camera_data(io.BytesIO(photo(**options))) == wanted  # type: ignore[arg-type]


def test_damaged_files_say_nothing() -> None:
    data = photo(taken="2024:05:31 08:15:07", make="A", place=(1.0, 2.0))
    for length in range(0, len(data), 7):
        read_camera_data(io.BytesIO(data[:length]))
    for place in range(20, min(len(data), 400), 3):
        read_camera_data(io.BytesIO(data[:place] + b"\xff\xff" + data[place + 2 :]))
    assert read_camera_data(io.BytesIO(b"no picture")) == CameraData()
