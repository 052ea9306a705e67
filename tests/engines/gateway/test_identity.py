"""Names of callers: keys of which only hashes are in the configuration, names that no caller takes from another."""

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from fairsched.engines.gateway import CallError
from fairsched.engines.gateway.config import CLIENT_HEADER, ClientConfig, GatewayConfig, ServerConfig, hashed_key
from fairsched.engines.gateway.identity import CallerNames, told_name

SERVERS = (ServerConfig("http://a", 60),)
CLIENTS = {"gold": ClientConfig((hashed_key("sk-gold"),)), "free": ClientConfig((hashed_key("sk-é"),))}


def names(**fields: Any) -> CallerNames:
    """The names of callers of two clients."""
    return CallerNames(GatewayConfig(SERVERS, clients=CLIENTS, **fields))


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  ", "bEARER "])
def test_a_key_is_its_clients_whatever_the_case_of_its_scheme(scheme: str) -> None:
    """A server that takes `bearer` in lower case serves the client that the gateway charged; Anthropic's header has the
    key alone."""
    headers = CIMultiDict({"Authorization": scheme + "sk-gold"})
    assert names().of(headers) == "gold"
    assert names().of(CIMultiDict({"X-Api-Key": "sk-gold"})) == "gold"
    assert names().of({"authorization": "Bearer sk-é"}) == "free"


def test_unknown_callers_are_refused_unless_told_otherwise() -> None:
    """By default a key that no client has gets 401, as no key does, and so does the hash of a key."""
    for headers in ({}, {"authorization": "Bearer sk-other"}, {"authorization": f"Bearer {hashed_key('sk-gold')}"}):
        with pytest.raises(CallError) as caught:
            names().of(headers)
        assert caught.value.status == 401


@pytest.mark.parametrize("identify", ["key", "header"])
def test_a_call_that_names_two_callers_is_refused(identify: str) -> None:
    """Of two headers a server may read the other one."""
    headers = CIMultiDict([("authorization", "Bearer sk-gold"), ("x-client", "gold")])
    known = names(identify=identify)
    assert known.of(headers) == "gold"
    headers.add("Authorization", "Bearer sk-other")
    headers.add("X-Client", "free")
    with pytest.raises(CallError, match="more than one header"):
        known.of(headers)


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=30))
def test_no_unknown_caller_has_the_name_of_a_client_or_shows_its_key(key: str) -> None:
    """Whatever an unknown caller says, its name is a hash, or the one that all without a name share."""
    for identify, header in (("key", "authorization"), ("header", "x-client")):
        name = names(identify=identify, unknown_clients="own").of({header: key})
        if key.strip() not in CLIENTS and not key.strip().lower().startswith("bearer"):
            assert name == "others" or (name.startswith("~") and len(name) == 17)
            assert len(key) < 3 or key not in name


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_a_server_is_told_any_name_in_a_header(name: str) -> None:
    """A name of any letters is printable ASCII without blanks, and is the same when it is read back."""
    header, value = told_name(name)
    assert header == CLIENT_HEADER
    assert all(" " < mark <= "~" for mark in value)
    assert unquote(value) == name


def test_status_and_metrics_want_a_key_of_their_own() -> None:
    """A client's key is none of the administrator's, whose key is no client's."""
    known = names(admin_keys=(hashed_key("sk-admin"),))
    known.check_admin({"authorization": "bearer sk-admin"})
    for headers in ({}, {"authorization": "Bearer sk-gold"}, {"x-client": "gold"}):
        with pytest.raises(CallError) as caught:
            known.check_admin(headers)
        assert caught.value.status == 401
    with pytest.raises(CallError):
        known.of({"authorization": "Bearer sk-admin"})
