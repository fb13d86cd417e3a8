from process.settings.model import DERIVED_FROM, Settings
from process.settings.reference import SETTINGS, key_of, nearest, variable_of


def test_every_setting_has_a_notation_that_reads_what_it_shows() -> None:
    settings = Settings()

    for key, setting in SETTINGS.items():
        value = setting.value_in(settings)
        assert setting.notation.parse(setting.notation.show(value) or None) == value, key


def test_every_setting_is_described() -> None:
    assert all(setting.description for setting in SETTINGS.values())
    assert {"broker.id", "kafka.listeners", "storage.url", "metadata.url", "http.listen", "log.level"} <= SETTINGS.keys()


def test_a_key_and_its_variable_name_each_other() -> None:
    assert variable_of("kafka.advertised_listeners") == "FOREBAY_KAFKA__ADVERTISED_LISTENERS"
    assert all(key_of(setting.variable) == key for key, setting in SETTINGS.items())


def test_a_default_that_depends_on_others_says_so() -> None:
    assert SETTINGS["storage.flush_interval"].default_text() == "5ms; 250ms where objects live on another machine"
    assert SETTINGS["kafka.advertised_listeners"].default_text() == "the listeners"
    assert SETTINGS["storage.flush_bytes"].default_text() == "8MiB"
    assert DERIVED_FROM.keys() <= SETTINGS.keys()


def test_the_nearest_name_is_what_was_meant_or_nothing() -> None:
    assert nearest("kafka.listenerz", list(SETTINGS)) == "kafka.listeners"
    assert nearest("zzz", list(SETTINGS)) is None
