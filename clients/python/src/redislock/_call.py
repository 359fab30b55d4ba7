"""One call of a user, and what it left behind at the servers."""

from typing import Any, List, Optional, Sequence

from ._options import Words


class Kept:
    """The connection of a call. It stays with the grant of a session."""

    def __init__(self) -> None:
        self.link: Any = None
        # True if the last release of the session is done, so no other call needs the connection.
        self.is_done = False


class Call:
    """A call, with its connection and its unanswered commands."""

    def __init__(self, token: bytes, kept: Optional[Kept] = None, is_apart: bool = False) -> None:
        self.token = token
        self.kept = kept or Kept()
        # True if the connection is that of a held session.
        self.is_of_session = kept is not None
        # The connection of the latest command.
        self.link: Any = None
        # True if its commands need a connection of their own.
        self.is_apart = is_apart
        # The connections on which a command of this call got no reply.
        self.unanswered: List[Any] = []
        # True if the server may have a wait or a grant of this call.
        self.is_unsure = False
        # True if the lock wasn't granted at once.
        self.has_waited = False
        # True if the observer knows of the outage.
        self.is_reported = False
        # The node of a cluster to ask next, after another one failed.
        self.elsewhere: Any = None

    def leave(self, commands: Sequence[Words] = ()) -> None:
        """Write commands behind those without a reply, and close their connections."""
        links, self.unanswered = self.unanswered, []
        for link in links:
            link.leave(commands)

    def part(self, io: Any) -> None:
        """Give the connection up. That of a held session stays open, because the session ends with
        it."""
        if not self.is_of_session:
            io.put_back(self)
            return
        link, self.kept.link = self.kept.link, None
        if link is not None:
            self.unanswered.append(link)

    async def wait(self, gate: Any, seconds: float) -> bool:
        """Wait until the gate opens. Return False if the time is over first."""
        opened: bool = await gate.wait(seconds)
        return opened
