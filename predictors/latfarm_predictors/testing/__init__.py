"""Makers of random graphs, kernels and files, and slow reference code, for tests."""

import sys

# Without this, a failed assertion in these modules shows no values: pytest only rewrites those of
# test modules. They are also used by benchmarks, which run without pytest.
if "pytest" in sys.modules:
    sys.modules["pytest"].register_assert_rewrite(
        "latfarm_predictors.testing.fuzzing", "latfarm_predictors.testing.spellings"
    )
