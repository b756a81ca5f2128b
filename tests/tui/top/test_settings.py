"""The settings file: read, checked, its mistakes named; keys remapped without two actions on one key."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvtrace.tui.top.keys import KEYS, keymap
from kvtrace.tui.top.settings import SettingsError, TopSettings, config_path, read_settings
from kvtrace.tui.top.view import Sort


def _read(tmp_path: Path, text: str) -> TopSettings:
    path = tmp_path / "kvtrace.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings(path)


def test_settings_are_taken_and_the_rest_is_as_usual(tmp_path: Path) -> None:
    settings = _read(
        tmp_path, '[top]\ninterval_s = 0.5\nsort = "vram"\nascii = true\n[top.keys]\npause = "p"\n[other]\nx = 1\n'
    )
    assert (settings.interval_s, settings.sort, settings.ascii_only) == (0.5, Sort.VRAM, True)
    assert settings.keys["pause"] == "p"
    assert settings.keys["quit"] == TopSettings().keys["quit"]


def test_no_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml") == TopSettings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[top", "cannot be read"),
        ("[top]\ninterval_s = 0.1", "interval_s = 0.1"),
        ("[top]\ninterval_s = nan", "interval_s"),
        ('[top]\nsort = "size"', "sort = 'size'"),
        ("[top]\ncolour = 1", "colour"),
        ("[top]\nascii = 1", "ascii"),
        ("[top]\ntheme = 1", "theme"),
        ('top = "x"', r"\[top\]"),
        ('[top.keys]\nfly = "x"', "fly"),
        ('[top.keys]\npause = ""', "pause"),
        ("[top.keys]\npause = 1", "pause"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        _read(tmp_path, text)
    assert "kvtrace.toml" in str(caught.value)


def test_file_is_in_the_users_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() == tmp_path / "kvtrace" / "kvtrace.toml"


def test_usual_keys_are_each_one_actions() -> None:
    keys = [key for each in KEYS for key in each.keys.split(",")]
    assert len(keys) == len(set(keys))


def test_key_that_was_given_away_is_taken_from_its_old_action() -> None:
    mapped = keymap({"pause": "q, f2"})
    assert mapped["pause"] == "q,f2"
    assert mapped["quit"] == "ctrl+q"
