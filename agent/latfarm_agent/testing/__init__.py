"""The conformance suite for runtimes, and sample models for tests. It needs pytest."""

import pytest

# Without this, a failure of the suite in another project shows no values: pytest only rewrites the
# assertions of test modules.
pytest.register_assert_rewrite("latfarm_agent.testing.runtime_suite")
