"""Groups of kernels whose regressors stay as an earlier training made them.

New measurements of some kernels are no reason to fit the regressors of all others again, which
would change by nothing but chance. A group is kept as a whole: its regressors, the factors of its
ops, and what its kernels were predicted to take by models that did not see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latfarm_predictors.features.group_summary import GroupSummary
from latfarm_predictors.features.table import Array, Rows
from latfarm_predictors.learned.group_models import GroupModels
from latfarm_predictors.learned.op_spread import Op
from latfarm_predictors.models.few_kernels import FewKernels
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.scaled import Scaled
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest


@dataclass(frozen=True)
class KeptGroups:
    """What is kept of an earlier training, for a training set of n kernels.

    Attributes:
        names: the groups that are kept.
        overall: roofline over all kernels. It is kept too, because groups with few kernels are
            factors on it.
        stacks: regressor of each group with enough kernels.
        images: regressor of a group's convolutions on images, where they were learned apart.
        scaled: factor of each group with few kernels.
        few: families of few kernels that have a roofline of their own, by group and family.
        summaries: how well each group was predicted by models that had not seen its kernels.
        op_spread: factor on the log-sigma of an op's kernels.
        unseen_ms: latency of each kernel by a model without it, shape (n,); only those of kernels
            in kept groups are used.
        unseen_sigma: log-sigma of these latencies, shape (n,).
        forests: the baseline's forest of each group; may be empty.
    """

    names: frozenset[str]
    overall: Roofline
    stacks: Mapping[str, Stack]
    images: Mapping[str, Stack]
    scaled: Mapping[str, Scaled]
    few: Mapping[str, Mapping[str, FewKernels]]
    summaries: Mapping[str, GroupSummary]
    op_spread: Mapping[Op, float]
    unseen_ms: Array
    unseen_sigma: Array
    forests: Mapping[str, Forest] = field(default_factory=dict)

    def group(self, name: str, rows: Rows) -> GroupModels:
        """What is kept of one group.

        Args:
            name: of the group; one of `names`.
            rows: which kernels of the training set belong to it.
        """
        return GroupModels(
            self.summaries[name],
            self.unseen_ms[rows],
            self.unseen_sigma[rows],
            self.stacks.get(name),
            self.images.get(name),
            self.scaled.get(name),
            self.few.get(name, {}),
            self.forests.get(name),
        )
