"""A test in real namespaces that is skipped has failed where LEVADA_REQUIRE_NAMESPACES is set.

A machine that is to run them (.ci/run as root) must not take a missing tool for success. The Rust
tests follow the same variable.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

_REQUIRE = "LEVADA_REQUIRE_NAMESPACES"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns the skipping of such a test into its failure."""
    report = yield
    if report.skipped and _REQUIRE in os.environ and item.get_closest_marker("root"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} cannot run, and {_REQUIRE} is set: {why}"
    return report
