"""The one thing this layer reports."""


class ProtocolViolation(Exception):
    """The peer's bytes are not what the Kafka protocol allows: no answer is possible, close the connection.

    Messages are lower case with the facts at the end: `array longer than what remains: field=topics length=… remaining=…`.
    """


class OtherProtocol(ProtocolViolation):
    """What came first is the beginning of `protocol`, not of a Kafka request."""

    def __init__(self, protocol: str, began: bytes) -> None:
        super().__init__(f"the client speaks {protocol}: began={began!r}")
        self.protocol = protocol
