"""The verdict on a page: did training help?"""

from __future__ import annotations

from finesight.plots.html import Section, replace_section
from finesight.training.config import RuntimeConfig
from finesight.training.run_folder import RunFolder
from finesight.training.verdict import Contrast, Kept, Verdict, read_verdict, write_verdict

TITLE = "Did training help?"
NAMES = {"rank1": "rank-1", "mAP": "mAP"}


def verdict_sections(run: RunFolder) -> list[Section]:
    """Return the section with the verdict and its numbers; nothing where there is no verdict."""
    verdict = read_verdict(run)
    if verdict is None:
        return []
    contrasts = {contrast.pooling: contrast for contrast in (verdict.labels.best, verdict.labels.same) if contrast}
    rows = [row for contrast in contrasts.values() for row in _rows(contrast)]
    return [Section(TITLE, verdict.words, table=rows or None)]


def _rows(contrast: Contrast) -> list[dict[str, object]]:
    return [
        {
            "frozen network, pooled by": contrast.pooling,
            "score": NAMES[key],
            "frozen %": score.frozen,
            "trained %": score.trained,
            "difference": f"{score.difference:+.1f}",
            "95 % interval": f"{score.low:+.1f} to {score.high:+.1f}",
            "training is": contrast.verdict,
        }
        for key, score in contrast.scores.items()
    ]


def renew_verdict(run: RunFolder, runtime: RuntimeConfig | None = None, *, keep: Kept | None = None) -> Verdict | None:
    """``write_verdict``, and what it says in ``report.html``, too."""
    made = write_verdict(run, runtime, keep=keep)
    refresh_page(run)
    return made


def refresh_page(run: RunFolder) -> None:
    """Bring the verdict in ``report.html`` up to date, where there is such a page."""
    for section in verdict_sections(run):
        replace_section(run.report, section)
