import pytest

from forebay.commands.topic.formats import Parse, RecordLine, line_fields, line_parse

NOTHING = RecordLine(None)


def reading(text: str, rest: RecordLine = NOTHING, *, empty_is_null: bool = False) -> Parse:
    return line_parse(line_fields(text), rest, empty_is_null=empty_is_null)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (r"%k:%v\n", b"user:a:b", RecordLine(b"a:b", b"user")),
        ("%k %v", b"k v w", RecordLine(b"v w", b"k")),
        (r"%k\t%s", b"k\t", RecordLine(b"", b"k")),
        ("%v", b"\xff\x00", RecordLine(b"\xff\x00")),
        ("%v;", b"a;b;", RecordLine(b"a;b")),
        ("%v{hex} %k{base64}", b"ff00 /wA=", RecordLine(b"\xff\x00", b"\xff\x00")),
        ("%p|%d|%h|%v", b"3|1795250358763|a=b,c=|x", RecordLine(b"x", None, [("a", b"b"), ("c", b"")], 3, 1_795_250_358_763)),
        ("%T,%v", b"5,x", RecordLine(b"x", timestamp_ms=5)),
        ("%h %v", b" x", RecordLine(b"x", None, [])),
        ("%k%%%v", b"50%x", RecordLine(b"x", b"50")),
    ],
)
def test_a_line_is_read_as_the_format_says(text: str, line: bytes, expected: RecordLine) -> None:
    assert reading(text)(line) == expected


def test_what_lines_do_not_say_is_taken_from_the_options() -> None:
    rest = RecordLine(None, b"key", (("of", b"all"),), 2)

    assert reading("%v", rest)(b"x") == RecordLine(b"x", b"key", (("of", b"all"),), 2)
    assert reading("%h|%v", rest)(b"a=b|x").headers == [("of", b"all"), ("a", b"b")]


def test_nothing_is_null_only_if_that_is_wanted() -> None:
    assert reading("%k:%v")(b":") == RecordLine(b"", b"")
    assert reading("%k:%v", empty_is_null=True)(b":") == RecordLine(None, None)
    assert reading("%k:%v", empty_is_null=True)(b"k:v") == RecordLine(b"v", b"k")


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("%k:%v", b"value", 'has no ":" behind %k'),
        ("%v;", b"a", 'does not end with ";"'),
        ("%k;%v;", b"a;", 'does not end with ";"'),
        ("%v{hex}", b"xyz", 'has "xyz" as %v{hex}, which it is not'),
        ("%k{base64} %v", b"a v", 'has "a" as %k{base64}, which it is not'),
        ("%p %v", b"-1 v", 'has "-1" as %p, which is no number for it'),
        ("%p %v", b"2147483648 v", "which is no number for it"),
        ("%d %v", b"now v", 'has "now" as %d'),
        ("%h %v", b"a v", 'has "a" among its headers: write a=b,c=d'),
        ("%h %v", b"\xff=1 v", "as name of a header, which is not UTF-8 text"),
    ],
)
def test_a_line_that_cannot_be_read_says_why(text: str, line: bytes, phrase: str) -> None:
    with pytest.raises(ValueError) as refused:
        reading(text)(line)

    assert phrase in str(refused.value)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "has no field"),
        ("plain", "has no field"),
        ("%k%v", "has nothing between %k and %v"),
        ("%v %v", "has %v twice"),
        ("%v %s", "has %v twice"),
        (">%v", "begins with text"),
        (r"%k\n%v\n", r"has \n before its end"),
        ("%o %v", "has %o, which no line can give: %k %v %h %p %d can"),
        ("%", "has %, which no line can give"),
        ("%p{hex} %v", "has %p{hex}: there is %k{hex}"),
        (r"%k\q%v", r"has \q, which means nothing"),
    ],
)
def test_a_format_that_no_line_can_be_read_by_is_refused(text: str, phrase: str) -> None:
    with pytest.raises(ValueError) as refused:
        line_fields(text)

    assert phrase in str(refused.value)
