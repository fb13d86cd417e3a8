from broker.protocol.compiler import Source


def test_lines_blocks_and_constants_become_a_function() -> None:
    source = Source("value")
    step = source.constant(5)
    total = source.variable()
    source.line(f"{total} = 0")
    with source.block("for _ in range(value)"):
        source.line(f"{total} += {step}")
    source.line(f"return {total}")

    assert source.compile("five times")(3) == 15


def test_what_is_empty_does_nothing() -> None:
    source = Source("value")
    with source.block("for _ in value"):
        pass

    assert source.compile("nothing")([1, 2]) is None


def test_names_occur_once() -> None:
    source = Source("")

    assert len({source.variable(), source.variable(), source.constant(1), source.constant(1)}) == 4


def test_a_traceback_names_what_was_generated() -> None:
    source = Source("")
    function = source.compile("decoder of Metadata 13")

    assert function.__code__.co_filename == "<decoder of Metadata 13>"
