import pytest

from storage.objects.s3.faults import ErrorReply, error_reply_of


@pytest.mark.parametrize(
    ("refused", "not_done", "transient"),
    [
        (ErrorReply(503, "SlowDown"), True, True),
        (ErrorReply(503, "ServiceUnavailable"), True, True),
        (ErrorReply(429), True, True),
        (ErrorReply(408), True, True),
        (ErrorReply(400, "RequestTimeout"), True, True),
        (ErrorReply(400, "IncompleteBody"), True, True),
        (ErrorReply(409, "ConditionalRequestConflict"), True, True),
        (ErrorReply(409), True, True),
        (ErrorReply(409, "ObjectParentIsFile"), False, False),
        # A proxy that lost the reply says so, too.
        (ErrorReply(503), False, True),
        (ErrorReply(500, "InternalError"), False, True),
        (ErrorReply(502), False, True),
        (ErrorReply(504), False, True),
        (ErrorReply(501, "NotImplemented"), False, False),
        (ErrorReply(403, "AccessDenied"), False, False),
        (ErrorReply(412, "PreconditionFailed"), False, False),
        (ErrorReply(404, "NoSuchKey"), False, False),
        (ErrorReply(301, "PermanentRedirect"), False, False),
    ],
)
def test_what_is_tried_again_and_what_certainly_did_not_happen(refused: ErrorReply, not_done: bool, transient: bool) -> None:
    assert (refused.is_not_done, refused.is_transient) == (not_done, transient)


@pytest.mark.parametrize(
    ("refused", "missing", "bare"),
    [
        (ErrorReply(404, "NoSuchKey"), True, False),
        (ErrorReply(404), False, True),
        (ErrorReply(404, "NoSuchBucket"), False, False),
        (ErrorReply(404, "NoSuchUpload"), False, False),
        (ErrorReply(403, "NoSuchKey"), False, False),
    ],
)
def test_an_absent_object_is_told_from_all_else_that_is_not_found(refused: ErrorReply, missing: bool, bare: bool) -> None:
    assert (refused.is_missing, refused.is_bare_404) == (missing, bare)


def test_an_answer_is_read_as_far_as_it_is_one() -> None:
    body = '<?xml version="1.0"?>\n<Error><Code>SlowDown</Code><Message>Please &#34;reduce&#34;\n your rate</Message>'
    body += "<Region>eu-west-1</Region>"
    refused = error_reply_of(503, body)

    assert (refused.code, refused.message, refused.region) == ("SlowDown", 'Please "reduce" your rate', "eu-west-1")
    assert str(refused) == '503 SlowDown (Please "reduce" your rate)'
    assert str(error_reply_of(404, "<html>nginx</html>")) == "404"
    assert len(error_reply_of(400, f"<Message>{'m' * 1_999}</Message>").message) <= 300
