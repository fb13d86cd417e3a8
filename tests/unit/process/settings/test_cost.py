import pytest

from process.settings.model import Settings
from process.settings.reference import SETTINGS


@pytest.mark.parametrize(("written", "value", "shown"), [("250", 250.0, "250"), (99.5, 99.5, "99.50"), ("", None, ""), (None, None, "")])
def test_a_budget_is_an_amount_of_dollars(written: object, value: float | None, shown: str) -> None:
    settings = Settings(cost={"budget_per_month": written})

    assert settings.cost.budget_per_month == value
    assert SETTINGS["cost.budget_per_month"].show(settings) == shown


@pytest.mark.parametrize("written", ["$250", "-1", "1e9", ".nan", True, "0", "12345678901", "1.234"])
def test_what_is_none_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"cost\.budget_per_month (is not an amount of dollars|must be between)"):
        Settings(cost={"budget_per_month": written})
