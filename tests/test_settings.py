"""Ranges declared beside a setting are enforced with the setting's full key."""

from dataclasses import dataclass, field

import pytest

from mbrl_hdp.errors import ConfigError, did_you_mean
from mbrl_hdp.settings import check_settings, setting


@dataclass
class Inner:
    rate: float = setting(0.5, "a rate", above=0.0, at_most=1.0)
    widths: list[int] = setting([8, 8], "widths", at_least=1)


@dataclass
class Outer:
    count: int = setting(3, "a count", at_least=1, below=10)
    word: str = setting("red", "a colour", choices=("red", "green"))
    maybe: float | None = setting(None, "optional", at_least=0.0)
    inner: Inner = field(default_factory=Inner)


def test_defaults_pass_and_are_not_shared():
    check_settings(Outer())
    first, second = Inner(), Inner()
    first.widths.append(1)
    assert second.widths == [8, 8]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Outer(count=0), r"^count must be at least 1, got 0"),
        (Outer(count=10), r"^count must be below 10, got 10"),
        (Outer(inner=Inner(rate=0.0)), r"^inner.rate must be above 0, got 0"),
        (Outer(inner=Inner(rate=1.5)), r"^inner.rate must be at most 1, got 1.5"),
        (Outer(inner=Inner(widths=[4, 0])), r"^inner.widths\[1\] must be at least 1"),
        (Outer(word="gren"), r"word='gren' is not allowed; did you mean 'green'"),
        (Outer(maybe=-1.0), r"maybe must be at least 0"),
        (Outer(inner=Inner(rate=float("nan"))), r"inner.rate must be a finite number"),
    ],
)
def test_out_of_range_names_the_key(config, message):
    with pytest.raises(ConfigError, match=message):
        check_settings(config)


def test_did_you_mean():
    assert did_you_mean("hpd", ["mle", "hdp"]) == "did you mean 'hdp'? (known: hdp, mle)"
    assert did_you_mean("zzz", ["mle", "hdp"]) == "known: hdp, mle"
    assert did_you_mean("x", []) == "nothing is known here"
