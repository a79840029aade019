"""What a report says of the machine's tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import machine


def test_each_tool_tells_its_version_or_is_told_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    def told(name: str) -> object:
        tools = machine.describe([name])["tools"]
        assert isinstance(tools, dict)
        return tools[name]

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool("plain", 'echo "plain 1.2"; echo more')
    tool("nginx", 'test "$1" = -v && echo "nginx/1.22" >&2')
    tool("NPtcp", "echo usage; exit 1")
    assert told("plain") == "plain 1.2"
    assert told("nginx") == "nginx/1.22"
    assert told("no-such-tool") == "not installed"
    one = told("NPtcp")
    assert "usage" not in str(one)
    tool("NPtcp", "echo usage; exit 2")
    assert told("NPtcp") != one
