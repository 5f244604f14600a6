"""Whose code a module is, by where it stands."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bppsa.fxpasses.environment.libraries import is_users_name


def test_what_was_installed_into_a_folder_is_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    record = tmp_path / "some-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bppsa_test_some/__init__.py,,\nbppsa_test_single.py,sha256=x,0\nsome/bppsa_test_own.py,,\n")
    (tmp_path / "bppsa_test_some").mkdir()
    (tmp_path / "bppsa_test_some" / "__init__.py").touch()
    for name in ("bppsa_test_single", "bppsa_test_own"):
        (tmp_path / f"{name}.py").touch()
    for name, users in (("bppsa_test_some", False), ("bppsa_test_single", False), ("bppsa_test_own", True)):
        importlib.import_module(name)
        assert is_users_name(f"{name}.part") is users
    assert is_users_name("bppsa_test_missing")
