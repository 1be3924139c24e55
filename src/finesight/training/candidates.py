"""Two candidates to judge: the frozen and the trained network of a run, two poolings, or two runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save

from finesight.data.cache import DecodedCache, default_cache_dir, open_cache
from finesight.data.sources import ImageSource, open_source
from finesight.errors import FineSightError
from finesight.evaluation.judging import FROZEN, IMAGES, TRAINED, Judging, nearest_images, sample_paths
from finesight.evaluation.judgments import NAME, Candidate
from finesight.features.encoder import Encoder
from finesight.features.encoder_folder import CONFIG, fingerprint
from finesight.features.extract import extract
from finesight.io.atomic import atomic_path
from finesight.nn.poolings import offered_poolings
from finesight.training.config import RuntimeConfig
from finesight.training.run_folder import RunFolder
from finesight.training.save_encoder import frozen_encoder

ROLES = (FROZEN, TRAINED)


@dataclass(frozen=True)
class CandidateName:
    """``RUN``, ``RUN:frozen``, ``RUN:POOLING`` or ``RUN:frozen:POOLING``."""

    run: Path
    role: str = TRAINED
    pooling: str | None = None

    @classmethod
    def parse(cls, text: str) -> CandidateName:
        """Take role and pooling off the end; a folder whose own name ends so is taken as it is."""
        role, pooling, path = TRAINED, None, text
        while not Path(path).exists() and ":" in path:
            path, _, last = path.rpartition(":")
            if last in ROLES:
                role = last
            elif last in offered_poolings():
                pooling = last
            else:
                raise FineSightError(
                    f"{text}: {last!r} is neither {FROZEN} nor a pooling. Poolings: {', '.join(offered_poolings())}."
                )
        return cls(Path(path), role, pooling)

    def short(self, other: CandidateName) -> str:
        """Return a name that tells it from the other."""
        name = self.role if self.run.resolve() == other.run.resolve() else f"{self.run}"
        if self.role == FROZEN and name != FROZEN:
            name += f":{FROZEN}"
        return name if self.pooling is None else f"{name}:{self.pooling}"


@dataclass(frozen=True)
class Network:
    """An encoder under a pooling, with the name it goes by."""

    facts: Candidate
    encoder: Encoder


def candidate_names(a: str, b: str | None) -> tuple[CandidateName, CandidateName]:
    """Return what is compared: of one run, what training began with and what it left."""
    first = CandidateName.parse(a)
    names = (first, CandidateName.parse(b)) if b is not None else (CandidateName(first.run, FROZEN), first)
    if b is None and first.role == FROZEN:
        raise FineSightError(f"{a} is one candidate: give two, or the run alone to judge frozen against trained.")
    return names


def judged_run(names: tuple[CandidateName, CandidateName]) -> RunFolder | None:
    """Return the run whose verdict depends on the answers: the one whose frozen and trained networks these are."""
    a, b = names
    whole = a == CandidateName(b.run, FROZEN) and b == CandidateName(b.run)
    run = RunFolder(b.run)
    return run if whole and run.config_file.exists() else None


def judgments_file(names: tuple[CandidateName, CandidateName]) -> Path:
    """Return where clicks are kept: beside the second run."""
    return names[1].run / NAME


def open_networks(names: tuple[CandidateName, CandidateName]) -> tuple[Network, Network]:
    """Load both; two poolings of one network share it.

    Raises
    ------
    FineSightError
        If one cannot be loaded, or if they are the same.
    """
    loaded: dict[tuple[Path, str], tuple[Encoder, str]] = {}
    made = []
    for name, other in zip(names, names[::-1], strict=True):
        key = name.run.resolve(), name.role
        if key not in loaded:
            loaded[key] = _load(name)
        encoder, digest = loaded[key]
        pooling = name.pooling or encoder.config.pooling
        encoder.with_pooling(pooling)  # raises at once if it cannot
        made.append(Network(Candidate(name.short(other), digest, pooling), encoder))
    a, b = made
    if (a.facts.fingerprint, a.facts.pooling) == (b.facts.fingerprint, b.facts.pooling):
        raise FineSightError(f"{a.facts.name} and {b.facts.name} make the same features: there is nothing to judge.")
    return a, b


def _load(name: CandidateName) -> tuple[Encoder, str]:
    if name.role == FROZEN:
        if (name.run / "frozen" / "encoder" / CONFIG).exists():
            return Encoder.load(name.run / "frozen"), fingerprint(name.run / "frozen")
        encoder = frozen_encoder(RunFolder(name.run).config())
        return encoder, memory_fingerprint(encoder)
    apart = name.run / "encoder-trained"  # where the verdict keeps the frozen network
    folder = apart if (apart / CONFIG).exists() else name.run
    encoder = Encoder.load(folder)
    return encoder, fingerprint(folder)


def memory_fingerprint(encoder: Encoder) -> str:
    """Return the fingerprint that the encoder will have when it is saved."""
    digest = hashlib.blake2b(digest_size=16)
    content = encoder.config.model_dump(mode="json")
    digest.update(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    digest.update(save({name: value.contiguous().cpu() for name, value in encoder.state_dict().items()}))
    return digest.hexdigest()


# --- images -----------------------------------------------------------------------------------------------------------


def open_judging(
    names: tuple[CandidateName, CandidateName],
    data: str | Path | None = None,
    runtime: RuntimeConfig | None = None,
    *,
    images: int = IMAGES,
) -> tuple[Judging, ImageSource]:
    """Embed a sample of ``data`` (by default, what the second run was trained on) with both, and prepare to ask.

    The images of the source that is returned are those of the judging, index by index.
    """
    runtime = runtime or RuntimeConfig()
    networks = open_networks(names)
    source = open_source(RunFolder(names[1].run).config().data if data is None else data)
    if source.splits is not None and np.any(source.splits == "test"):
        source = source.split("test")
    caches = _common_images(source.select(sample_paths(source.paths.tolist(), images)), networks, runtime)
    nearest = _nearest(networks, caches, runtime)
    source = caches[0].source
    pair = networks[0].facts, networks[1].facts
    paths = source.paths.tolist()
    return Judging(*pair, nearest, paths, data=str(source.root), file=judgments_file(names)), source


def _common_images(source: ImageSource, networks: Sequence[Network], runtime: RuntimeConfig) -> list[DecodedCache]:
    """Return a cache for each network; what only one of them can read is left out of both."""
    options = {"cache_dir": runtime.cache_dir, "workers": runtime.workers, "progress": runtime.progress}
    scales = [network.encoder.config.framing.scale for network in networks]
    caches = {scale: open_cache(source, scale, **options) for scale in scales}  # type: ignore[arg-type]
    common = set.intersection(*(set(cache.source.paths.tolist()) for cache in caches.values()))
    kept = source.select(np.array([path in common for path in source.paths.tolist()], dtype=bool))
    if len(kept) < len(source):
        caches = {scale: open_cache(kept, scale, **options) for scale in scales}  # type: ignore[arg-type]
    return [caches[scale] for scale in scales]


def _nearest(
    networks: tuple[Network, Network], caches: Sequence[DecodedCache], runtime: RuntimeConfig
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what each finds nearest; what was found before for the same images and features is read from the disk."""
    files = [_memory(network, cache, runtime) for network, cache in zip(networks, caches, strict=True)]
    found = [np.load(file) if file.exists() else None for file in files]
    missing = [n for n, known in enumerate(found) if known is None]
    groups = [missing] if networks[0].encoder is networks[1].encoder else [[n] for n in missing]
    for group in filter(None, groups):
        cache, poolings = caches[group[0]], [networks[n].facts.pooling for n in group]
        every = np.arange(len(cache))
        extracted = extract(networks[group[0]].encoder, cache, every, poolings, progress=runtime.progress)
        for n in group:
            nearest = found[n] = nearest_images(extracted.features[networks[n].facts.pooling])
            with atomic_path(files[n]) as scratch:
                np.save(scratch, nearest)
    a, b = found
    assert a is not None
    assert b is not None
    return a, b


def _memory(network: Network, cache: DecodedCache, runtime: RuntimeConfig) -> Path:
    """Return the file that holds what the network finds nearest to each of these images."""
    digest = hashlib.blake2b(cache.keys.tobytes(), digest_size=16)
    digest.update(f"{network.facts.fingerprint} {network.facts.pooling} {cache.scale}".encode())
    return Path(runtime.cache_dir or default_cache_dir()) / "judging" / f"{digest.hexdigest()}.npy"
