"""The limit of open files at the start of ingest."""

import resource

import pytest

from fedping.server_jobs.ingest import supervisor


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "warned"),
    [
        (1024, 65_536, supervisor.DESCRIPTORS, False),
        (1024, resource.RLIM_INFINITY, supervisor.DESCRIPTORS, False),
        (256, 512, 512, True),
        (512, 512, None, True),
        (65_536, 65_536, None, False),
    ],
)
def test_the_soft_limit_is_raised_and_a_low_hard_limit_is_reported(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    soft: int,
    hard: int,
    raised: int | None,
    warned: bool,
) -> None:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(supervisor.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(supervisor.resource, "setrlimit", lambda _, limits: found.append(limits))
    supervisor._raise_descriptors()
    assert found == ([] if raised is None else [(raised, hard)])
    said = capsys.readouterr().err
    assert ("LimitNOFILE" in said) is warned
    assert (f"{hard:,}" in said) is warned
