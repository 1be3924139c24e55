"""Draw look-alike birds and their backgrounds. All of it follows from the random generator that is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from operator import ne

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Color = tuple[int, int, int]
Points = NDArray[np.float64]  # (P, 2) x, y

PART_NAMES = ("crown", "bill", "eye ring", "wing bars", "tail")
SUPERSAMPLE = 3

_RED, _YELLOW, _BLUE = (206, 48, 40), (240, 196, 40), (52, 98, 208)
_WHITE, _BLACK, _ORANGE = (245, 243, 236), (30, 28, 30), (236, 128, 32)
CROWNS: tuple[Color, ...] = (_RED, _BLACK, _YELLOW, _BLUE, _WHITE)
BILLS: tuple[Color, ...] = (_ORANGE, _BLACK, _RED, _YELLOW)
EYE_RINGS: tuple[Color, ...] = (_WHITE, _YELLOW, _RED)
WING_BARS: tuple[tuple[int, Color], ...] = ((0, _BLACK), (1, _WHITE), (2, _WHITE), (2, _YELLOW), (1, _BLUE))
TAILS = ((_BLACK, False), (_WHITE, True), (_RED, False), (_YELLOW, True), (_BLUE, False))  # color, forked

# near, far and leaf color of each habitat: what an image is tempted to be recognized by
HABITATS: tuple[tuple[Color, Color, Color], ...] = (
    ((96, 124, 70), (150, 172, 110), (62, 96, 48)),  # meadow
    ((150, 178, 204), (206, 220, 230), (92, 110, 84)),  # sky
    ((74, 112, 128), (120, 158, 166), (98, 120, 90)),  # water
    ((196, 176, 138), (222, 206, 172), (150, 126, 84)),  # sand
    ((98, 78, 62), (142, 118, 96), (70, 84, 50)),  # bark
    ((206, 210, 218), (232, 234, 238), (120, 124, 130)),  # snow
    ((120, 84, 104), (188, 140, 120), (76, 58, 80)),  # dusk
    ((46, 66, 50), (80, 104, 72), (110, 138, 86)),  # forest
)


@dataclass(frozen=True)
class Species:
    """The parts by which species differ; all else is drawn in the same way."""

    crown: Color
    bill: Color
    eye_ring: Color
    wing_bars: tuple[int, Color]
    tail: tuple[Color, bool]  # and whether it is forked


@dataclass(frozen=True)
class Drawing:
    """A drawn image with what is known about it."""

    image: Image.Image
    habitat: int
    mask: Image.Image
    parts: NDArray[np.float32]  # (P, 3) x, y, visible in pixels


def make_species(count: int, seed: int) -> list[Species]:
    """Return ``count`` species of which any two differ in at least two of the five parts."""
    options = list(product(CROWNS, BILLS, EYE_RINGS, WING_BARS, TAILS))
    chosen: list[tuple[Color, Color, Color, tuple[int, Color], tuple[Color, bool]]] = []
    for i in np.random.default_rng([seed, 7]).permutation(len(options)):
        if all(sum(map(ne, options[i], other)) >= 2 for other in chosen):
            chosen.append(options[i])
        if len(chosen) == count:
            break
    return [Species(*parts) for parts in chosen]


def draw(species: Species, size: int, rng: np.random.Generator) -> Drawing:
    """Draw a bird of ``species`` on a background of its own."""
    habitat = int(rng.integers(len(HABITATS)))
    canvas = _background(habitat, size * SUPERSAMPLE, rng)
    mask = Image.new("L", canvas.size, 0)
    parts = _bird(canvas, mask, species, rng) / SUPERSAMPLE
    image = canvas.resize((size, size), Image.Resampling.BOX)
    noise = rng.normal(0, 4, (size, size, 3))
    image = Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))
    small_mask = mask.resize((size, size), Image.Resampling.BOX).point(lambda v: 255 if v > 127 else 0)
    inside = np.logical_and(parts >= 0, parts < size).all(axis=1, keepdims=True)
    return Drawing(image, habitat, small_mask, np.concatenate([parts, inside], axis=1).astype(np.float32))


# --- the bird -------------------------------------------------------------------------------------------------------


def _ellipse(x: float, y: float, rx: float, ry: float, turn: float = 0.0, points: int = 28) -> Points:
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    return _turned(np.stack([rx * np.cos(angle), ry * np.sin(angle)], 1), turn) + (x, y)


def _turned(points: Points, angle: float) -> Points:
    c, s = np.cos(angle), np.sin(angle)
    return np.asarray(points @ np.array([[c, s], [-s, c]]))


def _pose(size: int, rng: np.random.Generator) -> Callable[[Points], Points]:
    """Return a random map from bird coordinates (body about one unit long, facing right) to canvas pixels."""
    scale = size * rng.uniform(0.5, 0.68)
    turn = rng.uniform(-0.45, 0.45)
    flip = -1.0 if rng.random() < 0.5 else 1.0
    shift = size * (0.5 + rng.uniform(-0.1, 0.1, 2))

    def place(points: Points) -> Points:
        return np.asarray(_turned(points, turn) * (scale * flip, scale) + shift)

    return place


def _bird(canvas: Image.Image, mask: Image.Image, species: Species, rng: np.random.Generator) -> Points:
    """Draw the bird, and return the canvas positions of its parts in the order of PART_NAMES."""
    place = _pose(canvas.width, rng)
    brush, stencil = ImageDraw.Draw(canvas), ImageDraw.Draw(mask)

    def shape(points: Points, color: Color) -> None:
        corners = [(float(x), float(y)) for x, y in place(points)]
        brush.polygon(corners, fill=color)
        stencil.polygon(corners, fill=255)

    plumage = np.array([128, 112, 96]) * rng.uniform(0.8, 1.2) + rng.normal(0, 5, 3)
    body, dark, belly = (_color(plumage * f) for f in (1.0, 0.72, 1.3))
    nod, wing_turn, tail_turn = rng.uniform(-0.35, 0.35), rng.uniform(-0.25, 0.3), rng.uniform(-0.3, 0.3)
    head = np.array([0.42, -0.27]) + (0.06 * nod, 0.12 * nod)

    tail_color, forked = species.tail
    feathers = [(0.0, -0.09), (-0.42, -0.14), (-0.3, 0.0), (-0.42, 0.14), (0.0, 0.09)]
    outline = feathers if forked else [feathers[i] for i in (0, 1, 3, 4)]
    tail = _turned(np.array(outline), tail_turn) + (-0.42, 0.06)
    for x in (-0.02, 0.1):
        shape(np.array([(x, 0.2), (x + 0.03, 0.2), (x + 0.05, 0.48), (x + 0.02, 0.48)]), dark)
    shape(tail, tail_color)
    shape(_ellipse(0, 0, 0.5, 0.27, 0.12), body)
    shape(_ellipse(0.08, 0.09, 0.36, 0.16, 0.1), belly)
    shape(_ellipse(head[0], head[1], 0.2, 0.19), body)
    crown = _ellipse(head[0] - 0.02, head[1] - 0.1, 0.19, 0.11, -0.1 + nod * 0.4)
    shape(crown, species.crown)
    bill = _turned(np.array([(0.14, -0.08), (0.42, 0.02), (0.14, 0.09)]), nod) + head
    shape(bill, species.bill)
    eye = _turned(np.array([[0.07, -0.02]]), nod)[0] + head
    shape(_ellipse(eye[0], eye[1], 0.075, 0.075), species.eye_ring)
    shape(_ellipse(eye[0], eye[1], 0.03, 0.03), _BLACK)
    shape(_ellipse(-0.1, -0.03, 0.32, 0.15, 0.2 + wing_turn), dark)
    bars, bar_color = species.wing_bars
    for i in range(bars):
        bar = np.array([(-0.03, -0.14), (0.055, -0.14), (0.005, 0.13), (-0.08, 0.13)]) + (0.06 - 0.18 * i, 0.0)
        shape(_turned(bar, 0.2 + wing_turn) + (-0.1, -0.03), bar_color)
    wing = _turned(np.array([[-0.06, 0.0]]), 0.2 + wing_turn) + (-0.1, -0.03)
    centers = [crown.mean(0), bill.mean(0), eye, wing[0], tail.mean(0)]
    return place(np.array(centers))


# --- the background -------------------------------------------------------------------------------------------------


def _color(values: NDArray[np.float64]) -> Color:
    r, g, b = (int(v) for v in np.clip(values, 0, 255))
    return r, g, b


def _clouds(size: int, cells: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return smooth noise in [0, 1], ``cells`` bumps across."""
    coarse = Image.fromarray(rng.integers(0, 256, (cells, cells), dtype=np.uint8))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)) / 255.0


def _background(habitat: int, size: int, rng: np.random.Generator) -> Image.Image:
    """Draw patches in the colors of a habitat and of others, with leaves, twigs and berries over them.

    Because of the patches two crops of an image share only part of its background, as in photographs.
    """
    patches = int(rng.integers(16, 33))
    kinds = np.where(rng.random(patches) < 0.3, habitat, rng.integers(len(HABITATS), size=patches))
    small = size // SUPERSAMPLE  # soft stuff: fine detail is drawn over it
    kind = kinds[_patchwork(small, patches, rng)]
    shade = rng.uniform(0.7, 1.2, patches)[_patchwork(small, patches, rng)]
    pixels = np.zeros((small, small, 3))
    for texture in np.unique(kind):
        pixels[kind == texture] = _texture(int(texture), small, rng)[kind == texture]
    pixels *= shade[..., None]
    canvas = Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).resize((size, size), Image.Resampling.BILINEAR)
    brush = ImageDraw.Draw(canvas)
    for _ in range(int(rng.integers(0, 5))):
        _twig(brush, np.array(HABITATS[habitat][2]) * rng.uniform(0.5, 1.0), size, rng)
    for _ in range(int(rng.integers(4, 26))):
        leaf = HABITATS[int(rng.integers(len(HABITATS)))][2] + rng.normal(0, 22, 3)
        where, length = rng.uniform(0, size, 2), size * rng.uniform(0.03, 0.12)
        spot = _ellipse(0, 0, length, length * rng.uniform(0.25, 0.6), rng.uniform(0, np.pi), 14) + where
        brush.polygon([(float(x), float(y)) for x, y in spot], fill=_color(leaf))
    for _ in range(int(rng.integers(0, 7))):
        x, y, r = *rng.uniform(0, size, 2), size * rng.uniform(0.012, 0.04)
        brush.ellipse((x - r, y - r, x + r, y + r), fill=CROWNS[int(rng.integers(len(CROWNS)))])
    return canvas.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2) * SUPERSAMPLE))


def _patchwork(size: int, patches: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the patch of each pixel: the nearest of some points, with wobbling borders."""
    y, x = np.mgrid[0:size, 0:size] / size
    y, x = (axis + 0.25 * (_clouds(size, 5, rng) - 0.5) for axis in (y, x))
    points = rng.random((patches, 2))
    distance = (y[..., None] - points[:, 0]) ** 2 + (x[..., None] - points[:, 1]) ** 2
    return np.asarray(distance.argmin(-1))


def _texture(habitat: int, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Mix two colors of a habitat by smooth noise and, at times, ripples. -> (size, size, 3)"""
    near, far = (np.array(c) + rng.normal(0, 14, 3) for c in HABITATS[habitat][:2])
    mix = _clouds(size, int(rng.integers(2, 12)), rng)
    if rng.random() < 0.4:
        angle, waves = rng.uniform(0, np.pi), rng.uniform(3, 14)
        y, x = np.mgrid[0:size, 0:size] / size
        mix = 0.5 * mix + 0.25 * (1 + np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle))))
    return np.asarray(near + (far - near) * mix[..., None])


def _twig(brush: ImageDraw.ImageDraw, color: NDArray[np.float64], size: int, rng: np.random.Generator) -> None:
    ends = rng.uniform(-0.1, 1.1, (2, 2)) * size
    corners = [(float(x), float(y)) for x, y in ends]
    brush.line(corners, fill=_color(color), width=int(size * rng.uniform(0.01, 0.05)))
