"""What a test registers as an extension, forgotten after it."""

import pytest

from fedping.protocol import extensions


def registry_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rest of a test register what nobody sees after it.

    What is installed is loaded before: if that happened in the test, it would be forgotten with the rest, while the
    process would take it for loaded.
    """
    extensions.load()
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
