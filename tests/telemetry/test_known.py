from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.known import KnownSecrets

KEY = 'mykey/with+odd\\signs"and-é'
secrets = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=8, max_size=40)


def escaped(text: str) -> str:
    return "".join(f"\\u{unit:04X}" for unit in map(ord, text))


SPELLINGS = {
    "plain": KEY,
    "behind its scheme": f"Bearer {KEY}",
    "as JSON": json.dumps(KEY, ensure_ascii=False),
    "as JSON in ASCII": json.dumps(KEY),
    "as PHP writes it": json.dumps(KEY).replace("/", "\\/"),
    "JSON in JSON": json.dumps(json.dumps({"key": KEY})),
    "all of it escaped": escaped(KEY),
    "in lower case": escaped(KEY).lower(),
}


@pytest.mark.parametrize("name", sorted(SPELLINGS))
def test_a_secret_is_found_in_every_spelling(name: str) -> None:
    known = KnownSecrets(["another-secret", KEY])
    told = known.cleanse(f"before {SPELLINGS[name]} behind".encode()).decode()
    assert told.startswith("before ")
    assert told.endswith(" behind")
    assert "[redacted]" in told
    assert "odd" not in told
    assert "006F" not in told.upper()
    assert "odd" not in known.redact(SPELLINGS[name])


@given(secrets, st.binary(max_size=30), st.binary(max_size=30))
def test_no_secret_is_left(secret: str, before: bytes, behind: bytes) -> None:
    told = KnownSecrets([secret]).cleanse(before + secret.encode() + behind)
    assert b"[redacted]" in told


@given(secrets, secrets)
def test_json_stays_json(secret: str, text: str) -> None:
    body = json.dumps({"error": {"message": f"{text}{secret}{text}"}})
    told = json.loads(KnownSecrets([secret]).cleanse(body.encode()))
    assert "[redacted]" in told["error"]["message"]


def test_without_a_secret_the_same_object() -> None:
    data = b'{"error":{"message":"ollama says no"}}'
    assert KnownSecrets(["ollama"]).cleanse(data) is data
    assert KnownSecrets([]).cleanse(data) is data
    assert KnownSecrets(["a-real-secret"]).cleanse(data) is data


def test_of_two_secrets_the_longer_one_is_replaced_whole() -> None:
    known = KnownSecrets(["secret-a", "secret-a-and-more"])
    assert known.cleanse(b"secret-a-and-more secret-a") == b"[redacted] [redacted]"


def test_what_shows_by_its_form_goes_from_texts_as_well() -> None:
    assert KnownSecrets([KEY]).redact(f"{KEY} sk-abcdefghijk") == "[redacted] [redacted]"


def test_it_does_not_tell_what_it_knows() -> None:
    assert "secret" not in repr(KnownSecrets(["a-real-secret"])).lower().replace("knownsecrets", "")
