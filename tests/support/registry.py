"""Undoes a test's registration of extensions."""

import pytest

from fedping.protocol import extensions


def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the registrations of the rest of a test at its end.

    Installed extensions are loaded first. If the test loaded them, they would be removed at its end, although the
    process counts them as loaded.
    """
    extensions.load()
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
