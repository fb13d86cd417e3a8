"""The operations a client may carry out, as bit fields (KIP-430): all of them, there being no authorizer."""

from collections.abc import Iterable
from typing import Final

OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12


def _bits(operations: Iterable[int]) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _bits((_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
CLUSTER_OPERATIONS: Final = _bits((_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE))
GROUP_OPERATIONS: Final = _bits((_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
