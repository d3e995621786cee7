"""What a call of the client can end with beside its answer: one class for whatever the server or the way to it does."""

from loadgen.errors import TargetError


class RequestError(TargetError):
    """A call that got no good answer.

    `kind` is one of the kinds of failure of docs/metrics.md (`http_404`, `connect`, `dns`, `tls`, `timeout`,
    `cancelled`, `disconnect`, `protocol`, `server_error`, `abort`, ...), or, of a `LabelError`, `not_a_label` or
    `no_constraint`. `status` is the answer's status; None where there was no answer. `words` are the server's or the
    library's own, on one line, and `asked` is what was asked: method and address.
    """

    def __init__(self, asked: str, kind: str, words: str, status: int | None = None) -> None:
        super().__init__(f"{asked}: {kind}: {words}")
        self.asked = asked
        self.kind = kind
        self.words = words
        self.status = status

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str, str, int | None]]:
        return type(self), (self.asked, self.kind, self.words, self.status)


class LabelError(RequestError):
    """The labels of a choice did not hold: the server cannot constrain an answer, or one came that is no label."""
