"""What is installed, what this machine gives, and what makes FineSight slow here: ``finesight doctor``."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

from finesight.data.cache_budget import budget
from finesight.data.remembered import ENGINES, Remembered
from finesight.data.store import default_cache_dir
from finesight.errors import FineSightError
from finesight.io.machine import (
    Cores,
    count_cores,
    find_container,
    find_disk,
    folder_size,
    processor,
    read_memory,
)
from finesight.version import __version__

State = Literal["ok", "note", "slow", "broken"]
DISTRIBUTIONS = ("finesight", "finesight-onnx")
OPENCV = "opencv-python-headless"
OTHER_OPENCV = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless")
NAMED = (  # shown one by one; what others need comes first
    *("torch", "torchvision", "timm", "lightning", "onnxruntime", "faiss-cpu", "numpy", "pillow", OPENCV, "fastapi"),
)
MODULES = {"faiss-cpu": "faiss", "pillow": "PIL", OPENCV: "cv2"}  # where they have another name
PRIVATE_EXTRAS = ("dev", "audit")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox", "safari")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LOW_DISK, LOW_MEMORY, LOW_FILES = 5e9, 2e9, 1024
REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[\w,.-]+\])?[^;]*(?:;(.*))?$")
EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")


@dataclass(frozen=True)
class Fact:
    """One line of the table; ``advice`` says why it is slow or broken and what to do."""

    section: str
    name: str
    value: str
    state: State = "ok"
    advice: str = ""
    data: Any = None  # the value for scripts, where that is not its words


@dataclass
class Requirements:
    """What the installed distribution asks for."""

    distribution: str = ""
    needed: list[str] = field(default_factory=list)
    extras: dict[str, list[str]] = field(default_factory=dict)


def examine() -> list[Fact]:
    """Look at everything and return it. Packages are imported: it takes seconds."""
    cores = count_cores()
    return [*_software(), *_extras(read_requirements()), *_device(), *_cores(cores), *_memory(), *_disk(), *_system()]


def read_requirements() -> Requirements:
    """Return what the distribution that is installed needs; nothing for a tree that is not installed."""
    for name in DISTRIBUTIONS:
        if installed(name) is None:
            continue
        found = Requirements(name)
        for text in metadata.requires(name) or ():
            match = REQUIREMENT.match(text)
            if match is None or match[1].lower() in DISTRIBUTIONS:
                continue
            extras = EXTRA.findall(match[2] or "")
            if not extras and not match[2]:
                found.needed.append(match[1])
            for extra in extras:
                found.extras.setdefault(extra, []).append(match[1])
        return found
    return Requirements()


def installed(name: str) -> str | None:
    """Return the version of a distribution, None if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _software() -> Iterator[Fact]:
    yield Fact("software", "Python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    there = [name for name in DISTRIBUTIONS if installed(name) is not None]
    if len(there) > 1:
        yield Fact(
            "software",
            "finesight",
            f"{__version__} ({' and '.join(there)})",
            "broken",
            "finesight and finesight-onnx write the same files: uninstall both, then install the one you want.",
        )
    else:
        yield Fact("software", "finesight", f"{__version__} ({there[0] if there else 'not installed: a source tree'})")
    needed = read_requirements().needed
    broken: list[str] = []
    for name in NAMED:
        version = installed(name)
        if version is not None:
            fact = _importable(name, version, broken)
            broken += [name] if fact.state == "broken" else []
            yield fact
        elif name in needed:
            yield Fact("software", name, "missing", "broken", f"{name} is needed: `pip install {there[0]}` again.")
        else:
            what = "not installed: enough to index, search and serve with an exported encoder"
            yield Fact("software", name, what if name == "torch" else "not installed", "note")
    gone = [name for name in needed if name not in NAMED and installed(name) is None]
    if gone:
        names = ", ".join(gone)
        yield Fact("software", "other packages", f"missing: {names}", "broken", f"`pip install {' '.join(gone)}`.")


def _importable(name: str, version: str, broken: list[str]) -> Fact:
    """Import a package; ``broken`` are those before it that cannot be imported."""
    try:
        import_module(MODULES.get(name, name))
    except Exception as error:  # a package that is broken fails in any way
        reason = str(error).partition("\n")[0]
        cause = next((other for other in ("torch", "torchvision") if other in broken), None)
        if name in ("torchvision", "timm", "lightning") and cause is not None:
            words = f"{name} {version} needs {cause}, which cannot be imported."
        elif name == "torchvision" and (torch := installed("torch")) is not None:
            words = (
                f"torchvision {version} does not fit torch {torch} ({reason}): install both again, together and from "
                "the same index (docs/install.md)."
            )
        else:
            words = f"{name} {version} cannot be imported ({reason}): install it again."
        return Fact("software", name, version, "broken", words)
    if name == OPENCV and (others := [other for other in OTHER_OPENCV if installed(other) is not None]):
        value = f"{version}; {' and '.join(others)} is installed too and writes the same folder (docs/install.md)"
        return Fact("software", name, value, "note")
    if name == "faiss-cpu":
        return _faiss(version)
    if name == "pillow":
        from PIL import features

        if not features.check("libjpeg_turbo"):
            words = "Pillow was built without libjpeg-turbo: JPEGs are decoded more slowly. Use its wheel."
            return Fact("software", name, version, "slow", words)
    return Fact("software", name, version)


def _faiss(version: str) -> Fact:
    import faiss

    options, flags = faiss.get_compile_options(), processor()[1]
    for wide in ("AVX512", "AVX2"):
        if wide in options.split():
            return Fact("software", "faiss-cpu", f"{version} with {wide}")
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return Fact("software", "faiss-cpu", version)
    why = "this processor has none" if flags and "avx2" not in flags else "this build has none"
    words = f"faiss runs without AVX2 ({why}): searching large indexes is slower."
    return Fact("software", "faiss-cpu", version, "slow", words)


def _extras(asked: Requirements) -> Iterator[Fact]:
    for extra, names in sorted(asked.extras.items()):
        if extra in PRIVATE_EXTRAS:
            continue
        versions = {name: installed(name) for name in names}
        if all(versions.values()):
            yield Fact("extras", extra, ", ".join(f"{name} {version}" for name, version in versions.items()))
        else:
            yield Fact("extras", extra, f"not installed: pip install {asked.distribution}[{extra}]", "note")


def _device() -> Iterator[Fact]:
    try:
        import torch
    except Exception:  # told above, if it is there at all
        yield Fact("device", "device", "CPU, by onnxruntime")
        return
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())})
        yield Fact("device", "device", f"{torch.cuda.device_count()} × {', '.join(names)}")
        return
    has_card = Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    if has_card and not built:
        words = "There is an NVIDIA GPU, but this torch is built for the CPU only: install the CUDA build of torch."
        yield Fact("device", "device", "CPU", "slow", words)
    elif has_card:
        words = f"There is an NVIDIA GPU, but torch (CUDA {built}) cannot use it: is the driver older than that?"
        yield Fact("device", "device", "CPU", "slow", words)
    elif built:
        value = "CPU: there is no GPU. This torch has CUDA inside, some gigabytes more than the build for the CPU"
        yield Fact("device", "device", f"{value} (docs/install.md)", "note")
    else:
        yield Fact("device", "device", "CPU: this torch is built for it alone")


def _cores(cores: Cores) -> Iterator[Fact]:
    name, _ = processor()
    limit = "" if cores.limit is None else f", of whose time the container gives {cores.limit:g}"
    value = f"{cores.machine} of {name or platform.machine()}; this process may use {cores.allowed}{limit}"
    yield Fact("processor", "cores", value, data=asdict(cores))
    threads = _torch_threads()
    given = {name: os.environ[name] for name in THREADS if os.environ.get(name)}
    if threads is not None:
        cause = ", ".join(f"{name}={value}" for name, value in given.items() if value == str(threads))
        yield threads_fact(threads, cores, cause)
    words = "threads that wait keep a core busy, which makes a shared machine much slower: unset it."
    for name, bad in (("OMP_WAIT_POLICY", ("ACTIVE",)), ("KMP_BLOCKTIME", ("INFINITE",)), ("OMP_DYNAMIC", ())):
        if (setting := os.environ.get(name, "")) and setting.upper() in bad:
            yield Fact("processor", name, setting, "slow", f"{name}={setting}: {words}")
    load = os.getloadavg()[0]
    if load > cores.usable + 1:
        words = f"Other programs are at work too (load {load:.1f} on {cores.usable} cores): all takes longer meanwhile."
        yield Fact("processor", "load", f"{load:.1f}", "slow", words, load)
    else:
        yield Fact("processor", "load", f"{load:.1f}", data=load)


def threads_fact(threads: int, cores: Cores, cause: str = "") -> Fact:
    """Say whether torch's threads fit the cores; ``cause`` is the setting that made them so many."""
    value, because = f"{threads} of torch", f" because {cause}" if cause else ""
    if threads < cores.usable:
        words = f"torch uses {threads} of {cores.usable} cores{because}. Unset it, or set it to {cores.usable}."
        return Fact("processor", "threads", value, "slow", words, threads)
    if threads > cores.usable:
        words = (
            f"torch starts {threads} threads{because}, and only {cores.usable} can run at a time: they wait for each "
            f"other. Set OMP_NUM_THREADS={cores.usable}."
        )
        return Fact("processor", "threads", value, "slow", words, threads)
    return Fact("processor", "threads", value, data=threads)


def _torch_threads() -> int | None:
    try:
        import torch
    except Exception:
        return None
    return int(torch.get_num_threads())


def _memory() -> Iterator[Fact]:
    total, free, limit = read_memory()
    data = {"bytes": total, "free": free, "limit": limit}
    value = f"{_size(total)}" + ("" if free is None else f", {_size(free)} free")
    value += "" if limit is None else f"; the container gives {_size(limit)}"
    if min(filter(None, (free, limit)), default=total) < LOW_MEMORY:
        words = "Little memory is free. Close programs, raise the limit, or use smaller --batch-size and --resolution."
        yield Fact("memory", "memory", value, "slow", words, data)
    else:
        yield Fact("memory", "memory", value, data=data)


def _disk() -> Iterator[Fact]:
    folder = default_cache_dir()
    disk = find_disk(folder)
    used = folder_size(folder)
    data = {"folder": str(folder), "bytes": used, "free": disk.free, "disk": disk.kind}
    value = f"{folder}: {_size(used)}, {_size(disk.free)} free{f' ({disk.kind})' if disk.kind else ''}"
    try:
        allowed = budget()
    except FineSightError as error:
        yield Fact("disk", "cache", value, "broken", str(error))
        return
    value += "" if allowed is None else f"; may grow to {_size(int(allowed))}"
    problem = ""
    if not _writable(folder):
        problem = f"The cache folder {folder} cannot be written: every image is decoded anew. Set FINESIGHT_CACHE."
    elif disk.is_remote:
        problem = (
            f"The cache is on a network disk ({disk.kind}): set FINESIGHT_CACHE to a folder on a disk of your own."
        )
    elif disk.kind == "tmpfs":
        problem = "The cache is in memory (tmpfs): it takes memory from training. Set FINESIGHT_CACHE to a disk."
    elif disk.free < LOW_DISK:
        problem = (
            f"Only {_size(disk.free)} are free for the cache: make room, or set FINESIGHT_CACHE or FINESIGHT_CACHE_GB."
        )
    yield Fact("disk", "cache", value, "slow" if problem else "ok", problem, data)
    known = Remembered(ENGINES).read()
    for key, times in sorted(known.items()):
        network = re.search(r'"name":"([^"]+)"', key)
        batch, _, where = key.rpartition("} ")[2].partition(", ")
        found = f"onnxruntime is {times:g} times as fast as torch" if times else "torch: onnxruntime cannot do it"
        yield Fact("engines", f"{network[1] if network else ''}, {batch}", f"{found} ({where})", data=times)


def _system() -> Iterator[Fact]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LOW_FILES:
        words = f"Only {soft} files may be open at a time, and a server has up to 600 connections: `ulimit -n 4096`."
        yield Fact("system", "open files", str(soft), "slow", words, soft)
    else:
        yield Fact("system", "open files", "any number" if soft == resource.RLIM_INFINITY else str(soft), data=soft)
    yield Fact("system", "container", find_container() or "none")
    browser = next((name for name in BROWSERS if shutil.which(name)), None)
    yield Fact("system", "browser", browser or "none found: open the address of `serve` elsewhere", "ok")


def _writable(folder: Path) -> bool:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _size(count: float) -> str:
    for unit, bytes_of in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= bytes_of:
            return f"{count / bytes_of:.1f} {unit}"
    return f"{count:g} bytes"


def as_json(facts: Iterable[Fact]) -> dict[str, Any]:
    """Return the facts by section, and those that are slow or broken."""
    facts = list(facts)
    sections: dict[str, dict[str, Any]] = {}
    for fact in facts:
        sections.setdefault(fact.section, {})[fact.name] = fact.value if fact.data is None else fact.data
    return {
        **sections,
        "slow": [fact.advice for fact in facts if fact.state == "slow"],
        "broken": [fact.advice for fact in facts if fact.state == "broken"],
    }
