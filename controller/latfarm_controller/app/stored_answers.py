"""The answers that the store has to questions about the latency of networks.

Nothing here needs a board, an event loop or Ray, so a command without a running controller uses it
as the controller does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from latfarm_predictors.measurement import PUBLISH

from latfarm_controller.app.question import Found, Question
from latfarm_controller.errors import NotMeasuredError, UsageError
from latfarm_controller.platform_name import platform_hint
from latfarm_controller.store.base import AnswerQuery, Store
from latfarm_controller.training.bundle_notes import NewestNotes


class StoredAnswers:
    """Answers questions from the store. Thread-safe.

    Args:
        store: holds the measurements.
        notes: adds to each answer what the platform's bundle in use says of it.
    """

    def __init__(self, store: Store, notes: NewestNotes) -> None:
        self._store = store
        self._notes = notes

    def find(self, questions: Sequence[Question]) -> list[Found | None]:
        """The stored answers; None where there is none, or a new measurement is asked for."""
        now_s = time.time()
        asked = [place for place, question in enumerate(questions) if question.stored]
        wanted = [_wanted(questions[place], now_s) for place in asked]
        known = self._store.find_answers(wanted)
        hits = [(p, m) for p, m in zip(asked, known, strict=True) if m is not None]
        noted = self._notes.noted(m for _, m in hits)
        found: list[Found | None] = [None] * len(questions)
        for (place, _), measurement in zip(hits, noted, strict=True):
            found[place] = Found(measurement, hit=True)
        return found

    def noted(self, found: Found) -> Found:
        """An answer with what the platform's bundle in use says of its measurements."""
        first, *repeats = self._notes.noted([found.measurement, *found.repeats])
        return replace(found, measurement=first, repeats=tuple(repeats))

    def known(self, platforms: Sequence[str] = ()) -> list[str]:
        """Names of known platforms: those of the store, and further ones."""
        return sorted({*self._store.platforms(), *platforms})


def nothing_stored(question: Question, known: Sequence[str]) -> Exception:
    """The error for a question without a stored answer that forbids to measure.

    Args:
        question: the question.
        known: names of all known platforms.
    """
    if question.platform not in known:
        listed = ", ".join(known[:20]) or "none yet; latfarm platforms lists those of boards"
        return UsageError(
            f"unknown platform {question.platform!r}; known: {listed}"
            + platform_hint(question.platform, known)
        )
    name = question.graph.name if question.graph is not None else question.graph_hash
    return NotMeasuredError(
        f"{name} was not measured on {question.platform} as asked; leave out --no-measure to "
        "measure it now"
    )


def _wanted(question: Question, now_s: float) -> AnswerQuery:
    return AnswerQuery(
        question.graph_hash,
        question.platform,
        question.network_hash,
        # A measurement for publication answers the question for a survey, too.
        tier=question.tier if question.tier == PUBLISH.tier else "",
        energy=question.energy,
        since_s=now_s - question.max_age_s if question.max_age_s else 0.0,
        foreign=question.foreign,
    )
