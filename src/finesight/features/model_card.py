"""The model card of an encoder: a README.md that says what it is, what it learned from and how well it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from finesight.version import __version__

if TYPE_CHECKING:
    from finesight.features.encoder_config import EncoderConfig

TAGS = ("finesight", "image-feature-extraction", "self-supervised", "fine-grained", "image-retrieval")
SHOWN = (  # settings of a run that a reader asks for, and their words
    ("method", "method"),
    ("epochs", "epochs"),
    ("max_steps", "steps"),
    ("batch_size", "batch size"),
    ("optim.lr", "learning rate"),
    ("views.resolution", "pixels of a view in training"),
    ("seed", "seed"),
)


def model_card(config: EncoderConfig, run: Path | None = None, name: str = "OWNER/NAME") -> str:
    """Return the card; ``run`` is the folder of the run whose settings, scores and verdict it tells.

    The license is left to the user: the card says that there is none yet. Of the data only the last name of its path
    is told.
    """
    settings = _read(run, "config.yaml")
    header = {"library_name": "finesight", "pipeline_tag": "image-feature-extraction", "tags": list(TAGS)}
    lines = ["---", yaml.safe_dump(header, sort_keys=False).strip(), "---", "", f"# {name.rpartition('/')[2]}", ""]
    lines += [f"An image encoder made with FineSight {__version__}: images in, features for retrieval out.", ""]
    lines += [_table(_facts(config, settings)), ""]
    lines += ["## Does it help?", "", *_scores(_read(run, "verdict.json"), _read(run, "evaluation.json")), ""]
    lines += [
        "## How to use it",
        "",
        "```python",
        "import finesight",
        "",
        f'encoder = finesight.load("hf-hub:{name}")',
        'features = encoder.embed(["one.jpg", "two.jpg"])  # (2, D)',
        "```",
        "",
        "## License",
        "",
        "None is given yet. Add `license:` to the first lines of this file; mind those of the data and of the weights "
        "that training began with.",
    ]
    return "\n".join(lines) + "\n"


def _facts(config: EncoderConfig, settings: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("network", config.backbone.name),
        ("weights before training", Path(config.backbone.weights).name),
        ("method", config.method),
        ("pooling", config.pooling),
        ("pixels", str(config.resolution)),
    ]
    if data := settings.get("data"):
        facts.append(("trained on", Path(str(data)).name))
    for key, words in SHOWN:
        value: Any = settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and words not in dict(facts):
            facts.append((words, str(value)))
    return facts


def _scores(verdict: dict[str, Any], scores: dict[str, Any]) -> list[str]:
    lines = []
    if verdict.get("verdict"):
        kept = "the trained" if verdict.get("kept") == "trained" else "the frozen network's"
        lines.append(
            f"Compared with the network before training: {verdict['verdict']}, by {verdict.get('by', 'nothing')}. "
            f"These are {kept} weights."
        )
    found = scores.get("retrieval", {})
    if isinstance(found, dict) and "rank1" in found:
        setting = scores.get("setting", {})
        rows = [("rank-1", f"{found['rank1']:.1f} %"), ("rank-5", f"{found['rank5']:.1f} %")]
        rows.append(("mAP", f"{found['mAP']:.1f} %"))
        for percent, probe in scores.get("linear", {}).items():
            rows.append((f"linear probe, {percent} % of the labels", f"{probe['top1']:.1f} %"))
        where = f"{setting.get('test_images', '?')} test images, split {setting.get('split', '?')}"
        lines += ["", f"Scores on {where}:", "", _table(rows)]
    return lines or ["It has not been scored: `finesight evaluate` does it, and the next push tells it."]


def _table(rows: list[tuple[str, str]]) -> str:
    cells = [(name, text.replace("|", "\\|")) for name, text in rows]
    return "\n".join(["| | |", "|:---|:---|", *(f"| {name} | {text} |" for name, text in cells)])


def _read(run: Path | None, name: str) -> dict[str, Any]:
    """Return a file of the run, empty if there is none that can be read."""
    if run is None:
        return {}
    try:
        text = (run / name).read_text(encoding="utf-8")
        content = yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
