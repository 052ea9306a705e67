"""Who the clients of a log are: one level of identity for all its rows.

A log may name a team, a key, a user and an address in one row.  Clients are taken from one level throughout, since a
team and a user beside each other are no two clients.  It is the first level of `LEVELS` that names two clients or more
and is there in `ALMOST` of all rows; else the one that is there in most rows, those with two clients or more before
others.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

_LEVELS: dict[str, str] = {
    "client": "client clientid clientname xclient xclientid httpxclient tenant tenantid tenantname customer customerid "
    "customername account accountid",
    "team name": "teamalias teamname userapikeyteamalias",
    "team": "team teamid userapikeyteamid",
    "organization": "organization organizationid org orgid userapikeyorgalias userapikeyorgid project projectid",
    "key name": "apikeyname apikeyalias keyname keyalias userapikeyalias",
    "key": "apikey apikeyid userapikey userapikeyhash apikeyhash keyid key",
    "user": "user userid username remoteuser userapikeyuserid requestuser",
    "end user": "enduser enduserid userapikeyenduserid",
    "service": "service servicename",
    "session": "session sessionid",
    "address": "remoteaddr remoteaddress clientip clientaddress sourceip requesteripaddress xforwardedfor "
    "downstreamremoteaddress",
}
LEVELS = {level: names.split() for level, names in _LEVELS.items()}
"""Levels in order of preference, and the names of their columns, the likeliest first."""
ALMOST = 0.9
MAPPED = "map"
"""The level of a column that a map names."""

Names = tuple[str, ...]
"""What a row says at each level, empty where nothing."""


@attrs.frozen
class Identity:
    """The level of the clients, the column that names them, how many there are, and the rows that name none; `others`
    by level."""

    level: str
    column: str
    clients: int
    unnamed: int
    others: Mapping[str, int]

    @property
    def sentence(self) -> str:
        """Say it in one line."""
        if self.level == MAPPED:
            return f"Clients: {self.clients:,} by {self.column}, as the map says."
        column = "" if self.column == self.level else f" ({self.column})"
        unnamed = f", named by all but {self.unnamed:,} requests" if self.unnamed else ""
        others = ", ".join(f"{count:,} by {level}" for level, count in self.others.items())
        return (
            f"Clients: {self.clients:,} by {self.level}{column}{unnamed}{f'; it would be {others}' if others else ''}."
        )


def chosen(found: Iterable[tuple[Mapping[str, str], Names, int]]) -> Identity | None:
    """Return the level of a log, from its kinds of rows: the columns by level, what the rows say, and how many say so.

    None where no row names a client.
    """
    rows, names, columns = Counter[str](), dict[str, set[str]](), dict[str, str]()
    total = 0
    for levels, said, count in found:
        total += count
        for (level, column), name in zip(levels.items(), said, strict=True):
            columns.setdefault(level, column)
            if name:
                rows[level] += count
                names.setdefault(level, set()).add(name)
    if not names:
        return None
    order = [level for level in (MAPPED, *LEVELS) if level in names]
    good = (level for level in order if len(names[level]) > 1 and rows[level] >= ALMOST * total)
    level = next(good, None) or max(order, key=lambda each: (len(names[each]) > 1, rows[each]))
    others = {each: len(names[each]) for each in order if each != level}
    return Identity(level, columns[level], len(names[level]), total - rows[level], others)


def names_at(level: str, levels: Mapping[str, str], said: Sequence[str]) -> str:
    """Return what a row says at a level, empty where nothing."""
    return next((name for each, name in zip(levels, said, strict=True) if each == level), "")
