"""Names of callers: keys of which only hashes are in the configuration, names that no caller takes from another."""

from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from fairsched.engines.gateway import CallError
from fairsched.engines.gateway.config import (
    CLIENT_HEADER,
    ClientConfig,
    GatewayConfig,
    ServerConfig,
    TlsConfig,
    Way,
    claimed_groups,
    hashed_key,
    verified_name,
)
from fairsched.engines.gateway.identity import CallerNames, Peer, told_name
from fairsched.engines.serving import OTHERS

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


# --- names of different ways ------------------------------------------------------------------------------------------

TEXTS = st.text(st.one_of(st.sampled_from("/:%~"), st.characters(blacklist_categories=["Cs"])), min_size=1, max_size=9)
WAYS: st.SearchStrategy[Way] = st.sampled_from(("jwt", "certificate", "header"))
VOUCHED = st.tuples(WAYS, TEXTS, st.lists(TEXTS, max_size=2).map(tuple))
"""A way, what it says, and groups."""


@given(VOUCHED, VOUCHED)
@example(("jwt", "x", ("a/b",)), ("jwt", "x", ("a", "b")))
@example(("jwt", "x", ("a", "b:c")), ("jwt", "c:x", ("a", "b")))
@example(("jwt", "x", ("%2F",)), ("jwt", "x", ("/",)))
def test_no_two_verified_callers_share_a_name(one: tuple[Way, str, Any], two: tuple[Way, str, Any]) -> None:
    """Another way, another word, or another group is another name; it is no name that an unknown caller has or that all
    without one share, and none that a client of the file may have."""
    names_of = verified_name(*one), verified_name(*two)
    assert (names_of[0] == names_of[1]) == (one == two)
    name = names_of[0]
    assert name != OTHERS
    assert not name.startswith("~")
    assert len(claimed_groups(name)) == len(one[2])
    with pytest.raises(ValueError, match="only callers that are not listed have names that begin so"):
        GatewayConfig(SERVERS, clients={name: ClientConfig()})


@given(TEXTS, TEXTS)
def test_the_groups_of_a_name_are_those_that_vouched(group: str, said: str) -> None:
    """No two organisations are one in the tree, and those of plain letters are called as they are."""
    (found,) = claimed_groups(verified_name("jwt", said, (group,)))
    assert found == group or set(group) & set("%/:")
    assert claimed_groups(verified_name("jwt", said)) == claimed_groups(said if ":" not in said else "") == ()


@given(
    st.sampled_from(["gold", "free", "others", "~0123456789abcdef", "header:free", "certificate:free", "sk-gold"]),
    st.sampled_from(["gold", "free", "sk-gold", "sk-other", ""]),
    st.booleans(),
    st.sampled_from(["reject", "own", "together"]),
)
def test_a_caller_is_a_client_of_the_file_only_by_what_the_file_says(
    said: str, key: str, by_certificate: bool, unlisted: Any
) -> None:
    """Whatever a caller calls itself in a certificate, a key or a header of its own, the names of the file are for
    the keys and the certificates in it, and for what its proxy says."""
    clients = {**CLIENTS, "free": ClientConfig(certificates=("free-1",))}
    fields: dict[str, Any] = {"identify": ("header", "certificate", "key"), "header_from": ("10.0.0.0/8",)}
    tls = TlsConfig("a.pem", "a.key", "ca.pem")
    known = CallerNames(
        GatewayConfig(SERVERS, clients=clients, tls=tls, unknown_clients=unlisted, verified_clients=unlisted, **fields)
    )
    certificate = {"subject": ((("commonName", said),),)} if by_certificate else None
    headers = {"x-client": said} | ({"authorization": key} if key else {})
    gold = key == "sk-gold" and not by_certificate
    if unlisted == "reject" and not gold:
        with pytest.raises(CallError, match="this gateway does not know you"):
            known.of(headers, Peer("1.2.3.4", certificate))
        return
    name = known.of(headers, Peer("1.2.3.4", certificate))
    assert (name == "gold") == gold
    assert name != "free"
    if unlisted == "own" and name not in ("gold", OTHERS):
        assert name.startswith("certificate:" if by_certificate else "~")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"identify": ()}, "identify is a way or several different ones"),
        ({"identify": ("key", "key")}, "identify is a way or several different ones"),
        ({"identify": ("key", "jwt")}, r"identify has jwt, and \[jwt\] is missing"),
        ({"identify": "certificate"}, "identify has certificate, and tls.client_ca is missing"),
        ({"tls": TlsConfig("a", "b", "c")}, "identify has no certificate, which tls.client_ca is for"),
        ({"header_from": ("::/0",)}, "identify has no header, which header_from is for"),
        ({"identify": ("header", "key")}, "header_from is missing: without it any caller could take any name"),
        ({"identify": "header", "header_from": ("10.0.0.1/8",)}, "header_from: a network is like .* host bits set"),
        ({"identify": "header", "header_from": ("proxy",)}, "header_from: a network is like 10.0.0.0/8"),
        ({"clients": {"a": ClientConfig(jwt=("x",))}}, "client.a: identify has no jwt"),
        ({"clients": {"~a": ClientConfig()}}, "only callers that are not listed"),
    ],
)
def test_ways_that_lack_something_are_refused(fields: dict[str, Any], why: str) -> None:
    """By the key that is wrong; what is there for a way that is not used is refused, too."""
    with pytest.raises(ValueError, match=why):
        GatewayConfig(SERVERS, **fields)


def test_a_name_that_two_clients_list_is_refused() -> None:
    """One token or certificate is one client; what names a client of another organisation is another."""
    fields: dict[str, Any] = {"identify": "certificate", "tls": TlsConfig("a", "b", "c")}
    clients = {"a": ClientConfig(certificates=("x", "x")), "b": ClientConfig(certificates=("x",))}
    with pytest.raises(ValueError, match=r"client\.b: certificate 'x' is also a's"):
        GatewayConfig(SERVERS, clients=clients, **fields)
    assert GatewayConfig(SERVERS, clients={"a": clients["a"]}, **fields).listed == {"certificate:x": "a"}
