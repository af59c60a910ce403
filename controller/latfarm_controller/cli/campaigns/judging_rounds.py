"""Measures the networks that judge a predictor in rounds that are spread over its characterisation.

Passes of one campaign follow each other at once, and share what disturbs the board at that time.
Their mean is then further from a network's latency than their differences show. So each round is a
campaign of its own: one is measured before the characterisation, two while it runs, one after it.
The predictor learns from none of them, because it is trained on its own campaign alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Measurement

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.summaries import CampaignSummary

ROUNDS = 4
"""Number of rounds, and so of passes of each network."""
SESSIONS = 2
"""Number of sessions in each pass of a network."""
_DETECTION = frozenset({"", "overhead", "fusion"})
"""Stages of a characterisation before it measures kernels or networks."""
_LAST = "networks"
"""The last stage of a characterisation: its calibration networks."""


class JudgingRounds:
    """The rounds of one set of networks on one platform.

    The same names and networks continue the rounds of an earlier run.

    Args:
        client: starts and follows campaigns.
        platform: where the networks are measured.
        graphs: the networks, in JSON form.
        name: beginning of the names of the rounds' campaigns.
        seed: random seed of the order of measurements, which differs between rounds.
        settings: changes of the measurement settings; by default each pass has `SESSIONS` sessions.
        allows: whether a round after the first one may be started; by default always.
    """

    def __init__(
        self,
        client: ControllerClient,
        platform: str,
        graphs: Sequence[Mapping[str, Any]],
        name: str,
        *,
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        allows: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._platform = platform
        self._graphs = list(graphs)
        self._name = name
        self._seed = seed
        self._settings = {"sessions": SESSIONS, **(settings or {})}
        self._allows = allows
        self._started: dict[int, str] = {}

    @property
    def started(self) -> int:
        """Number of rounds that were started."""
        return len(self._started)

    def before(self, on_stage: Callable[[str], None] | None = None) -> CampaignSummary:
        """Measure the first round, before the characterisation.

        Args:
            on_stage: called when the board begins to measure.

        Returns:
            The round's campaign.
        """
        return self._follow(0, on_stage)

    def on_stage(self, stage: str) -> None:
        """Start a round when the characterisation enters a stage; give this to `follow`.

        The second round is measured when the detection of fusion is done, the third one when the
        last stage begins. The board takes the requests of both campaigns in turn.
        """
        if stage not in _DETECTION and self._may(1):
            self._start(1)
        if stage == _LAST and self._may(2):
            self._start(2)

    def after(self) -> list[Measurement]:
        """Measure the rounds that are left and allowed, and give the measurements of all rounds.

        A round that the characterisation had no stage for is measured now.
        """
        found: list[Measurement] = []
        for number in range(ROUNDS):
            if not self._may(number):
                continue
            campaign = self._follow(number)
            found += self._client.results(campaign_id=campaign.campaign_id, purpose="network")
        return found

    def _may(self, number: int) -> bool:
        """Whether a round was started, or may be."""
        return number in self._started or self._allows()

    def _start(self, number: int) -> str:
        """The id of a round's campaign, which is started if it was not."""
        if number not in self._started:
            config = {
                "graphs": self._graphs,
                "passes": 1,
                "earlier_passes": number,
                # Each round has another order, so that no network always follows the same one.
                "seed": ROUNDS * self._seed + number,
                "settings": self._settings,
            }
            name = f"{self._name}-{number + 1}"
            began = self._client.start("networks", self._platform, config, name)
            self._started[number] = began.campaign_id
        return self._started[number]

    def _follow(
        self, number: int, on_stage: Callable[[str], None] | None = None
    ) -> CampaignSummary:
        from latfarm_controller.cli.shell.progress import follow

        return follow(self._client, self._start(number), on_stage)
